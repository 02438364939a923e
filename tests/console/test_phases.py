# SPDX-License-Identifier: Apache-2.0
"""Where the seconds went, what happened when, what can be ordered: values in, values out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from holdfast.console import incidents
from holdfast.console.incidents import events, possible, sights
from holdfast.recovery.timeline import (
    ConfirmedOff,
    Data,
    MoveEnded,
    MovePostponed,
    Opened,
    StatusChanged,
    fields,
)

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)
STEPS = ("guards", "fence", "force_down", "repair", "prepare", "move", "verify", "report")


def after(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat()


def step(name: str, at: float | None, status: str = "done") -> dict[str, Any]:
    ended = None if at is None else after(at)
    return {"name": name, "status": status, "finished_at": ended, "sentence": f"{name} said so"}


def seen(since: Any = None, **more: Any) -> list[dict[str, Any]]:
    network = {"health": "down", "since": since, "confirmed_by": ["leader", "own gossip"]}
    evidence = {"networks": {"storage": network}, **more}
    return [{"observer": "ctl-1", "vote": "for", "why": "saw it down", "evidence": evidence}]


def event(at: float, data: Data, actor: str = "holdfast") -> dict[str, Any]:
    told = {"kind": data.kind, "data": fields(data), "sentence": data.sentence}
    return {"at": after(at), "actor": actor, **told}


def case(**more: Any) -> dict[str, Any]:
    """Opened at 3 s, closed at 10 s, after a first missed sample at 0 s."""
    done = zip(STEPS, (4, 6, 6.5, 7, 7, 9, 9.5, 10), strict=True)
    return {
        "id": "c0ffee",
        "kind": "host",
        "host": "cmp-7",
        "status": "recovered",
        "cause": "it died",
        "sentence": "all moved",
        "seen": "ctl-1 saw it down",
        "opened_at": after(3),
        "closed_at": after(10),
        "details": {"seen": seen(after(0))},
        "reports": [],
        "steps": [step(name, at) for name, at in done],
        "servers": [],
        "timeline": [],
        "verdicts": [],
        **more,
    }


def drawn(found: dict[str, Any], now: float = 60) -> list[tuple[str, str, float]]:
    begin = incidents.first(found)
    made = incidents.phases(found, begin, NOON + timedelta(seconds=now))
    lived = [one for one in made if one.begin is not None]
    assert sum(one.width for one in lived) == pytest.approx(100, abs=0.01)
    assert all(one.width >= 2 for one in lived)
    for one, following in pairwise(lived):
        assert one.end == following.begin
        assert one.x + one.width == pytest.approx(following.x, abs=0.01)
    return [(one.name, one.state, one.seconds) for one in made]


def test_every_second_from_the_first_missed_sample_to_closed_is_somewhere() -> None:
    known = {"seen": seen(after(0)), "evidence": {"kind": "fenced"}}
    assert drawn(case(details=known)) == [
        ("noticed", "done", 3),
        ("judged", "done", 1),
        ("fenced", "done", 2),
        ("forced down and repaired", "done", 1),
        ("moved", "done", 2),
        ("verified", "done", 0.5),
        ("closed", "done", 0.5),
    ]


def test_a_host_that_was_off_already_was_proven_off_and_not_fenced() -> None:
    names = [name for name, _state, _seconds in drawn(case())]
    assert names[2] == "proven off"
    assert "fenced" not in names


def test_what_is_under_way_lasts_until_now_and_the_rest_is_to_come() -> None:
    steps = [step("guards", 4), step("fence", None, "under way")]
    steps += [step(name, None, "to come") for name in STEPS[2:]]
    assert drawn(case(status="running", closed_at=None, steps=steps), now=20) == [
        ("noticed", "done", 3),
        ("judged", "done", 1),
        ("proven off", "under way", 16),
        ("forced down and repaired", "to come", 0),
        ("moved", "to come", 0),
        ("verified", "to come", 0),
        ("closed", "to come", 0),
    ]


def test_a_wait_is_explained_by_the_reason_of_the_hold() -> None:
    held = event(3, StatusChanged("held", "recovery is paused"))
    found = incidents.phases(case(timeline=[held, held]), NOON, NOON)
    assert found[1].sentence == "held: recovery is paused; guards said so"


def test_an_end_by_order_an_alarm_and_a_second_try_have_their_time_too() -> None:
    aborted = case(status="aborted", steps=[step("guards", 4)], closed_at=after(9))
    assert drawn(aborted)[2:] == [("aborted", "done", 5)]
    alarm = case(kind="alarm", status="open", steps=[], closed_at=None)
    assert drawn(alarm, now=60)[1:] == [("open", "under way", 57)]
    again = case(details={"retried_at": after(8)}, steps=[step("guards", 9)], closed_at=after(9))
    assert drawn(again) == [
        ("noticed", "done", 0),
        ("tried before", "done", 5),
        ("judged", "done", 1),
    ]
    own = case(steps=[step("guards", 4), step("call the caretaker", 9), step("report", 10)])
    assert ("call the caretaker", "done", 5) in drawn(own)


@pytest.mark.parametrize(
    "votes",
    [
        None,
        "nonsense",
        seen("nonsense"),
        seen(5),
        seen(after(-200_000)),
        seen(after(99)),
        ["nonsense", None, {"observer": "x", "evidence": "nonsense"}, {"evidence": ["a"]}],
        [{"observer": "x", "vote": "for", "why": "", "evidence": {"networks": ["a"]}}],
        [{"observer": "x", "vote": "for", "why": "", "evidence": {"networks": {"a": "b"}}}],
    ],
)
def test_evidence_of_any_shape_and_of_wrong_clocks_does_no_harm(votes: Any) -> None:
    strange = case(details={"seen": votes})
    assert incidents.first(strange) == NOON + timedelta(seconds=3)
    assert drawn(strange)[0] == ("noticed", "done", 0)
    assert len(events(strange, [])) >= len(STEPS)
    assert isinstance(sights(votes), list)


def test_events_are_in_order_and_none_appears_twice() -> None:
    told = [
        event(3, Opened("it died")),
        event(6, StatusChanged("running", "fence said so")),
        event(5, ConfirmedOff("ann", "cmp-7", "looked"), "ann"),
    ]
    lease = "1ea5e000-0000-4000-8000-000000000001"
    lines = [{"at": NOON + timedelta(seconds=7), "subject": lease, "sentence": "got cmp-9"}]
    found = events(
        case(timeline=told, details={"seen": seen(after(0)), "back_at": after(99)}), lines
    )
    assert [one.kind for one in found][:5] == ["seen", "decided", "done", "person", "done"]
    assert "running: fence said so" not in [one.sentence for one in found]
    assert found[-1].sentence == "cmp-7 came back and is in use again"
    (repaired,) = [one for one in found if one.kind == "repaired"]
    assert (repaired.lease, repaired.after(NOON)) == (lease, 7)


def observation(since: float, **more: Any) -> dict[str, Any]:
    return {
        "id": "0b5e",
        "observer": "agent@cmp-7",
        "subject": "server:4f2c",
        "kind": "guest",
        "state": "failed",
        "since": NOON + timedelta(seconds=since),
        "created_at": NOON + timedelta(seconds=2),
        "evidence": {"event": "LIFECYCLE", "detail": "STOPPED"},
        **more,
    }


def test_a_timeline_begins_with_the_first_sign_whoever_saw_it() -> None:
    opened = event(3, Opened("it died"))
    guest = case(kind="guest", details={}, timeline=[opened])
    seen_by = [observation(0.5), observation(1, observer="agent@other", evidence="nonsense")]
    first, second, third, *_rest = events(guest, [], seen_by)
    assert first.sentence == "guest failed, says agent@cmp-7: LIFECYCLE STOPPED"
    assert first.at == incidents.first(guest, seen_by)
    assert second.sentence == "guest failed, says agent@other"
    assert third.sentence == "opened: it died"
    report = {"id": "7e57", "type": "VM", "generated_at": after(1), "received_at": after(2.5)}
    reported = case(kind="guest", details={}, timeline=[opened], reports=[report])
    told = events(reported, [])
    assert told[0].at == incidents.first(reported)
    assert [one.sentence for one in told][:2] == [
        "it happened, says a VM report",
        "a VM report came in: notification 7e57",
    ]


def test_a_report_dated_long_ago_or_tomorrow_appears_at_its_arrival() -> None:
    for since in (-200_000, 99):
        (found,) = [
            one for one in events(case(), [], [observation(since)]) if "guest" in one.sentence
        ]
        assert found.after(NOON) == 2


def move(**more: Any) -> dict[str, Any]:
    return {
        "server": "4f2c",
        "name": "web-1",
        "from": "cmp-7",
        "to": "cmp-9",
        "status": "succeeded",
        "message": "runs on cmp-9",
        "started_at": after(5),
        "ended_at": after(9),
        **more,
    }


def test_a_move_has_its_begin_and_the_tries_that_came_to_nothing() -> None:
    told = [
        event(6, MovePostponed("4f2c", 2, "the cloud could not move it to cmp-8")),
        event(7, MoveEnded("4f2c", "failed", "no host took it")),
        event(9, MoveEnded("4f2c", "succeeded", "runs on cmp-9")),
    ]
    found = events(case(steps=[], timeline=told, servers=[move()]), [])
    assert [(one.after(NOON), one.sentence) for one in found if one.kind == "moved"] == [
        (5, "web-1: leaves cmp-7"),
        (6, "web-1: waits 2 s for another try: the cloud could not move it to cmp-8"),
        (7, "web-1: failed: no host took it"),
        (9, "web-1: cmp-7 → cmp-9, succeeded: runs on cmp-9"),
    ]
    goes = events(case(steps=[], servers=[move(status="ongoing", ended_at=None)]), [])
    assert [goe.sentence for goe in goes if goe.kind == "moved"] == [
        "web-1: cmp-7 → cmp-9, under way"
    ]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, []),
        ({"status": "failed"}, ["retry"]),
        ({"status": "failed", "details": {"back_at": after(9)}, "servers": []}, []),
        (
            {
                "status": "failed",
                "details": {"back_at": after(9)},
                "servers": [{"status": "failed"}],
            },
            ["retry"],
        ),
        ({"status": "aborted", "kind": "guest"}, ["retry"]),
        ({"status": "aborted", "kind": "alarm"}, []),
        ({"status": "running"}, ["confirm-off", "abort"]),
        ({"status": "running", "details": {"evidence": {"sentence": "off"}}}, ["abort"]),
        ({"status": "held", "kind": "guest"}, ["abort"]),
        (
            {"status": "held", "verdicts": [{"guard": "mass_failure", "passed": False}]},
            ["approve", "confirm-off", "abort"],
        ),
        (
            {
                "status": "held",
                "verdicts": [
                    {"guard": "paused", "passed": False},
                    {"guard": "mass_failure", "passed": False},
                ],
            },
            ["confirm-off", "abort"],
        ),
    ],
)
def test_the_page_offers_only_possible_actions(fields: dict[str, Any], names: list[str]) -> None:
    found = possible(case(**fields), lambda _rule: True)
    assert [one.name for one in found] == names
    for order in found:
        noun = "recovery" if order.name == "approve" else "incident"
        assert list(order.command[:3]) == ["holdfast", noun, order.name]
    assert possible(case(**fields), lambda _rule: False) == []


def test_an_approval_says_where_it_counts_and_is_asked_for_twice() -> None:
    held = case(status="held", verdicts=[{"guard": "mass_failure", "passed": False}])
    there = possible(held, lambda _rule: True, "rack a")[0]
    assert there.command[3:5] == ["--domain", "rack a"]
    assert there.hidden == {"domain": "rack a"}
    everywhere = possible(held, lambda _rule: True)[0]
    assert "--domain" not in everywhere.command
    for one, where in ((there, "in rack a"), (everywhere, "everywhere")):
        assert all(where in said for said in (one.label, one.what, one.confirm))
