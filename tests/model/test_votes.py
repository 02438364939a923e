# SPDX-License-Identifier: Apache-2.0
"""What several monitors say together: counted by the rules alone, with neither clock nor table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.hostmonitor import matrix
from holdfast.model.errors import InvalidInput
from holdfast.model.votes import (
    Ballot,
    Count,
    MonitorReport,
    View,
    combined,
    count,
    everybody,
    grounds,
    in_force,
    listed,
    picture,
    report_text,
)

NOW = datetime(2030, 1, 1, 10, 0, 10, tzinfo=UTC)
NETWORKS = ("manage", "storage")
HOST = "cmp-1"
#: What a monitor can see of a host, and what it then thinks.
WELL, FAILED = (("up", "up"), "none"), (("up", "down"), "recovery")
ALERTED, BLIND = (("down", "up"), "alert"), (("up", "unknown"), "undecided")
WAITING = (("up", "down"), "none")
Seen = tuple[tuple[str, ...], str]


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def body(hosts: Mapping[str, Seen], sighted: bool = True, **more: Any) -> dict[str, Any]:
    sight = {"sighted": sighted, "leader": "", "since": "", "why": "" if sighted else "no leader"}
    return {
        "networks": {"manage": {**sight, "sighted": True}, "storage": sight},
        "ha_matrix": matrix.default(NETWORKS).to_plain(),
        "rows": [
            {
                "health": dict(zip(NETWORKS, health, strict=True)),
                "opinion": opinion,
                "hosts": [host],
            }
            for host, (health, opinion) in hosts.items()
        ],
        **more,
    }


def view(name: str, seen: Seen | None, at: float = 0.5, silent: float = 1.0) -> View:
    hosts = {} if seen is None else {HOST: seen}
    return View(name, "host", ago(at), ago(silent), 5.0, picture(body(hosts)))


def word(name: str, state: str, at: float = 2.0, since: float = 7.0) -> MonitorReport:
    networks = {"storage": {"health": "down", "since": ago(since).isoformat()}}
    return MonitorReport(f"o-{name}", name, state, ago(at), ago(since), {"networks": networks})


def counted(
    views: Sequence[View],
    words: Sequence[MonitorReport] = (),
    needed: int = 1,
    host: str = HOST,
    registered: int | None = None,
) -> Count:
    known = len(views) if registered is None else registered
    return count(Ballot(host, NOW, known, views, {one.observer: one for one in words}), needed)


def cast(result: Count) -> list[str]:
    return [vote.vote for vote in result.votes]


@pytest.mark.parametrize(
    ("seen", "state", "vote"),
    [
        (FAILED, "failed", "for"),
        (FAILED, None, "abstain"),  # it has not reported it: nothing to go by
        (FAILED, "well", "abstain"),
        (WELL, "failed", "against"),  # it reported it, and sees it well since
        (WELL, None, "against"),
        (ALERTED, "failed", "against"),
        (ALERTED, "alert", "against"),
        (ALERTED, None, "abstain"),
        (BLIND, "failed", "abstain"),
        (BLIND, None, "abstain"),
        (WAITING, None, "abstain"),
        (WAITING, "failed", "abstain"),  # started anew, it has not seen enough of it
        (None, "failed", "abstain"),
        (None, None, "abstain"),
    ],
)
def test_a_view_that_is_newer_than_the_report_counts(
    seen: Seen | None, state: str | None, vote: str
) -> None:
    words = [word("a", state)] if state else []
    assert cast(counted([view("a", seen)], words)) == [vote]


@pytest.mark.parametrize(("state", "vote"), [("failed", "for"), ("well", "against")])
@pytest.mark.parametrize("seen", [WELL, FAILED, BLIND, WAITING, None])
def test_a_report_that_is_newer_than_the_view_counts(
    seen: Seen | None, state: str, vote: str
) -> None:
    assert cast(counted([view("a", seen, at=3.0)], [word("a", state, at=2.0)])) == [vote]


def test_a_monitor_silent_for_three_heartbeats_does_not_count() -> None:
    said = [word("a", "failed")]
    assert cast(counted([view("a", FAILED, silent=15.0)], said)) == ["for"]
    assert cast(counted([view("a", FAILED, silent=15.1)], said)) == ["abstain"]


def test_a_monitor_without_a_view_has_no_vote() -> None:
    assert not counted([], [word("a", "failed")]).is_enough


@pytest.mark.parametrize(
    ("seen", "needed", "enough", "over"),
    [
        ([FAILED], 1, True, False),
        ([FAILED], 2, False, False),
        ([FAILED, WELL], 1, False, False),
        ([FAILED, BLIND], 1, True, False),
        ([FAILED, BLIND, BLIND], 1, False, False),
        ([FAILED, FAILED, BLIND], 1, True, False),
        ([FAILED, FAILED, WELL, WELL], 1, False, False),
        ([FAILED, FAILED, FAILED, WELL, WELL], 1, True, False),
        ([FAILED, FAILED, WELL], 2, True, False),
        ([FAILED, WELL, WELL], 1, False, True),
        ([FAILED, ALERTED], 1, False, False),
        ([WELL], 1, False, True),
        ([BLIND], 1, False, False),
        ([WAITING, WAITING, WELL], 1, False, True),
        ([], 1, False, False),
    ],
)
def test_recovery_needs_a_majority_of_votes_and_the_minimum(
    seen: list[Seen], needed: int, enough: bool, over: bool
) -> None:
    views = [view(f"m{place}", one) for place, one in enumerate(seen)]
    states = {FAILED: "failed", ALERTED: "alert"}
    words = [word(f"m{i}", states[one]) for i, one in enumerate(seen) if one in states]
    result = counted(views, words, needed)
    assert (result.is_enough, result.is_over) == (enough, over)


@pytest.mark.parametrize(("registered", "enough"), [(1, True), (2, True), (3, False), (9, False)])
def test_one_alone_is_enough_only_where_fewer_than_three_are_registered(
    registered: int, enough: bool
) -> None:
    found = counted([view("a", FAILED)], [word("a", "failed")], registered=registered)
    assert (found.is_enough, found.is_alert) == (enough, not enough)
    assert found.needed == (1 if enough else 2)


def test_people_are_not_alerted_of_a_vote_that_another_monitor_may_yet_join() -> None:
    said = [word("a", "failed")]
    waiting = counted([view("a", FAILED), view("b", WAITING)], said, registered=3)
    assert (waiting.is_enough, waiting.is_alert) == (False, False)
    blind = counted([view("a", FAILED), view("b", BLIND)], said, registered=3)
    assert (blind.is_enough, blind.is_alert) == (False, True)


def doubt(name: str, at: float = 2.0) -> MonitorReport:
    said = word(name, "alert", at)
    return replace(said, evidence={**said.evidence, "undecided": True})


@pytest.mark.parametrize("at", [0.5, 3.0], ids=["view after report", "report after view"])
def test_an_alert_for_what_cannot_be_seen_is_no_vote_against_recovery(at: float) -> None:
    lost = (("down", "unknown"), "undecided")
    alone = counted([view("a", lost, at)], [doubt("a")])
    assert (cast(alone), alone.is_alert, alone.is_enough) == (["abstain"], True, False)
    both = counted([view("a", lost, at), view("b", FAILED)], [doubt("a"), word("b", "failed")])
    assert both.is_enough
    against = counted([view("a", lost, at), view("b", WELL)], [doubt("a")])
    assert (against.is_alert, against.is_over) == (False, True)
    assert not counted([view("a", lost, at)], [doubt("a")], needed=2).is_alert
    decided = counted(
        [view("a", ALERTED, 0.5), view("b", FAILED)], [doubt("a"), word("b", "failed")]
    )
    assert not decided.is_enough  # it sees again, and that it is an alert


def test_votes_for_an_alert_and_votes_for_recovery_alert_together() -> None:
    views = [view("a", FAILED), view("b", ALERTED), view("c", WELL)]
    result = counted(views, [word("a", "failed"), word("b", "alert")])
    assert (result.is_enough, result.is_alert, result.is_over) == (False, True, False)
    fewer = counted(views[1:], [word("b", "alert")])
    assert not fewer.is_alert


def test_a_monitor_that_does_not_see_on_a_network_knows_nothing_there() -> None:
    seen = picture(body({HOST: FAILED}, sighted=False)).row(HOST)
    assert seen is not None
    assert seen.health == {"manage": "up", "storage": "unknown"}


def test_names_are_found_short_and_full_unless_several_could_be_meant() -> None:
    seen = picture(body({"CMP-1.a.org": WELL, "cmp-2": FAILED, "cmp-3.a": WELL, "cmp-3.b": WELL}))
    assert seen.name("cmp-1") == "cmp-1.a.org"
    assert seen.name("cmp-2.anywhere") == "cmp-2"
    assert seen.name("cmp-3") is None
    assert seen.name("cmp-3.b.") == "cmp-3.b"
    assert seen.bad() == {"cmp-2"}


def test_health_is_what_most_know_and_the_worse_of_as_many() -> None:
    views = [view("a", WELL), view("b", FAILED), view("c", BLIND), view("d", None)]
    assert combined(views, HOST, NETWORKS) == {"manage": "up", "storage": "down"}
    assert combined(views[:1] * 2 + views[1:], HOST, NETWORKS)["storage"] == "up"
    assert combined(views[2:], HOST, NETWORKS)["storage"] == "unknown"
    assert everybody(views, NETWORKS) == {HOST: combined(views, HOST, NETWORKS)}


def test_the_matrix_of_most_is_in_force() -> None:
    other = matrix.default(NETWORKS).to_plain()
    other["rules"][0]["action"] = "alert"
    odd = View("a", "host", NOW, NOW, 5.0, picture(body({}, ha_matrix=other)))
    ha_matrix, differing = in_force([odd, view("b", WELL), view("c", WELL)])
    assert ha_matrix == matrix.default(NETWORKS)
    assert differing == [odd]
    assert in_force([]) == (None, [])


def test_a_view_with_an_invalid_matrix_is_refused() -> None:
    with pytest.raises(InvalidInput):
        picture(body({}, ha_matrix={}))


def test_a_sentence_names_each_monitor_and_the_networks_down() -> None:
    views = [view("a", FAILED), view("b", FAILED), view("c", BLIND), view("d", WELL)]
    result = counted(views, [word("a", "failed"), word("b", "failed", since=6.0)])
    assert result.sentence() == (
        "a and b saw cmp-1 down on storage since 10:00:03; c could not see on storage; d saw it"
        " well"
    )
    assert report_text("it", result.plain()).startswith("a and b saw it down on storage since")
    assert report_text(HOST, []) == ""


def test_the_evidence_of_votes_for_recovery_is_listed() -> None:
    storage = {"health": "down", "since": ago(7).isoformat(), "confirmed_by": ["leader x", "y"]}
    evidence = {"networks": {"storage": storage, "manage": {"health": "up"}}, "rule": "line 7: so"}
    seen = [
        {"observer": "a", "vote": "for", "why": "", "evidence": evidence},
        {"observer": "b", "vote": "for", "why": "", "evidence": {"networks": "nonsense"}},
        {"observer": "c", "vote": "against", "why": "saw it well"},
    ]
    assert grounds(seen) == [
        "a: storage down since 10:00:03, by leader x, y; line 7: so",
        "b: no evidence was sent",
    ]


def test_names_are_listed_as_people_would() -> None:
    assert [listed("abc"[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
