# SPDX-License-Identifier: Apache-2.0
"""`holdfast guest list | watch | simulate | status`, asked of a real agent."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import admin
from holdfast.client.errors import NotReachable
from tests.e2e.deployment import write_config
from tests.e2e.town import HOST, Town, a_town
from tests.processes import PATIENCE_S, Program, eventually, script


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with a_town(tmp_path_factory.mktemp("live")) as made:
        yield made


@pytest.fixture
def agent(town: Town) -> Iterator[Program]:
    with town.agent() as made:
        made.wait_until(lambda: is_asked(town))
        town.knows(town.guests()[0])
        yield made
    assert "Traceback" not in made.log.read_text()


def is_asked(town: Town) -> bool:
    """Whether the agent answers at its socket."""
    try:
        admin.ask(str(town.folder / "agent.sock"), "status")
    except NotReachable:
        return False
    return True


def ask(
    town: Town, *words: str, quiet: bool = False, said: str = ""
) -> subprocess.CompletedProcess[str]:
    front = [script("holdfast"), *(["-q"] if quiet else []), "guest"]
    command = [*front, *words, "--config-file", str(town.config)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, input=said
    )


def answer(town: Town, *words: str) -> Any:
    ran = ask(town, *words, "-f", "json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@contextlib.contextmanager
def watching(town: Town, file: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`guest watch`, once it is there, its lines in a file."""
    command = [script("holdfast"), "guest", "watch", "--config-file", str(town.config), *words]
    with (
        file.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True) as made,
    ):
        try:
            eventually(lambda: file.read_text().count("\n") > 0)
            yield made
        finally:
            made.kill()


def name_of(town: Town, server: str) -> str:
    (found,) = [one for one in answer(town, "list") if one["uuid"] == server]
    return str(found["name"])


def test_a_running_agent_is_healthy_and_lists_guests(town: Town, agent: Program) -> None:
    ran = ask(town, "status")
    assert ran.returncode == 0
    count = len(town.guests())
    assert f"agent of {HOST} hears the hypervisor and knows {count} guests" in ran.stdout
    quiet = ask(town, "status", quiet=True)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    found = answer(town, "list")
    assert {one["uuid"] for one in found} == set(town.guests())
    assert all(one["life"] == "running" and one["since_at"] for one in found)
    assert all(one["metadata"]["project"] == one["project"] for one in found)
    table = ask(town, "list")
    assert found[0]["name"] in table.stdout
    assert "all is delivered" in table.stderr


