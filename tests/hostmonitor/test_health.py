# SPDX-License-Identifier: Apache-2.0
"""Health of a host on its networks: judged by the HA matrix, after the time it says, once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.hostmonitor import health, matrix
from holdfast.hostmonitor.health import HealthRecords, Moment, Report, Sight
from holdfast.hostmonitor.matrix import DOWN, UNKNOWN, UP
from holdfast.ports.membership import LEFT

NETWORKS = ("manage", "tenant", "storage")
DEFAULT = matrix.default(NETWORKS)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WELL_FOR_S = 10.0


@dataclass
class Watcher:
    """A monitor without threads: networks that are said to be so, and time that is said to pass."""

    ha_matrix: matrix.Matrix = DEFAULT
    at: float = 100.0
    book: HealthRecords = field(default_factory=HealthRecords)
    sights: dict[str, Sight] = field(default_factory=dict)
    said: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        for network in self.ha_matrix.networks:
            self.see(network, {"cmp-1": UP, "cmp-2": UP})

    def see(self, network: str, states: dict[str, str], **more: object) -> Watcher:
        """A network that is seen, and proven; `more` says in what it is not."""
        sight = Sight(network, states, states, seen_at=self.at, proven_at=self.at, leader="l:8300")
        self.sights[network] = replace(sight, **more)  # type: ignore[arg-type]
        return self

    def cut(self, *networks: str, host: str = "cmp-1") -> Watcher:
        for network in networks:
            self.see(network, {**self.sights[network].states, host: DOWN})
        return self

    def mend(self, *networks: str, host: str = "cmp-1") -> Watcher:
        for network in networks:
            self.see(network, {**self.sights[network].states, host: UP})
        return self

    def pass_time(self, seconds: float) -> list[str]:
        """What is reported at its end."""
        self.at += seconds
        return self.judge()

    def judge(self) -> list[str]:
        moment = Moment(self.at, NOON + timedelta(seconds=self.at))
        sights = [self.sights[name] for name in self.ha_matrix.networks]
        self.book, reports = health.judge(self.book, sights, self.ha_matrix, moment, WELL_FOR_S)
        self.said += reports
        return [f"{report.host} {report.state}" for report in reports]

    def opinion(self, host: str = "cmp-1") -> str:
        rows = health.view(self.book, list(self.sights.values()))
        (found,) = [row["opinion"] for row in rows if host in row["hosts"]]
        return str(found)


def test_a_host_whose_storage_is_down_is_reported_once_after_the_time_of_the_rule() -> None:
    watcher = Watcher()
    assert watcher.cut("storage").judge() == []
    assert watcher.book.due == watcher.at + matrix.DEFAULT_FOR_S
    assert watcher.pass_time(matrix.DEFAULT_FOR_S - 0.1) == []
    assert watcher.opinion() == "none"
    assert watcher.pass_time(0.1) == ["cmp-1 failed"]
    assert watcher.opinion() == "recovery"
    assert watcher.pass_time(60) == []


def test_a_host_down_before_the_monitor_started_is_reported_too() -> None:
    watcher = Watcher()
    watcher.book = HealthRecords()
    watcher.cut("manage", "storage").judge()
    assert watcher.pass_time(matrix.DEFAULT_FOR_S) == ["cmp-1 failed"]


def test_a_host_flapping_faster_than_the_rule_is_never_reported() -> None:
    watcher = Watcher()
    for _ in range(50):
        assert watcher.cut("storage").judge() == []
        assert watcher.pass_time(2.0) == []
        assert watcher.mend("storage").judge() == []
        assert watcher.pass_time(0.1) == []


def test_a_reported_host_is_well_only_after_a_while_and_fails_anew_only_then() -> None:
    watcher = Watcher()
    watcher.cut("storage").judge()
    assert watcher.pass_time(5) == ["cmp-1 failed"]
    watcher.mend("storage").judge()
    assert watcher.pass_time(WELL_FOR_S - 1) == []
    watcher.cut("storage").judge()
    assert watcher.pass_time(60) == []  # it was reported and has not been well since
    watcher.mend("storage").judge()
    assert watcher.pass_time(WELL_FOR_S) == ["cmp-1 well"]
    watcher.cut("storage").judge()
    assert watcher.pass_time(5) == ["cmp-1 failed"]


def test_a_host_that_is_missing_on_a_network_is_unknown_there_and_others_do_not_move_up() -> None:
    watcher = Watcher().see("manage", {"cmp-2": UP})
    assert watcher.cut("tenant").judge() == []
    assert watcher.book.tracks["cmp-1"].health == (UNKNOWN, DOWN, UP)
    assert watcher.pass_time(60) == []


def test_a_host_which_left_on_purpose_is_no_failure() -> None:
    watcher = Watcher()
    for network in NETWORKS:
        watcher.see(network, {"cmp-1": LEFT, "cmp-2": UP})
    assert watcher.pass_time(60) == []
    assert "cmp-1" not in watcher.book.tracks
    watcher = Watcher().see("storage", {"cmp-1": LEFT, "cmp-2": UP})
    assert watcher.pass_time(60) == []
    assert watcher.book.tracks["cmp-1"].health == (UP, UP, UNKNOWN)


@pytest.mark.parametrize(
    "doubt",
    [
        {"gossip": {"cmp-1": UP, "cmp-2": UP}},
        {"proven_at": 99.0},
        {"why": "no leader"},
    ],
    ids=["our gossip sees it", "no proof since", "no leader"],
)
def test_an_unconfirmed_state_is_not_trusted(doubt: dict[str, object]) -> None:
    watcher = Watcher().see("storage", {"cmp-1": DOWN, "cmp-2": UP}, **doubt)
    assert watcher.judge() == []
    assert watcher.pass_time(60) == []
    assert watcher.opinion() == "undecided"
    assert watcher.book.tracks["cmp-1"].health[2] == UNKNOWN


def test_an_agent_that_never_heard_of_the_host_does_not_stand_in_the_way() -> None:
    """It was started when the host was dead already."""
    watcher = Watcher().see("storage", {"cmp-1": DOWN, "cmp-2": UP}, gossip={"cmp-2": UP})
    watcher.judge()
    assert watcher.pass_time(matrix.DEFAULT_FOR_S) == ["cmp-1 failed"]
    assert "own gossip" not in watcher.said[0].evidence["networks"]["storage"]["confirmed_by"]


def test_a_blind_monitor_reports_no_host_and_forgets_no_host() -> None:
    watcher = Watcher()
    watcher.judge()
    for network in NETWORKS:
        watcher.see(network, {"cmp-1": DOWN, "cmp-2": DOWN}, why="no leader")
    assert watcher.pass_time(60) == []
    assert watcher.opinion() == "undecided"
    assert set(watcher.book.tracks) == {"cmp-1", "cmp-2"}


def test_to_be_blind_for_a_moment_starts_the_waiting_anew() -> None:
    watcher = Watcher()
    watcher.cut("storage").judge()
    watcher.pass_time(2)
    down = watcher.sights["storage"]
    watcher.see("storage", dict(down.states), why="no leader").judge()
    watcher.sights["storage"] = down
    watcher.judge()
    assert watcher.pass_time(2) == []
    assert watcher.pass_time(1) == ["cmp-1 failed"]


def test_a_report_says_which_network_since_when_and_who_confirmed_it() -> None:
    watcher = Watcher()
    watcher.cut("storage").judge()
    since = NOON + timedelta(seconds=watcher.at)
    watcher.pass_time(5)
    (report,) = watcher.said
    assert report.since == since
    storage = report.evidence["networks"]["storage"]
    assert (storage["health"], storage["since"]) == ("down", since.isoformat())
    assert storage["confirmed_by"][:2] == ["leader l:8300", "own gossip"]
    assert report.evidence["networks"]["manage"]["health"] == "up"
    assert "storage" in report.evidence["rule"]


def test_an_alert_can_still_become_a_failure_and_not_the_other_way_round() -> None:
    text = """
