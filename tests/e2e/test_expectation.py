# SPDX-License-Identifier: Apache-2.0
"""What should run and what does, compared by the agent as its own program, and by a command."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.incident import LIVING
from tests.e2e.deployment import write_config
from tests.e2e.town import HOST, Town, a_town
from tests.processes import PATIENCE_S, eventually, script

EVERY_S = 0.3
#: What is seen of a guest that runs here and belongs elsewhere.
UNEXPECTED = ["noted expectation unexpected"]
#: Longer than it takes to hear of a death, also where the machine has much else to do.
GRACE_S = 1.5


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with a_town(tmp_path_factory.mktemp("town")) as made:
        often = f"expected_interval_s = {EVERY_S}\nexpected_grace_s = {GRACE_S}\n"
        made.config.write_text(made.config.read_text() + often)
        yield made


def boot(town: Town, name: str, host: str = HOST) -> str:
    return town.sim.boot(name, "demo", host, 1, 64, 1).id


def observed(town: Town, server: str) -> list[str]:
    rows: list[dict[str, Any]] = town.client.wire.call(
        "GET",
        "/holdfast/v1/observations",
        query={"subject": f"server:{server}"},
        key="observations",
    )
    return [
        f"{row['state']} {row['evidence']['event']} {row['evidence']['detail']}" for row in rows
    ]


@contextlib.contextmanager
def behind(town: Town) -> Iterator[sqlite3.Connection]:
    """The world itself, behind the cloud's back."""
    file = town.folder / "state" / "sim.db"
    with contextlib.closing(sqlite3.connect(file, timeout=60)) as db, db:
        yield db


@contextlib.contextmanager
def twice(town: Town, name: str) -> Iterator[str]:
    """A guest that runs here and belongs elsewhere."""
    server = boot(town, name, "cmp-14")
    with behind(town) as db:
        (here,) = db.execute("SELECT id FROM hosts WHERE name = ?", (HOST,)).fetchone()
        db.execute("INSERT INTO domains VALUES (?, ?)", (server, here))
    yield server
    with behind(town) as db:
        db.execute("DELETE FROM domains WHERE server_id = ? AND host_id = ?", (server, here))


def many_looks(town: Town) -> None:
    """The agent has looked, often enough to be sure of whatever differed before: it is sure of what
    differs since now."""
    with twice(town, "later") as later:
        eventually(lambda: observed(town, later) == UNEXPECTED)


def test_a_guest_removed_while_the_agent_lost_the_outbox_is_recovered_once(town: Town) -> None:
    server = boot(town, "removed")
    agent = town.agent()
    with agent:
        town.knows(server)
        agent.kill()
        town.sim.lose_server(server)
        for file in town.folder.glob("agent.outbox*"):
            file.unlink()
        agent.start()
        town.recovered(server)
        many_looks(town)
        town.recovered(server)
        said = ["well running again", "failed expectation missing"]  # the newest first
        eventually(lambda: observed(town, server) == said)
    (incident,) = town.incidents(server)
    assert f"expectation missing, says agent@{HOST}" in incident["cause"]


def test_a_death_seen_by_event_and_comparison_is_a_single_report_and_incident(town: Town) -> None:
    server = boot(town, "heard")
    town.sim.change(action_s=3 * GRACE_S)  # so long the cloud says ACTIVE
    try:
        with town.agent():
            town.knows(server)
            town.sim.crash_server(server)
            eventually(lambda: town.incidents(server))
            many_looks(town)
            said = [one for one in observed(town, server) if not one.startswith("well")]
            assert said == ["failed stopped failed"]
            assert len(town.incidents(server)) == 1
    finally:
        town.sim.change(action_s=0.0)


def test_a_guest_that_shuts_down_causes_no_reports(town: Town) -> None:
    server = boot(town, "tired")
    with town.agent():
        town.knows(server)
        with behind(town) as db:
            db.execute("DELETE FROM domains WHERE server_id = ?", (server,))
        many_looks(town)
    (said,) = [one for one in town.sim.world()["servers"] if one["id"] == server]
    assert (said["status"], said["running_on"]) == ("ACTIVE", [])
    assert observed(town, server) == []


def test_a_guest_running_on_the_wrong_host_is_noted_and_left_alone(town: Town) -> None:
    with twice(town, "twice") as server, town.agent():
        eventually(lambda: observed(town, server))
        many_looks(town)
        assert observed(town, server) == UNEXPECTED
        assert town.incidents(server) == []


def expect(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [script("holdfast"), "guest", "expect", "--config-file", config, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_the_command_lists_differences_without_an_agent(town: Town) -> None:
    incidents = town.client.incidents
    eventually(lambda: not [x for x in incidents.list(kind="guest") if x["status"] in LIVING])
    for server in town.sim.world()["servers"]:  # what the other tests have left
        if server["host"] == HOST and server["status"] == "ACTIVE" and not server["running_on"]:
            with behind(town) as db:
                db.execute("DELETE FROM servers WHERE id = ?", (server["id"],))
    well = expect(town.config)
    assert (well.returncode, "nothing differs" in well.stderr) == (0, True), well
    server = boot(town, "gone")
    town.sim.lose_server(server)
    ran = expect(town.config, "--grace", "0.1", "-f", "json")
    assert ran.returncode == 11, ran
    (row,) = json.loads(ran.stdout)
    assert row == {
        "name": "gone",
        "uuid": server,
        "difference": "missing",
        "found": "nothing",
        "cloud_says": "it is ACTIVE",
    }
    foreign = expect(town.config, "--host", "cmp-14")
    assert (foreign.returncode, "cannot speak for cmp-14" in foreign.stderr) == (2, True), foreign


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("api_url", "http://127.0.0.1:9", "127.0.0.1:9"),
        ("guests_address", "nonsense", "HOST@FILE"),
        ("guests", "acme", "there is no 'acme'"),
    ],
)
def test_an_unreachable_source_is_an_error_not_an_empty_list(
    town: Town, tmp_path: Path, option: str, value: str, why: str
) -> None:
    lines = [line for line in town.config.read_text().splitlines() if " = " in line]
    about: dict[str, object] = dict(line.split(" = ", 1) for line in lines)
    broken = replace(town, config=write_config(tmp_path / "c", {"agent": about | {option: value}}))
    ran = expect(broken.config)
    assert ran.returncode == 2, ran
    assert why in ran.stderr
    assert not ran.stdout.strip()