def test_watched_events_match_the_guest_and_can_be_replayed(
    town: Town, agent: Program, tmp_path: Path
) -> None:
    server = town.guests()[0]
    name = name_of(town, server)
    lines, record = tmp_path / "lines", tmp_path / "record.jsonl"
    with watching(town, lines), watching(town, record, "--json", "--guest", name):
        town.sim.crash_server(server)
        town.recovered(server)
        eventually(lambda: "started booted" in lines.read_text())
        eventually(lambda: '"started"' in record.read_text())
    said = lines.read_text()
    for what in (
        f"event    {name}: lifecycle stopped failed",
        f"verdict  {name}: stopped failed is to be recovered by defaults line",
        f"report   {name}: failed: stopped failed, by defaults line",
        f"delivery {name}: failed: delivered",
    ):
        assert what in said
    assert said.index("event ") < said.index("verdict ") < said.index("report ")
    ran = subprocess.run(
        [script("holdfast"), *["guest", "filter", "test", "default"], record, "-f", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    replayed = [(load["guest"], load["state"]) for load in json.loads(ran.stdout)]
    assert replayed == [(name, "failed"), (name, "well")]


def test_watching_ends_after_the_requested_duration(town: Town, agent: Program) -> None:
    began = time.monotonic()
    ran = ask(town, "watch", "--for", "1", "--guest", "nobody")
    assert ran.returncode == 0
    assert "knows no guest nobody yet" in ran.stderr
    assert time.monotonic() - began >= 1


def test_watching_reports_a_killed_agent_and_works_with_the_next_agent(
    town: Town, agent: Program, tmp_path: Path
) -> None:
    with watching(town, tmp_path / "lines") as watcher:
        agent.kill()
        assert watcher.wait(PATIENCE_S) == 1
        assert watcher.stderr is not None
        assert "is gone" in watcher.stderr.read()
    assert (town.folder / "agent.sock").exists()  # as a killed one leaves it
    ran = ask(town, "status")
    assert ran.returncode == 2
    assert "start holdfast-agent, or name its socket with --socket" in ran.stderr
    agent.start()
    agent.wait_until(lambda: is_asked(town))
    assert agent.terminate() == 0
    assert not (town.folder / "agent.sock").exists()


def test_a_frozen_agent_does_not_block_the_command(town: Town, agent: Program) -> None:
    agent.pause()
    ran = ask(town, "status", quiet=True)
    agent.resume()
    assert ran.returncode == 2
    assert "does not answer within 3 s" in ran.stderr


def test_an_agent_without_events_reports_the_reason(town: Town, tmp_path: Path) -> None:
    file = tmp_path / "sim.db"
    with contextlib.closing(sqlite3.connect(town.folder / "state" / "sim.db")) as cloud:
        cloud.execute("VACUUM INTO ?", (str(file),))
    text = town.config.read_text().replace("/state/sim.db", "/none").replace("/agent.", "/deaf.")
    config = tmp_path / "deaf.conf"
    config.write_text(text.replace(f"{town.folder}/none", str(file)))
    deaf = Town(town.folder, town.client, town.sim, config)
    with deaf.agent() as made, contextlib.closing(sqlite3.connect(file)) as cloud:
        made.wait_until(lambda: ask(deaf, "status").returncode == 0)
        cloud.execute("DROP TABLE domains")
        made.wait_until(lambda: ask(deaf, "status").returncode == 10)
        ran = ask(deaf, "status", quiet=True)
        assert (ran.returncode, ran.stdout) == (10, "")
        assert f"agent of {HOST} does not hear the hypervisor: " in ran.stderr
        assert "does not hear" in ask(deaf, "list").stderr


def test_a_second_agent_does_not_take_the_socket_of_the_first(
    town: Town, agent: Program, tmp_path: Path
) -> None:
    text = town.config.read_text().replace(f"host = {HOST}", "host = cmp-14")
    config = tmp_path / "second.conf"
    config.write_text(text.replace("/agent.outbox", "/second.outbox"))
    command = [script("holdfast-agent"), "--config-file", config]
    with Program(command, tmp_path, name="second") as second:
        second.wait_until(lambda: "another agent listens at" in second.tail())
        assert f"agent of {HOST} " in ask(town, "status").stdout
        assert second.poll() is None  # it watches all the same
        assert second.terminate() == 0
    assert ask(town, "status").returncode == 0


def test_a_simulated_event_changes_nothing_without_for_real(town: Town, agent: Program) -> None:
    server = town.guests()[1]
    name = name_of(town, server)
    event = ["--guest", name, "--event", "lifecycle", "--detail", "stopped", "--reason", "failed"]
    (told,) = answer(town, "simulate", *event)
    assert (told["guest"], told["state"]) == (name, "failed")
    assert "defaults line" in told["rule"]
    assert town.incidents(server) == []
    refused = ask(town, "simulate", *event, "--for-real")
    assert refused.returncode == 1
    assert "confirm with --yes" in refused.stderr
    assert town.incidents(server) == []
    ran = ask(town, "simulate", *event, "--for-real", "--yes")
    assert ran.returncode == 0, ran.stderr
    (incident,) = eventually(lambda: town.incidents(server))
    assert "(simulated)" in incident["cause"]
    town.recovered(server)
    eventually(lambda: answer(town, "simulate", *event))  # it runs, and could die


def test_a_simulated_event_shows_the_reason_for_no_report(town: Town, agent: Program) -> None:
    name = name_of(town, town.guests()[2])
    line = '{"kind": "lifecycle", "detail": "stopped", "reason": "shutdown"}'
    ran = ask(town, "simulate", line, "--guest", name)
    assert f"no report would follow about {name}: stopped shutdown is ignored" in ran.stderr
    ran = ask(town, "simulate", "-", "--guest", name, said=f"{line}\n\n{line}\n")
    assert ran.returncode == 0
    for words, why in (
        (("simulate",), "name the event"),
        (("simulate", "{", "--guest", name), "line 1 is no JSON"),
        (("simulate", "--event", "reboot"), "which guest?"),
        (("simulate", "--event", "reboot", "--guest", "x"), "knows no guest 'x'"),
        (("simulate", "none.jsonl", "--guest", name), "cannot read none.jsonl"),
        (("watch", "--for", "soon"), "is no time"),
    ):
        ran = ask(town, *words)
        assert ran.returncode in (1, 2)
        assert why in ran.stderr


def test_every_command_reports_a_missing_agent(town: Town, tmp_path: Path) -> None:
    config = write_config(tmp_path / "none.conf", {"agent": {"socket": tmp_path / "no.sock"}})
    nowhere = Town(tmp_path, town.client, town.sim, config)
    for words in (("list",), ("watch",), ("simulate", "--event", "reboot", "--guest", "x")):
        ran = ask(nowhere, *words)
        assert ran.returncode == 1
        assert f"no agent listens at {tmp_path / 'no.sock'}: start holdfast-agent" in ran.stderr
    assert ask(nowhere, "status").returncode == 2
    assert ask(nowhere, "status", "--socket", str(tmp_path / "x.sock")).returncode == 2
    config.write_text("[agent\n")
    assert ask(nowhere, "status").returncode == 2