networks: [manage, tenant, storage]
for: 1s
rules:
  - {when: {storage: down, manage: down}, do: recovery}
  - {when: {storage: down}, do: alert}
otherwise: none
"""
    watcher = Watcher(matrix.parse(text, NETWORKS))
    watcher.cut("storage").judge()
    assert watcher.pass_time(1) == ["cmp-1 alert"]
    watcher.cut("manage").judge()
    assert watcher.pass_time(1) == ["cmp-1 failed"]
    watcher.mend("manage").judge()
    assert watcher.pass_time(60) == []
    assert watcher.opinion() == "recovery"


def test_a_host_that_answers_a_probe_is_not_lost_and_one_that_does_not_says_who_confirmed_it() -> (
    None
):
    down = {"cmp-1": DOWN, "cmp-2": DOWN}
    probed = {"unanswered": frozenset({"cmp-2"}), "probe": "1 of 2 answer"}
    watcher = Watcher().see("storage", down, **probed)
    watcher.judge()
    assert watcher.pass_time(matrix.DEFAULT_FOR_S) == ["cmp-2 failed"]
    assert watcher.book.tracks["cmp-1"].health[2] == UNKNOWN
    assert watcher.said[0].evidence["networks"]["storage"]["confirmed_by"][-1] == "1 of 2 answer"


ALERTS = """
for: 1s
rules:
  - {when: {storage: down}, do: recovery, for: 2s}
  - {when: {manage: down}, do: alert}
