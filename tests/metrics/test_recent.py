# SPDX-License-Identifier: Apache-2.0
"""The last hour in the memory of an agent: what the passes were, coarse; it leaves the host only
while somebody looks."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.agent.outbox import Outbox
from holdfast.alarms.engine import Engine
from holdfast.alarms.rule_manager import Heartbeat, RuleManager
from holdfast.alarms.rules import RuleSet
from holdfast.alarms.scopes import NONE, Held
from holdfast.metrics import history
from holdfast.metrics.history import EVERY_S, MOST_LINES, NOTHING, POINTS, Hour, Recent
from holdfast.model.errors import Unavailable
from holdfast.model.observation import Heard
from holdfast.ports.metrics import Reading, Snapshot
from holdfast.runtime.clock import SystemClock
from tests.metrics.sinks_world import BEGIN, NODE, NODE_ENTITY, disk, guest, nic, snapshot

FIRST = history.slot_of(BEGIN.timestamp())


def passes(seconds: range, *guests: int) -> Iterator[Snapshot]:
    """A second apart; of the host the number of the second, of guests that and their own."""
    entities = [guest(number) for number in guests]
    for second in seconds:
        readings = [(entity, {"util_ratio": second + n / 10}) for n, entity in enumerate(entities)]
        yield snapshot([(NODE_ENTITY, {"load1": float(second)}), *readings], second)


def kept(*runs: Iterator[Snapshot]) -> Recent:
    recent = Recent()
    for run in runs:
        for one_pass in run:
            recent.offer(one_pass, ())
    return recent


def row(hour: Hour, key: str, name: str) -> list[float | None]:
    (line,) = (line for line in hour.lines if line.id == key)
    return [None if math.isnan(point) else round(point, 3) for point in line.values[name]]


def test_nothing_was_seen_yet() -> None:
    assert Recent().hour() == NOTHING


def test_the_first_pass_of_ten_seconds_is_recorded_unchanged() -> None:
    hour = kept(passes(range(35), 0, 1)).hour()
    assert (hour.begin, hour.points) == (FIRST, 4)
    assert row(hour, NODE, "load1") == [0, 10, 20, 30]
    assert row(hour, guest(1).id, "util_ratio") == [0.1, 10.1, 20.1, 30.1]
    assert [line.kind for line in hour.lines] == ["host", "guest", "guest"]
    assert (hour.lines[1].name, hour.lines[1].project, hour.lines[1].flavor) == (
        *("web0", "p-1"), "m1.small")  # fmt: skip


def test_an_hour_is_kept_and_no_more() -> None:
    hour = kept(passes(range(0, 5_000, 5), 0)).hour()
    assert hour.points == POINTS
    assert row(hour, NODE, "load1")[-1] == 4990


def test_only_later_points_are_returned() -> None:
    recent = kept(passes(range(100), 0))
    assert recent.hour(FIRST + 6).begin == FIRST + 7
    assert recent.hour(FIRST + 9) == NOTHING
    assert recent.hour(FIRST + 900).points == 10  # whoever says that goes by a wrong clock
    whole = history.merged(history.merged(NOTHING, recent.hour(FIRST + 3)), recent.hour(-1))
    assert history.plain(whole) == history.plain(recent.hour())


def test_guests_come_and_go_and_unknown_points_are_not_zero() -> None:
    recent = kept(passes(range(20), 0), passes(range(20, 40), 0, 1), passes(range(60, 80), 1))
    hour = recent.hour()
    assert row(hour, guest(0).id, "util_ratio") == [0, 10, 20, 30, None, None, None, None]
    assert row(hour, guest(1).id, "util_ratio") == [
        *(None, None, 20.1, 30.1), None, None, 60, 70]  # fmt: skip


def test_stale_points_are_unknown_and_lines_without_points_are_left_out() -> None:
    recent = Recent()
    current, stale = (
        Reading(guest(0), {"util_ratio": 1.0}),
        Reading(guest(1), {}, stale="suspended"),
    )
    recent.offer(snapshot([current, stale, (disk(0), {"iops": 7.0}), (nic(0), {"other": 1.0})]))
    suspended = Reading(guest(0), {"util_ratio": 1.0}, stale="suspended")
    recent.offer(snapshot([suspended, stale], EVERY_S))
    hour = recent.hour()
    assert [line.id for line in hour.lines] == [guest(0).id, disk(0).id]
    assert row(hour, guest(0).id, "util_ratio") == [1.0, None]
    assert hour.lines[1].guest == guest(0).id


def test_a_clock_set_back_restarts_the_history() -> None:
    hour = kept(passes(range(1000, 1050), 0), passes(range(20), 0)).hour()
    assert (hour.begin, hour.points) == (FIRST, 2)


def test_of_very_many_the_number_is_told() -> None:
    recent = kept(passes(range(2), *range(1_000)))
    hour = recent.hour()
    assert (len(hour.lines), hour.left_out) == (MOST_LINES, 1)
    assert hour.lines[0].kind == "host"


def test_recorded_history_is_accepted_by_the_manager() -> None:
    recent = Recent()
    wild = guest(0, "\ud800" + "x" * 400)
    values = {"util_ratio": math.inf, "rss_kib": 1e300, "steal_ratio": math.nan}
    recent.offer(snapshot([(wild, values), (nic(0, contracts={"tx_bps": 5e9}), {"tx_bps": 2e10})]))
    hour = history.read(history.plain(recent.hour()))
    assert hour.lines[1].contracts == {"tx_bps": 5e9}


def test_the_history_can_be_read_during_passes() -> None:
    recent, over, strange = Recent(), threading.Event(), []

    def read() -> None:
        while not over.is_set():
            hour = recent.hour()
            strange.extend(line for line in hour.lines if len(line.values) != 1)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for second in range(0, 20_000, 10):
        for pass_ in passes(range(second, second + 1), *range(second // 500 % 5)):
            recent.offer(pass_, ())
    over.set()
    for reader in readers:
        reader.join()
    assert not strange


class Centre:
    """`ports.agents.Centre`, and what it was sent."""

    def __init__(self) -> None:
        self.after: int | None = None
        self.sent: list[Hour] = []
        self.away = False

    def beat(self, host: str, body: Any) -> Heard:
        return Heard(NONE, self.after)

    def rules(self, host: str) -> Held:
        raise AssertionError("there are none")

    def samples(self, host: str, body: Any) -> None:
        if self.away:
            raise Unavailable("away")
        self.sent.append(history.read(body))


@pytest.fixture
def centre() -> Centre:
    return Centre()


def heart(centre: Centre, recent: Recent | None) -> Heartbeat:
    rule_manager = RuleManager(Engine(RuleSet()), Outbox(":memory:"), SystemClock())
    return Heartbeat(NODE, centre, rule_manager, dict, recent)


def test_no_history_is_sent_without_a_viewer(centre: Centre) -> None:
    beat = heart(centre, kept(passes(range(100), 0)))
    beat.poll()
    assert centre.sent == []


def test_a_viewer_gets_the_last_hour_and_then_new_points(centre: Centre) -> None:
    recent = kept(passes(range(100), 0))
    beat = heart(centre, recent)
    centre.after = -1
    beat.poll()
    assert centre.sent[0].points == 10
    centre.after = centre.sent[0].end - 1
    beat.poll()
    assert len(centre.sent) == 1
    for pass_ in passes(range(100, 110), 0):
        recent.offer(pass_, ())
    beat.poll()
    assert (centre.sent[1].begin, centre.sent[1].points) == (FIRST + 10, 1)
    centre.after = None
    beat.poll()
    assert len(centre.sent) == 2


def test_points_that_could_not_be_sent_are_sent_again(centre: Centre) -> None:
    beat = heart(centre, kept(passes(range(100), 0)))
    centre.after, centre.away = -1, True
    with pytest.raises(Unavailable):
        beat.poll()
    centre.away = False
    beat.poll()
    assert centre.sent[0].points == 10


def test_an_agent_without_metrics_sends_no_history(centre: Centre) -> None:
    centre.after = -1
    heart(centre, None).poll()
    heart(centre, Recent()).poll()
    assert centre.sent == []
