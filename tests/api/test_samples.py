# SPDX-License-Identifier: Apache-2.0
"""The numbers of a host through the API: asked for by a POST, read by a GET that changes nothing,
sent by the agent of that host and no other, and by nobody while nobody looks."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.api import tokens
from holdfast.metrics import history
from holdfast.metrics.history import MOST_BYTES, POINTS, Hour, Line
from holdfast.model.observation import AGENT_HEADER
from tests.api.conftest import Build
from tests.api.house import OWN, House, basic_config
from tests.api.rules import beat_body

SECRET = b"s" * 40
LOOK, SEND = f"{OWN}/hosts/cmp-1/samples", f"{OWN}/agents/cmp-1/samples"


def now() -> int:
    return history.slot_of(datetime.now(UTC).timestamp())


def some(begin: int, count: int) -> dict[str, Any]:
    row = array("f", [0.25 * place for place in range(count)])
    line = Line("guest", "4f2c", "web-1", "blue", values={"util_ratio": row})
    return history.plain(Hour(begin, count, (line,)))


def beat(house: House) -> dict[str, Any]:
    answer = house.call("PUT", f"{OWN}/agents/CMP-1", json=beat_body())
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json["agent"]
    return said


def test_a_read_of_samples_changes_nothing(house: House) -> None:
    before = house.dump()
    answer = house.call("GET", LOOK)
    assert answer.json["samples"] == {
        "host": "cmp-1", "wanted_until": None, "at": None, "fresh": False, "begin": 0,
        "points": 0, "lines": [], "left_out": 0, "simulated": False,
    }  # fmt: skip
    assert house.dump() == before
    assert "samples" not in beat(house)


def test_a_view_of_live_metrics_requests_samples_and_shows_them(house: House) -> None:
    wanted = house.call("POST", LOOK)
    assert wanted.status_code == 202, wanted.text
    assert wanted.json["samples"]["wanted_until"] > datetime.now(UTC).isoformat()
    assert beat(house)["samples"] == {"after": -1}
    end = now() + 1
    assert house.call("PUT", SEND, json=some(end - 9, 9)).status_code == 204
    assert beat(house)["samples"] == {"after": end - 1}
    seen = house.call("GET", f"{OWN}/hosts/CMP-1/samples").json["samples"]
    assert (seen["host"], seen["fresh"], seen["points"]) == ("cmp-1", True, 9)
    (line,) = history.read(seen).lines
    assert (line.name, list(line.values["util_ratio"])[:3]) == ("web-1", [0, 0.25, 0.5])


def test_what_nobody_wants_is_taken_and_not_kept(house: House) -> None:
    before = house.dump()
    assert house.call("PUT", SEND, json=some(now(), 1)).status_code == 204
    assert house.dump() == before


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"begin": 1, "points": 1},
        {"begin": 1, "points": 1, "lines": [{}]},
        {"begin": 1, "points": POINTS + 1, "lines": []},
        {"begin": 1, "points": 1, "lines": [{"kind": "guest", "id": "x", "values": {"a": ""}}]},
        {**some(1, 2), "points": 3},
        some(2**31, 1),
    ],
)
def test_what_is_no_hour_is_refused_and_changes_nothing(shared: House, body: Any) -> None:
    house = shared
    house.call("POST", LOOK)
    before = house.dump()
    answer = house.call("PUT", SEND, json=body)
    assert answer.status_code == 400, answer.text
    assert house.dump() == before


def test_more_than_an_hour_of_a_full_host_is_too_much(house: House) -> None:
    body = b'{"begin": 1, "points": 0, "lines": [' + b" " * MOST_BYTES + b"]}"
    assert house.call("PUT", SEND, body=body).status_code == 413


def test_an_agent_sends_samples_of_its_own_host_only_and_reads_none(
    build: Build, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    house = build(basic_config(tmp_path) + f"agent_secret_file = {tmp_path / 'secret'}\n")
    shown = {AGENT_HEADER: tokens.agent_token("cmp-1", SECRET)}
    for host in ("cmp-1", "cmp-2"):
        assert house.call("POST", f"{OWN}/hosts/{host}/samples", "admin").status_code == 202
    for host, status in (("cmp-1", 204), ("cmp-2", 403)):
        path = f"{OWN}/agents/{host}/samples"
        assert house.call("PUT", path, headers=shown, json=some(now(), 1)).status_code == status
    for method in ("GET", "POST"):
        assert house.call(method, LOOK, headers=shown).status_code == 403
    assert house.core.store.samples.samples_of("cmp-1").hour.points == 1
    assert house.core.store.samples.samples_of("cmp-2").hour.points == 0


def test_a_name_that_is_too_long_is_refused(house: House) -> None:
    for method in ("GET", "POST"):
        assert house.call(method, f"{OWN}/hosts/{'x' * 300}/samples").status_code == 400


HOT = "rules:\n  - {id: hot, on: guest, field: util_ratio, when: '> 90%', for: 30s}\n"


def test_rules_are_seen_on_the_last_hour_before_they_are_set(house: House) -> None:
    path, asked = f"{OWN}/alarm-rules-preview", {"text": HOT, "hosts": ["CMP-1", "cmp-2"]}
    assert house.call("POST", path, json=asked).json["preview"] == {
        "hosts": [], "stories": [], "left_out": 0, "silent": {},
    }  # fmt: skip
    house.call("POST", LOOK)
    house.call("PUT", SEND, json=some(now() - 8, 9))  # up to 2.0
    before = house.dump()
    seen = house.call("POST", path, json=asked).json["preview"]
    assert seen["hosts"] == ["cmp-1"]
    (story,) = seen["stories"]
    assert (story["rule"], story["name"], story["state"]) == ("hot", "web-1", "firing")
    assert [change["state"] for change in story["changes"]] == ["pending", "firing"]
    assert house.dump() == before


def test_bad_rules_are_refused_by_line_there_too(house: House) -> None:
    bad = {"text": HOT.replace("> 90%", "about 3"), "hosts": ["cmp-1"]}
    answer = house.call("POST", f"{OWN}/alarm-rules-preview", json=bad)
    assert answer.status_code == 400
    assert [problem["line"] for problem in answer.json["errors"][0]["details"]["problems"]] == [2]
    for wrong in ({"text": HOT}, {"text": HOT, "hosts": ["x"] * 9}, {"text": "", "hosts": ["x"]}):
        assert house.call("POST", f"{OWN}/alarm-rules-preview", json=wrong).status_code == 400