otherwise: none
"""


def test_undecided_between_alert_and_recovery_is_reported_as_an_alert_and_no_opinion() -> None:
    watcher = Watcher(matrix.parse(ALERTS, NETWORKS))
    watcher.see("storage", {"cmp-1": UP, "cmp-2": UP}, why="no leader")
    assert watcher.cut("manage").judge() == []
    assert watcher.book.due == watcher.at + 2.0
    assert watcher.pass_time(1.9) == []
    assert watcher.pass_time(0.1) == ["cmp-1 alert"]
    assert watcher.opinion() == "undecided"
    assert watcher.said[0].evidence["undecided"] is True
    assert "storage is unknown" in watcher.said[0].evidence["rule"]
    assert watcher.pass_time(60) == []
    watcher.see("storage", {"cmp-1": DOWN, "cmp-2": UP}).judge()  # its quorum is back
    assert watcher.pass_time(2.0) == ["cmp-1 failed"]
    assert "undecided" not in watcher.said[1].evidence
    watcher.see("storage", {"cmp-1": DOWN, "cmp-2": UP}, why="no leader").judge()
    assert watcher.pass_time(60) == []  # worse was reported
    assert watcher.opinion() == "undecided"


def test_a_host_lost_on_all_networks_is_announced_while_the_quorum_of_one_is_lost() -> None:
    """By the default, in which up on storage would mean that nothing is done."""
    watcher = Watcher().see("storage", {"cmp-1": UP, "cmp-2": UP}, why="no leader")
    watcher.cut("manage").judge()
    assert watcher.pass_time(60) == []  # it lives on tenant
    watcher.cut("tenant").judge()
    assert watcher.pass_time(matrix.DEFAULT_FOR_S - 0.1) == []
    assert watcher.pass_time(0.1) == ["cmp-1 alert"]
    watcher.see("storage", {"cmp-1": UP, "cmp-2": UP})
    watcher.mend("manage", "tenant").judge()
    assert watcher.pass_time(WELL_FOR_S) == ["cmp-1 well"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(NETWORKS),
            st.sampled_from([UP, DOWN, LEFT]),
            st.sampled_from([UP, DOWN]),
            st.sampled_from(["", "no leader"]),
            st.floats(0, 8),
        ),
        max_size=30,
    )
)
@example(
    [
        ("manage", UP, UP, "no leader", 0.0),
        ("tenant", UP, UP, "no leader", 0.0),
        ("storage", DOWN, DOWN, "", 3.0),
        ("storage", LEFT, UP, "", 0.0),
        ("storage", DOWN, DOWN, "", 3.0),
    ]
)
def test_reports_of_a_host_take_turns_and_rest_on_what_lasted(
    story: list[tuple[str, str, str, str, float]],
) -> None:
    """No report comes twice unless the host was well or left between. The monitor reports a failure
    only after storage was down, confirmed, for as long as the rule says."""
    watcher = Watcher()
    down_since: float | None = None
    last = health.WELL
    for network, state, gossip, why, passes in story:
        states = {"cmp-1": state, "cmp-2": UP}
        watcher.see(network, states, gossip={"cmp-1": gossip, "cmp-2": UP}, why=why)
        for wait in (0.0, passes):
            watcher.at += wait
            real = watcher.sights["storage"].health("cmp-1") == DOWN
            down_since = (watcher.at if down_since is None else down_since) if real else None
            for said in watcher.judge():
                assert said != f"cmp-1 {last}"
                last = said.removeprefix("cmp-1 ")
                if last == health.FAILED:
                    assert down_since is not None
                    assert watcher.at - down_since >= matrix.DEFAULT_FOR_S - 1e-6
            if "cmp-1" not in watcher.book.tracks:  # the host left: a new story begins
                last = health.WELL
