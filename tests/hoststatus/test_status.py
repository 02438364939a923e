# SPDX-License-Identifier: Apache-2.0
"""When a host counts as failed, and when as mended: rules without clock, cloud or table."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.hoststatus.status import (
    AUTO_DISABLED,
    DISABLED,
    DOWN,
    MOST_SOURCES,
    RETURNING,
    SUSPECT,
    UNKNOWN,
    UP,
    VERDICTS,
    HostStatus,
    StatusReport,
    from_plain,
    judge,
    ripen,
    to_plain,
)
from holdfast.model.errors import InvalidInput

#: However busy the machine is.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@dataclass
class Rules:
    down_samples: int = 2
    down_for_s: float = 0.0
    healthy_after_s: float = 300.0
    flap_holdoff_s: float = 600.0
    poll_interval_s: float = 100.0
    disabled_is_failure: bool = False
    auto_disabled_is_failure: bool = False


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def saw(seconds: float, verdict: str, source: str = "nova:service", **more: object) -> StatusReport:
    return StatusReport(host="h", source=source, verdict=verdict, at=at(seconds), **more)  # type: ignore[arg-type]


def story(*reports: StatusReport, rules: Rules | None = None) -> list[str]:
    """The states one after the other; each report is heard as it is made."""
    status, found = HostStatus(), []
    for report in reports:
        status = judge(status, report, rules or Rules(), report.at)
        found.append(status.state)
    return found


FORCED = {"decisive": True, "reason": "forced down"}


@pytest.mark.parametrize(
    ("told", "states"),
    [
        pytest.param([saw(0, DOWN)], [SUSPECT], id="one bad sample is no failure"),
        pytest.param([saw(0, DOWN), saw(2, DOWN)], [SUSPECT, DOWN], id="two in a row are"),
        pytest.param(
            [saw(0, DOWN), saw(2, UP), saw(4, DOWN)], [SUSPECT, UP, SUSPECT], id="but in a row"
        ),
        pytest.param([saw(0, DOWN, **FORCED)], [DOWN], id="an admin's word counts at once"),
        pytest.param(
            [saw(0, DOWN), saw(1, DOWN, "nova:hypervisor")],
            [SUSPECT, SUSPECT],
            id="two sources that look once each are not two looks",
        ),
        pytest.param([saw(0, DISABLED, decisive=True)], [UP], id="maintenance is no failure"),
        pytest.param([saw(0, AUTO_DISABLED), saw(1, AUTO_DISABLED)], [UP, UP], id="nor is Nova's"),
        pytest.param(
            [saw(0, DOWN), saw(1, UNKNOWN), saw(2, DOWN)],
            [SUSPECT, SUSPECT, DOWN],
            id="unknown neither counts nor interrupts",
        ),
        pytest.param(
            [saw(5, UP), saw(3, DOWN, **FORCED)], [UP, UP], id="old news of a source is no news"
        ),
        pytest.param(
            [saw(5, UP), saw(3, DOWN, "recovery", **FORCED)], [UP, DOWN], id="of another it is"
        ),
        pytest.param([saw(0, DOWN), saw(0, DOWN)], [SUSPECT, SUSPECT], id="told twice is one look"),
    ],
)
def test_the_states_after_a_few_status_reports(told: list[StatusReport], states: list[str]) -> None:
    assert story(*told) == states


def test_disabled_counts_where_the_site_says_so() -> None:
    rules = Rules(disabled_is_failure=True, auto_disabled_is_failure=True)
    assert story(saw(0, DISABLED, decisive=True), rules=rules) == [DOWN]
    assert story(saw(0, AUTO_DISABLED), saw(1, AUTO_DISABLED), rules=rules) == [SUSPECT, DOWN]


def test_the_down_time_counts_from_the_date_in_the_report() -> None:
    rules = Rules(down_samples=1, down_for_s=60)
    assert story(saw(0, DOWN), saw(59, DOWN), saw(60, DOWN), rules=rules) == [
        SUSPECT,
        SUSPECT,
        DOWN,
    ]
    assert story(saw(0, DOWN, since=at(-60)), rules=rules) == [DOWN]


def test_a_failed_host_returns_only_after_it_has_been_well_for_long() -> None:
    told = [saw(0, DOWN, **FORCED), *(saw(400 + 100 * n, UP) for n in range(4))]
    assert story(*told) == [DOWN, RETURNING, RETURNING, RETURNING, UP]


def test_a_returning_host_with_a_bad_report_begins_anew() -> None:
    told = [saw(0, DOWN, **FORCED), saw(700, UP), saw(900, DOWN), saw(950, UP), saw(1249, UP)]
    assert story(*told, saw(1250, UP)) == [DOWN, RETURNING, DOWN, RETURNING, RETURNING, UP]


def test_time_without_a_poll_does_not_count_as_healthy() -> None:
    rules = Rules(poll_interval_s=10)
    down = judge(HostStatus(), saw(0, DOWN, **FORCED), rules, at(0))
    looked = down
    for seconds in range(700, 1000, 10):
        looked = judge(looked, saw(seconds, UP), rules, at(seconds))
    assert looked.state == RETURNING
    assert judge(looked, saw(1000, UP), rules, at(1000)).state == UP
    gone = judge(down, saw(700, UP), rules, at(700))
    for seconds in range(710, 790, 10):
        gone = judge(gone, saw(seconds, UP), rules, at(seconds))
    back = judge(gone, saw(1000, UP), rules, at(1000))
    assert (back.state, back.well_since) == (RETURNING, at(1000))
    assert back.why == "looks well since 12:16:40 UTC; before that there was no poll for a while"
    story = back
    for seconds in range(1010, 1300, 10):
        story = judge(story, saw(seconds, UP), rules, at(seconds))
    assert story.state == RETURNING
    assert judge(story, saw(1300, UP), rules, at(1300)).state == UP


def test_the_poll_of_a_returning_host_is_written_now_and_then() -> None:
    rules = Rules(poll_interval_s=10)
    status = judge(HostStatus(), saw(0, DOWN, **FORCED), rules, at(0))
    written = 0
    for seconds in range(10, 310, 10):
        new = judge(status, saw(seconds, UP), rules, at(seconds))
        if new.differs(status, rules):
            status = new  # as the store has it: what is not worth writing is forgotten
            written += 1
    assert status.state == RETURNING
    assert written == 15


def test_damping_keeps_a_host_out_though_it_has_been_healthy_for_long_enough() -> None:
    rules = Rules(healthy_after_s=10, flap_holdoff_s=100)
    told = [saw(0, DOWN, **FORCED), saw(1, UP), saw(20, UP), saw(99, UP), saw(100, UP)]
    assert story(*told, rules=rules) == [DOWN, RETURNING, RETURNING, RETURNING, UP]


def test_all_complaining_sources_must_report_up_before_a_host_returns() -> None:
    told = [
        saw(0, DOWN, "recovery", decisive=True),
        saw(1, UP),
        saw(700, UP),
        saw(701, UP, "recovery"),
        saw(1001, UP),
    ]
    assert story(*told) == [DOWN, DOWN, DOWN, RETURNING, UP]


def test_a_failed_and_disabled_host_does_not_return_until_enabled() -> None:
    told = [saw(0, DOWN, **FORCED), saw(1, DISABLED, decisive=True), saw(700, DISABLED)]
    assert story(*told, saw(701, UP), saw(1001, UP)) == [DOWN, DOWN, DOWN, RETURNING, UP]


def test_a_decisive_up_discards_earlier_verdicts_of_other_sources() -> None:
    told = [saw(0, DOWN, "gone-monitor"), saw(1, DOWN, "gone-monitor"), saw(2, UP)]
    assert story(*told) == [SUSPECT, DOWN, DOWN]
    assert story(*told, saw(3, UP, "operator", decisive=True))[-1] == RETURNING


def test_a_clock_ahead_does_not_hide_later_reports() -> None:
    status = judge(HostStatus(), saw(9999, UP), Rules(), at(0))
    assert judge(status, saw(1, DOWN, **FORCED), Rules(), at(1)).state == DOWN


def test_time_alone_brings_a_returning_host_back() -> None:
    status = judge(HostStatus(), saw(0, DOWN, **FORCED), Rules(), at(0))
    assert ripen(status, Rules(), at(9999)) == status
    status = judge(status, saw(1, UP), Rules(), at(1))
    assert ripen(status, Rules(), at(599)).state == RETURNING
    assert ripen(status, Rules(), at(600)).state == UP


def test_the_sentence_names_the_source_and_the_reason() -> None:
    assert judge(HostStatus(), saw(0, DOWN, **FORCED), Rules(), at(0)).why == (
        "nova:service says down: forced down"
    )


def test_equal_repeated_samples_are_not_written() -> None:
    rules = Rules()
    well = judge(HostStatus(), saw(0, UP), rules, at(0))
    assert not well.differs(HostStatus(), rules)
    once = judge(well, saw(1, DOWN), rules, at(1))
    twice = judge(once, saw(2, DOWN), rules, at(2))
    thrice = judge(twice, saw(3, DOWN), rules, at(3))
    assert once.differs(well, rules)
    assert twice.differs(once, rules)
    assert not thrice.differs(twice, rules)


def test_the_number_of_sources_is_bounded_and_bad_verdicts_stay() -> None:
    status = judge(
        HostStatus(), saw(0, DOWN, "first", decisive=True, reason="x" * 999), Rules(), at(0)
    )
    for number in range(30):
        status = judge(status, saw(number, UP, f"s{number}"), Rules(), at(number))
    assert len(status.sources) == MOST_SOURCES
    assert status.state == DOWN
    assert len(json.dumps(to_plain(status))) < 5000


@pytest.mark.parametrize(
    "wrong",
    [{"verdict": "ill"}, {"source": ""}, {"host": ""}, {"at": datetime(2030, 1, 1)}],
)
def test_an_invalid_status_report_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        replace(saw(0, UP), **wrong)  # type: ignore[arg-type]


SIGHTINGS = st.lists(
    st.tuples(
        st.floats(0, 120),  # seconds since the one before
        st.sampled_from(VERDICTS),
        st.sampled_from(["nova:service", "nova:hypervisor", "recovery"]),
        st.booleans(),
    ),
    max_size=60,
)
RULES = st.builds(
    Rules,
    down_samples=st.integers(1, 3),
    down_for_s=st.sampled_from([0.0, 5.0]),
    healthy_after_s=st.sampled_from([0.0, 30.0, 300.0]),
    flap_holdoff_s=st.sampled_from([60.0, 600.0]),
    disabled_is_failure=st.booleans(),
    auto_disabled_is_failure=st.booleans(),
)


@CALM
@given(SIGHTINGS, RULES)
def test_a_host_goes_out_of_use_at_most_once_per_damping_window(
    told: list[tuple[float, str, str, bool]], rules: Rules
) -> None:
    status, moment, outs = HostStatus(), 0.0, []
    for passed, verdict, source, decisive in told:
        moment += passed
        one = saw(moment, verdict, source, decisive=decisive)
        new = judge(status, one, rules, one.at)
        if status.usable and not new.usable:
            outs.append(one.at)
        if verdict == UNKNOWN:
            assert new == status
        assert from_plain(new.state, new.since, json.loads(json.dumps(to_plain(new)))) == new
        status = new
    window = timedelta(seconds=rules.flap_holdoff_s)
    assert all(later - earlier >= window for earlier, later in itertools.pairwise(outs))


@CALM
@given(SIGHTINGS, st.randoms(use_true_random=False))
def test_messages_that_come_twice_change_nothing(
    told: list[tuple[float, str, str, bool]], chance: object
) -> None:
    once, twice, moment = HostStatus(), HostStatus(), 0.0
    heard: list[StatusReport] = []
    for passed, verdict, source, decisive in told:
        moment += passed
        one = saw(moment, verdict, source, decisive=decisive and verdict != UP)
        heard.append(one)
        once = judge(once, one, Rules(), one.at)
        twice = judge(twice, one, Rules(), one.at)
        again = chance.choice(heard)  # type: ignore[attr-defined]
        twice = judge(twice, again, Rules(), one.at)
    assert once == twice
