# SPDX-License-Identifier: Apache-2.0
"""How much leaves a host, in real bytes: nothing but a sign of life while all is quiet, and in a
storm no more than may."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.metrics.fields import Fields
from holdfast.metrics.sinks.udp import Names, Statsd
from holdfast.metrics.sinks.worker import Band, Export, Pace, SinkWorker
from holdfast.ports.metrics import Snapshot
from tests.metrics.sinks_world import NODE_ENTITY, Ear, guest, snapshot
from tests.metrics.uplink import Centre, live
from tests.simclock import SimClock

RULES = """
rules:
  - {id: hot, on: guest, field: util_ratio, when: '> 0.9', for: 3s}
  - {id: full, on: guest, field: used_ratio, when: '> 0.9'}
"""


@pytest.fixture
def centre() -> Iterator[Centre]:
    made = Centre()
    yield made
    made.close()


def quiet(seconds: int, guests: int = 5) -> Iterator[Snapshot]:
    for second in range(seconds):
        noise = 0.2 + 0.004 * (second % 3)
        values = {"util_ratio": noise, "used_ratio": 0.5}
        readings = [(guest(place), values) for place in range(guests)]
        yield snapshot([(NODE_ENTITY, {"load1": 0.5}), *readings], second)


def storm(seconds: int, guests: int) -> Iterator[Snapshot]:
    """All of them go over their marks and below again, for ever."""
    for second in range(seconds):
        hot = 0.99 if second % 20 < 10 else 0.1
        values = {"util_ratio": hot, "used_ratio": hot}
        yield snapshot([(guest(place), values) for place in range(guests)], second)


def rolling(seconds: int, guests: int) -> Iterator[Snapshot]:
    """Others every minute: nobody comes back, so nothing is damped. The worst that there is."""
    for second in range(seconds):
        first = second // 60 * 60
        hot = range(first, first + 60) if second % 60 < 30 else range(0)
        readings = [(guest(n), {"util_ratio": 0.99 if n in hot else 0.1}) for n in range(guests)]
        yield snapshot(readings, second)


def test_a_quiet_host_sends_only_heartbeats(centre: Centre) -> None:
    live(centre, RULES, quiet(1_200))
    assert centre.requests == {"PUT agents": 120, "GET hosts": 20}
    assert centre.total < 1_200 * 100


def test_while_a_viewer_watches_the_hour_is_sent_once_and_then_new_points(centre: Centre) -> None:
    sent = []

    def count(second: int) -> None:
        centre.looks = 600 <= second < 1_200
        sent.append(centre.bytes["PUT samples"])

    live(centre, RULES, quiet(1_500, 20), after=count)
    assert sent[600] == 0  # nobody looks
    assert 0 < sent[610] < 100_000
    assert 55 <= centre.requests["PUT samples"] <= 61
    assert sent[1_200] - sent[620] < 580 * 200 * 20  # no more than 200 bytes a second and guest
    assert sent[-1] == sent[1_210]
    assert len(centre.hour.lines) == 21
    assert (centre.hour.points, centre.hour.left_out) == (121, 0)


def test_a_storm_is_bounded(centre: Centre) -> None:
    ear = Ear()
    export = Export(Fields(["host.none"]), Band())
    sink = SinkWorker(Statsd("127.0.0.1", ear.port, Names()), export, Pace(), SimClock())
    notified, sent = [], []

    def count(second: int) -> None:
        notified.append(centre.bytes["POST observations"])
        sent.append(sum(map(len, ear.heard())))

    live(centre, RULES, storm(300, 120), [sink], count)
    sink.close()
    ear.close()
    assert max(sent) <= 1_400
    assert 10_000 < sum(sent) <= 300 * 1_000 + 1_400
    # by HTTP fifty are raised at once and cleared once; then those that come and go are damped
    assert 50 < centre.requests["POST observations"] <= 2 * 50 + 60
    assert notified[-1] - notified[59] <= 240 * 1_000


def test_traffic_in_a_moving_storm_is_bounded_by_the_fifty_notified_alarms(centre: Centre) -> None:
    notified: list[int] = []
    count = centre.bytes
    live(
        centre,
        RULES,
        rolling(240, 240),
        after=lambda _: notified.append(count["POST observations"]),
    )
    minutes = [notified[end] - notified[end - 60] for end in range(119, 240, 60)]
    # a report is 1.2 kB, and in a minute fifty are raised and fifty cleared: 2 kB/s, and no more
    assert centre.requests["POST observations"] <= 4 * (2 * 50 + 2)
    assert max(minutes) <= 60 * 2_200
