# SPDX-License-Identifier: Apache-2.0
"""`holdfast rule …`, `alarm …` and `agent list`, against a real API."""

import json
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from test_client_fake import Run
from tests.alarms.world import World
from tests.api.house import House, copy, template
from tests.api.rules import BUSY, alarm_body, beat_body, report
from tests.processes import free_port

from holdfast.alarms import preview
from holdfast.alarms.rules import RuleSet
from holdfast.app import service
from holdfast.client.client import Client
from holdfast.client.reports import HoldfastCentre
from holdfast.metrics import history
from holdfast.metrics.history import Hour, Line


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an API to which an agent spoke, that had an alarm."""
    number = free_port()
    furnished = template(tmp_path_factory.mktemp("template"))
    config = "[auth]\nagent_groups = gpu: cmp-1\n"
    with House(copy(furnished, tmp_path_factory.mktemp("site")), config) as house:
        server = service.http_server(house.conf, house.app, number)
        server.start()
        try:
            report(house, alarm_body())
            beat = beat_body(rules={"version": "2-ab"}, groups=["gpu"], firing=1)
            house.call("PUT", "/holdfast/v1/agents/cmp-1", json=beat)
            yield f"http://127.0.0.1:{number}"
        finally:
            server.stop()


@pytest.fixture
def ask(site: str, holdfast: Run, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOLDFAST_URL", site)

    def run(*words: str, code: int = 0) -> Any:
        ran = holdfast(*words, *(("-f", "json") if not code else ()))
        assert ran.code == code, ran
        return json.loads(ran.out) if ran.out and not code else ran.err

    return run


def test_rules_are_set_shown_and_gone_back_from(ask: Any, holdfast: Run, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(BUSY)
    assert ask("rule", "set", "base", str(file), "--scope", "group:gpu")["version"] == 1
    file.write_text(BUSY.replace("95", "90"))
    assert ask("rule", "set", "base", str(file))["scope"] == "group:gpu"
    late = ask("rule", "set", "base", str(file), "--replaces", "1", code=1)
    assert "at version 2, not 1" in late
    assert [one["rules"] for one in ask("rule", "list")] == [["busy"]]
    assert "> 95%" in ask("rule", "show", "base", "--at", "1")["text"]
    assert list(ask("rule", "show", "base", "--history")) == ["version 2", "version 1"]
    assert "90%" in ask("rule", "show", "--host", "cmp-1")["text"]
    assert "95%" in ask("rule", "rollback", "base")["text"]
    assert ask("rule", "rollback", "base", "--to", "2")["version"] == 4
    (host,) = ask("rule", "list", "--hosts")
    assert (host["in_force"], host["central"]) == ("2-ab", "none")
    assert host["wanted"] not in ("none", "")
    assert holdfast("rule", "delete", "base").code == 0
    assert ask("rule", "list") == []


def test_a_bad_file_is_answered_line_by_line(ask: Any, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(BUSY.replace("> 95%", "much") + "  - {id: other}\n")
    said = ask("rule", "set", "bad", str(file), code=1).splitlines()
    lines = [line.removeprefix(f"{file}:").split(":")[0] for line in said if str(file) in line]
    assert lines == ["2", "3", "3"]


@pytest.mark.parametrize(
    "words",
    [
        ("rule", "set", "rules.yaml"),
        ("rule", "set", "base", "rules.yaml", "--here"),
        ("rule", "show"),
        ("rule", "rollback"),
        ("rule", "rollback", "base", "--here"),
        ("alarm", "mute", "x"),
    ],
)
def test_what_is_not_understood_ends_with_2(holdfast: Run, words: tuple[str, ...]) -> None:
    assert holdfast(*words).code == 2


def test_alarms_are_listed_answered_and_muted(ask: Any) -> None:
    (alarm,) = ask("alarm", "list")
    assert (alarm["rule"], alarm["state"], alarm["host"]) == ("busy", "firing", "cmp-1")
    assert ask("alarm", "list", "--host", "cmp-2") == []
    assert ask("alarm", "list", "--all", "--rule", "busy", "--limit", "5") == [alarm]
    whole = ask("alarm", "show", alarm["id"])
    assert whole["details"]["samples"] == 60
    assert ask("alarm", "ack", alarm["id"])["acked_by"]
    assert ask("alarm", "mute", alarm["id"], "--for", "2h")["muted_until"]
    assert ask("alarm", "mute", alarm["id"], "--end")["muted_until"] is None
    assert "no alarm" in ask("alarm", "show", "nothing", code=1)
    assert ask("alarm", "end", alarm["id"])["state"] == "ok"
    assert ask("alarm", "list") == []
    assert "no alarm" in ask("alarm", "end", "nothing", code=1)


def test_agents_are_listed(ask: Any) -> None:
    (agent,) = ask("agent", "list")
    assert (agent["host"], agent["lives"], agent["firing"]) == ("cmp-1", "yes", 1)


@pytest.fixture
def recording(tmp_path: Path) -> str:
    """A guest that is busy for a while, a pass each second."""
    world = World(RuleSet())
    lines = []
    for value in (0.5, 0.96, 0.97, 0.98, 0.5, 0.5):
        lines.append(preview.line(world.snapshot({"web": {"util_ratio": value}})))
        world.now += 1
    (tmp_path / "day.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "day.jsonl")


def test_a_recording_shows_how_alarms_would_have_changed(
    holdfast: Run, recording: str, tmp_path: Path
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(BUSY.replace("1m", "2s"))
    ran = holdfast("rule", "test", str(file), recording, "-f", "json")
    assert [(load["before"], load["state"]) for load in json.loads(ran.out)] == [
        ("ok", "pending"),
        ("pending", "firing"),
        ("firing", "ok"),
    ]
    told = json.loads(
        holdfast("rule", "test", str(file), recording, "--notifications", "-f", "json").out
    )
    assert [one["event"] for one in told] == ["raised", "cleared"]
    file.write_text(BUSY.replace("> 95%", "much"))
    bad = holdfast("rule", "test", str(file), recording)
    assert bad.code == 1
    assert f"{file}:2: 'much' is no level" in bad.err


def test_rules_are_tried_on_the_last_hour_of_a_host(ask: Any, site: str, tmp_path: Path) -> None:
    file, swap = tmp_path / "rules.yaml", "{id: swap, on: guest, field: swap_in_kib, when: '> 1'}"
    file.write_text(BUSY + f"  - {swap}\n")
    words = ("rule", "test", str(file), "--host", "CMP-1")
    assert ask(*words) == []
    row = array("f", [0.1, *[0.99] * 9])
    line = Line("guest", "4f2c", "web-1", "blue", values={"util_ratio": row})
    begin = history.slot_of(datetime.now(UTC).timestamp()) - 9
    HoldfastCentre(lambda: Client(site)).samples("cmp-1", history.plain(Hour(begin, 10, (line,))))
    assert [(one["name"], one["state"]) for one in ask(*words)] == [
        ("web-1", "pending"),
        ("web-1", "firing"),
    ]
    assert "neither" in ask(*words, "--notifications", code=1)


def test_a_recording_that_cannot_be_read_is_refused_with_its_line(
    holdfast: Run, recording: str, tmp_path: Path
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(BUSY)
    with open(recording, "a") as more:
        more.write('\n{"host": "x"}\n')
    assert (
        "day.jsonl:7: this is no recorded pass"
        in holdfast("rule", "test", str(file), recording).err
    )
    assert "cannot read" in holdfast("rule", "test", str(file), "nowhere.jsonl").err
