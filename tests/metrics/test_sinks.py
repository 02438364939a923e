# SPDX-License-Identifier: Apache-2.0
"""Numbers leave a host as they should, when they should, and no more of them than may."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import logging
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import conf as configuration
from holdfast.app.agent import build_sinks
from holdfast.app.daemon import BadSetup
from holdfast.metrics.fields import Fields, has_changed, is_counter, unit
from holdfast.metrics.sinks import prometheus as prometheus_sink
from holdfast.metrics.sinks.prometheus import MOST, OLD_S, Prometheus, _Handler
from holdfast.metrics.sinks.udp import (
    CEILOMETER_FIELDS,
    NAME,
    Ceilometer,
    Graphite,
    LogLines,
    Names,
    Statsd,
    Udp,
    address,
    host_part,
    number,
    packed,
    part,
)
from holdfast.metrics.sinks.udp import MOST as DATAGRAM
from holdfast.metrics.sinks.worker import MOST_ALARMS, Band, Export, Pace, SinkWorker
from holdfast.model.errors import DriverError, InvalidInput
from holdfast.ports.metric_plugins import ALARM, Outlet, Sample
from holdfast.ports.metrics import GUEST, HOST, Entity, Reading, Snapshot
from holdfast.runtime.clock import SystemClock
from tests.metrics.sinks_world import (
    BEGIN,
    NODE,
    NODE_ENTITY,
    UUIDS,
    Ear,
    change,
    disk,
    guest,
    nic,
    snapshot,
)
from tests.processes import PATIENCE_S, eventually, free_port
from tests.simclock import SimClock

#: However busy the machine is.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

SECRET = "change this for valid signing"
#: What tenants call their guests.
HOSTILE = st.one_of(
    st.text(max_size=255),
    st.text(alphabet=":|@\n#. _-ab0/é\x00\u202e\U0001f600", max_size=255),
    st.from_regex(r"[a-z_]{0,4}_[0-9a-f]{16}", fullmatch=True),
)


@pytest.fixture
def ear() -> Iterator[Ear]:
    made = Ear()
    yield made
    made.close()


def statsd(ear: Ear) -> Statsd:
    return Statsd("127.0.0.1", ear.port, Names())


_LANES: list[SinkWorker] = []


@pytest.fixture(autouse=True)
def _no_sockets_left() -> Iterator[None]:
    yield
    while _LANES:
        _LANES.pop().close()


def lane(outlet: Outlet, *fields: str, band: Band | None = None, **pace: float) -> SinkWorker:
    """One without a thread: the test takes its turns."""
    export = Export(Fields(fields or ["*"]), band or Band())
    _LANES.append(SinkWorker(outlet, export, Pace(**pace), SimClock()))
    return _LANES[-1]


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What sinks said; threads of other tests may still say something."""
    names = ("holdfast.metrics.sinks.", "holdfast.metrics.sinks.worker")
    return [record for record in caplog.records if record.name.startswith(names)]


def give(sink: SinkWorker, shot: Snapshot, changes: Sequence[Any] = ()) -> None:
    sink.offer(shot, changes)
    sink.turn()


def sample(entity: Entity, field: str, value: float, **more: Any) -> Sample:
    return Sample(NODE, entity, field, value, BEGIN, 1_000.0, **more)


# names


@CALM
@given(HOSTILE)
def test_any_name_becomes_a_single_path_component(name: str) -> None:
    made = part(name)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,97}", made)


@CALM
@given(HOSTILE, HOSTILE)
def test_different_names_never_share_a_path(name: str, other: str) -> None:
    assert (part(name) == part(other)) == (name == other)


def test_no_guest_name_can_take_the_path_of_another_guest() -> None:
    victim = part("a.b")
    assert victim.startswith("a_b_")
    assert part(victim) != victim
    assert part(part(victim)) != part(victim)


@CALM
@given(HOSTILE, HOSTILE, st.sampled_from(["id", NAME]))
def test_two_guests_of_any_names_have_paths_of_their_own(one: str, other: str, by: str) -> None:
    names = Names(by=by)
    paths = {
        names.path(sample(guest(place, name), "util_ratio", 1.0))
        for place, name in enumerate((one, other))
    }
    assert len(paths) == 2
    assert all(re.fullmatch(r"holdfast\.cmp-7\.guest\.[\w-]+\.util_ratio", path) for path in paths)


def test_paths_name_the_host_guest_and_field() -> None:
    names = Names("cloud.prod")
    assert names.path(sample(NODE_ENTITY, "load1", 1)) == "cloud.prod.cmp-7.host.load1"
    assert names.path(sample(disk(), "iops", 1)).endswith(f"guest.{UUIDS[0]}.disk.vda.iops")
    alarm = sample(nic(), ALARM, 1.0, about={"rule": "too.much"})
    assert re.search(r"\.nic\.tap0\.alarm\.too_much_[0-9a-f]{16}$", names.path(alarm))
    by_name = Names(by=NAME).path(sample(nic(), "tx_bps", 1))
    assert re.search(r"\.guest\.web0_[0-9a-f]{16}\.nic\.tap0\.tx_bps$", by_name)


def test_dots_of_a_host_name_become_underscores_without_collapsing() -> None:
    assert host_part("cmp-7.example.org") == "cmp-7_example_org"
    assert host_part("cmp-7_example_org") != "cmp-7_example_org"


# datagrams


@CALM
@given(st.lists(st.binary(min_size=1, max_size=300)))
def test_datagrams_are_full_but_never_too_large(pieces: list[bytes]) -> None:
    between = b"\xff\x00\xff"
    made = list(packed(pieces, between))
    assert between.join(made) == between.join(pieces)
    assert all(len(datagram) <= DATAGRAM for datagram in made)
    for datagram, then in itertools.pairwise(made):
        assert (
            len(datagram) + len(between) + 300 > DATAGRAM or len(datagram + then) > DATAGRAM - 300
        )


def test_many_numbers_go_in_few_datagrams(ear: Ear) -> None:
    sink = lane(statsd(ear))
    give(sink, snapshot([(guest(place), {"util_ratio": 0.5}) for place in range(300)]))
    datagrams = ear.heard()
    lines = [line for datagram in datagrams for line in datagram.decode().split("\n")]
    assert len(lines) == 300
    assert all(len(datagram) <= 1_400 for datagram in datagrams)
    assert len(datagrams) <= -(-sum(len(line) + 1 for line in lines) // 1_300)
    assert f"holdfast.cmp-7.guest.{UUIDS[7]}.util_ratio:0.5|g" in lines


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("127.0.0.1:8125", ("127.0.0.1", 8125)),
        ("[::1]:81", ("::1", 81)),
        ("[::1]", ("::1", 9)),
        ("stats.example", ("stats.example", 9)),
    ],
)
def test_addresses_are_understood(text: str, means: tuple[str, int]) -> None:
    assert address(text, 9) == means


@pytest.mark.parametrize("text", ["", ":1", "host:", "host:0", "host:65536", "host:x"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="write HOST:PORT"):
        address(text)


# statsd and graphite


def test_statsd_gets_by_how_much_a_counter_grew(ear: Ear) -> None:
    sink = lane(statsd(ear), interval_s=1.0)
    path = f"holdfast.cmp-7.guest.{UUIDS[0]}.nic.tap0.rx_bytes"
    for second, value in enumerate((1_000, 1_500, 1_500, 1_700)):
        give(sink, snapshot([(nic(), {"rx_bytes": value})], second))
    assert ear.lines() == [f"{path}:500|c", f"{path}:200|c"]


def test_a_reset_counter_is_no_growth(ear: Ear) -> None:
    sink = lane(statsd(ear), interval_s=1.0)
    for second, value in enumerate((1_000, 10, 25)):
        give(sink, snapshot([(nic(), {"rx_bytes": value})], second))
    assert [line.rpartition(":")[2] for line in ear.lines()] == ["15|c"]


def test_a_gauge_below_zero_is_no_step_down(ear: Ear) -> None:
    give(lane(statsd(ear)), snapshot([(guest(), {"used_ratio": -0.25})]))
    first, second = ear.lines()
    assert (first.rpartition(":")[2], second.rpartition(":")[2]) == ("0|g", "-0.25|g")


def test_graphite_gets_lines_with_a_time(ear: Ear) -> None:
    sink = lane(Graphite("127.0.0.1", ear.port, Names()))
    give(sink, snapshot([(guest(), {"util_ratio": 1 / 3}), (disk(), {"rd_bytes": 7e15})]))
    (datagram,) = ear.heard()
    assert datagram.endswith(b"\n")
    at = int(BEGIN.timestamp())
    base = f"holdfast.cmp-7.guest.{UUIDS[0]}"
    assert sorted(datagram.decode().splitlines()) == [
        f"{base}.disk.vda.rd_bytes 7000000000000000 {at}",
        f"{base}.util_ratio 0.333333 {at}",
    ]


@CALM
@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e18, max_value=1e18))
def test_numbers_have_no_exponent_and_mean_the_same(value: float) -> None:
    text = number(value)
    assert re.fullmatch(r"-?\d+(\.\d+)?", text)
    assert float(text) == pytest.approx(value, rel=1e-6, abs=1e-6)


# what is worth sending


def lines_of(
    ear: Ear, sink: SinkWorker, values: Sequence[float], step_s: float = 10.0
) -> list[int]:
    """In which of these passes something was sent."""
    lines = []
    for place, value in enumerate(values):
        give(sink, snapshot([(guest(), {"util_ratio": value})], place * step_s))
        if ear.heard():
            lines.append(place)
    return lines


def test_small_changes_are_not_sent(ear: Ear) -> None:
    sink = lane(statsd(ear), band=Band(0.05, refresh_s=1e9))
    values = [0.50, 0.51, 0.52, 0.524, 0.53, 0.53, 0.50, 0.0, 0.005]
    assert lines_of(ear, sink, values) == [0, 4, 6, 7]


def test_slow_drift_is_sent_because_values_are_compared_with_the_last_sent_value(ear: Ear) -> None:
    sink = lane(statsd(ear), band=Band(0.05, refresh_s=1e9))
    sent = lines_of(ear, sink, [0.5 + 0.002 * place for place in range(60)])
    assert len(sent) >= 4


def test_every_number_is_sent_anew_within_the_refresh_and_not_all_at_once(ear: Ear) -> None:
    sink = lane(statsd(ear), interval_s=10.0)
    guests = [(guest(place), {"util_ratio": 0.5}) for place in range(200)]
    sent = []
    for second in range(0, 1_200, 10):
        give(sink, snapshot(guests, second))
        sent.append(len(ear.lines()))
    assert sent[0] == 200
    assert sum(sent[1:31]) == pytest.approx(200, abs=12)  # in five minutes each of them once
    assert sum(sent[31:61]) == pytest.approx(200, abs=12)
    assert max(sent[1:]) < 30
    assert sum(sent[1:]) <= 200 * 4


def test_stale_and_nan_values_are_not_sent(ear: Ear) -> None:
    stale = Reading(guest(1), {"util_ratio": 0.5}, stale="suspended")
    odd = {"util_ratio": float("nan"), "steal_ratio": float("inf"), "reset": 1.0}
    give(lane(statsd(ear)), snapshot([stale, (guest(), odd)]))
    assert ear.heard() == []


def test_entities_that_are_gone_are_forgotten(ear: Ear) -> None:
    sink = lane(statsd(ear), interval_s=1.0)
    two = [(guest(place), {"util_ratio": 0.5}) for place in (0, 1)]
    give(sink, snapshot(two, 0))
    give(sink, snapshot(two[:1], 1))
    assert len(ear.lines()) == 2
    give(sink, snapshot(two, 2))
    assert [UUIDS[1] in line for line in ear.lines()] == [True]


def test_only_chosen_numbers_are_sent(ear: Ear) -> None:
    sink = lane(statsd(ear), "guest.*_ratio", "host.load1")
    values = {"util_ratio": 0.5, "rss_kib": 4096.0}
    give(sink, snapshot([(guest(), values), (NODE_ENTITY, {"load1": 2.0, "fds": 3.0})]))
    fields = sorted(line.partition(":")[0].rpartition(".")[2] for line in ear.lines())
    assert fields == ["load1", "util_ratio"]


def test_fields_without_a_kind_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"KIND\.NAME"):
        Fields(["util_ratio"])


def test_field_names_show_counters_and_units() -> None:
    counters = ["cpu_time_ns", "vcpu3_delay_ns", "rd_times_ns", "tx_drop", "major_fault"]
    assert all(map(is_counter, counters))
    gauges = ["mean_latency_ns", "mem_free_bytes", "balloon_current_kib", "rd_bytes_per_s"]
    assert not any(map(is_counter, gauges))
    assert [unit(field) for field in ("rd_bytes_per_s", "tx_bps", "load1")] == ["B/s", "bit/s", ""]
    assert has_changed("rd_bytes", 2.0**52 + 1, 2.0**52, 0.05)


# a sink and its thread


class Slow:
    """An outlet that lets nobody go until it is told to."""

    name = "slow"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.sent: list[bytes] = []

    def encode(self, sample: Sample) -> bytes:
        return f"{sample.field} {sample.value} {sample.about.get('rule', '')}".encode()

    def send(self, samples: Sequence[bytes], now: float) -> None:
        self.go.wait()
        self.sent += samples

    def close(self) -> None:
        pass


def test_a_hanging_sink_delays_no_pass_and_loses_no_alarm() -> None:
    outlet = Slow()
    export = Export(Fields(["*"]), Band())
    sink = SinkWorker(outlet, export, Pace(interval_s=1.0), SystemClock())
    sink.start()
    for second in range(50):  # who waits for it here waits for ever
        changes = [change("firing", rule=f"r{second}")] if second < 5 else []
        sink.offer(snapshot([(guest(), {"util_ratio": second % 2})], second), changes)
    assert sink.tally.dropped >= 46
    outlet.go.set()
    eventually(lambda: sum(b"alarm" in datagram for datagram in outlet.sent) == 5)
    eventually(lambda: outlet.sent[-1:] == [b"util_ratio 1 "])
    sink.close()


def test_an_unreachable_receiver_is_logged_once_and_gets_all_values_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()  # that nobody else takes meanwhile
    sink = lane(Statsd("127.0.0.1", port, Names()), interval_s=10.0)
    guests = [(guest(place), {"util_ratio": 0.5}) for place in range(100)]
    changes = [change("firing")]
    for second in range(0, 300, 10):
        give(sink, snapshot(guests, second), changes if second == 0 else [])
        time.sleep(0.002)  # the kernel tells us that nobody listens
    messages = [our.getMessage() for our in ours(caplog)]
    assert len(messages) == 1
    assert "no program listens there" in messages[0]
    assert sink.tally.failed > 10
    back = Ear(port)
    try:
        lines: list[str] = []
        for second in range(300, 400, 10):
            give(sink, snapshot(guests, second))
            lines += back.lines()
    finally:
        back.close()
    assert {line.split(".")[3] for line in lines if "util_ratio" in line} == set(UUIDS[:100])
    assert any(line.endswith("alarm.hot:1|g") for line in lines)


def test_a_failed_sink_logs_its_recovery(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    sink = lane(Statsd("127.0.0.1", port, Names()), interval_s=10.0, band=Band(0.0))
    for second in range(0, 50, 10):
        give(sink, snapshot([(guest(), {"util_ratio": second / 50})], second))
        time.sleep(0.002)
    back = Ear(port)
    for second in range(50, 200, 10):
        give(sink, snapshot([(guest(), {"util_ratio": second / 200})], second))
    back.close()
    assert [our.levelname for our in ours(caplog)] == ["ERROR", "INFO"]
    assert "well again" in ours(caplog)[1].getMessage()


class Choking:
    """A socket whose buffer is full for some datagrams."""

    def __init__(self, *full: bytes) -> None:
        self.full = set(full)
        self.left: list[bytes] = []

    def send(self, datagram: bytes) -> None:
        if datagram in self.full:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.left.append(datagram)

    def getsockopt(self, *_: object) -> int:
        return 0

    def close(self) -> None: ...


def test_a_failed_datagram_is_retried_with_the_next_send_without_repeating_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    udp, way = Udp("statsd", "127.0.0.1", 1), Choking(b"2")
    monkeypatch.setattr(udp, "_connection", lambda now: way)
    udp.send([b"1", b"2", b"3"], 0.0)
    way.full = {b"4"}
    udp.send([b"4", b"5"], 1.0)
    assert way.left == [b"1", b"3", b"2", b"5"]
    way.full = {b"4", b"6"}
    with pytest.raises(DriverError, match="temporarily unavailable"):
        udp.send([b"6"], 2.0)
    way.full = set()
    udp.send([b"6"], 3.0)  # by who was told that it failed
    assert way.left[4:] == [b"4", b"6"]


def test_a_local_refusal_is_noticed_at_once_and_no_datagram_arrives_twice() -> None:
    port = free_port()
    udp = Udp("statsd", "127.0.0.1", port)
    with pytest.raises(DriverError, match="no program listens there"):
        udp.send([b"a", b"b"], 0.0)
    back = Ear(port)
    try:
        udp.send([b"a", b"b"], 1.0)
        assert back.lines() == ["a", "b"]
    finally:
        back.close()
        udp.close()


def test_an_unresolvable_host_name_is_an_error_that_names_the_host() -> None:
    with pytest.raises(DriverError, match=r"statsd: no\.such\.host\.invalid:1: "):
        Udp("statsd", "no.such.host.invalid", 1).send([b"x"], 0.0)


# alarms


def test_alarms_are_sent_at_once_and_refreshed_while_raised(ear: Ear) -> None:
    sink = lane(statsd(ear), "host.none", interval_s=10.0, refresh_s=300.0)
    heard: dict[int, list[str]] = {}
    for second in range(700):
        changes = {3: [change("firing")], 650: [change("ok", "firing")]}.get(second, [])
        give(sink, snapshot([(guest(), {})], second), changes)
        if lines := ear.lines():
            heard[second] = lines
    path = f"holdfast.cmp-7.guest.{UUIDS[0]}.alarm.hot"
    assert heard == {3: [f"{path}:1|g"], 310: [f"{path}:1|g"], 610: [f"{path}:1|g"],
                     650: [f"{path}:0|g"]}  # fmt: skip


def test_a_pending_alarm_is_not_sent(ear: Ear) -> None:
    sink = lane(statsd(ear), "host.none")
    give(sink, snapshot([]), [change("pending"), change("ok", "pending", "cold")])
    assert ear.heard() == []


def test_an_alarm_from_no_data_to_pending_is_cleared_when_ok(ear: Ear) -> None:
    sink = lane(statsd(ear), "host.none")
    story = ("firing", "no_data", "pending", "ok", "pending", "ok")
    for second, (before, after) in enumerate(zip(("ok", *story), story, strict=False)):
        give(sink, snapshot([], second), [change(after, before)])
    path = f"holdfast.cmp-7.guest.{UUIDS[0]}.alarm.hot"
    assert ear.lines() == [f"{path}:1|g", f"{path}:2|g", f"{path}:0|g"]


def test_a_storm_of_alarms_is_bounded_and_the_last_state_of_each_arrives(ear: Ear) -> None:
    sink = lane(statsd(ear), "host.none", interval_s=10.0)
    state: dict[str, str] = {}
    total = 0
    for second in range(600):
        changes = []
        if second < 60:  # every guest, up and down, every second
            after, before = (("firing", "ok"), ("ok", "firing"))[second % 2]
            changes = [change(after, before, number=place) for place in range(500)]
        give(sink, snapshot([(guest(), {})], second), changes)
        datagrams = ear.heard()
        total += sum(map(len, datagrams))
        assert sum(map(len, datagrams)) <= 1_400
        assert total <= 1_000 * (second + 1) + 1_400
        for line in b"\n".join(datagrams).decode().splitlines():
            path, _, value = line.partition(":")
            state[path] = value
    assert set(state.values()) == {"0|g"}
    assert len(state) == 500
    assert sink.tally.alarms_lost == 0


def test_an_alarm_larger_than_the_budget_of_a_moment_goes_all_the_same(ear: Ear) -> None:
    sink = lane(Slow(), "host.none")
    outlet = sink._outlet
    assert isinstance(outlet, Slow)
    outlet.go.set()
    long = "r" * 3_000
    arrived = []
    for second in range(10):
        changes = [change("firing", rule=long), change("firing")] if second == 0 else []
        give(sink, snapshot([], second), changes)
        arrived.append(len(outlet.sent))
    assert arrived[0] == 1
    assert arrived.index(2) == 2  # what it took too much is waited for


def test_the_end_of_a_sent_alarm_is_not_lost_in_a_storm(ear: Ear) -> None:
    sink = lane(Statsd("127.0.0.1", ear.port, Names()), refresh_s=10.0, alarm_bytes_per_s=1e6)
    give(sink, snapshot([], 0), [change("firing", rule="first")])
    assert ear.lines()
    storm = [change("firing", rule=f"r{n}", second=1) for n in range(MOST_ALARMS)]
    over = [change("ok", "firing", rule="first", second=1)]
    over += [change("ok", "firing", rule="unheard", second=1)]
    give(sink, snapshot([], 1), [*storm, *over])
    assert sink.tally.alarms_lost == 1  # of whose beginning nobody heard
    lines = ear.lines()
    for second in range(2, 60):
        give(sink, snapshot([], second))
        lines += ear.lines()
    first = [line for line in lines if line.endswith("alarm.first:0|g") or "alarm.first:1" in line]
    assert [line.rpartition(":")[2] for line in first] == ["0|g"]


def test_a_cleared_alarm_is_not_refreshed_while_its_end_is_queued() -> None:
    outlet = Slow()
    outlet.go.set()
    sink = lane(outlet, interval_s=1.0, refresh_s=10.0)
    give(sink, snapshot([], 0), [change("firing")])
    sink.offer(snapshot([], 10), [change("ok", "firing", second=10)])
    with sink._lock:
        on_its_way, sink._alarms = sink._alarms, {}
    sink.offer(snapshot([], 20), [])
    sink._send_alarms(on_its_way, 1_020.0)
    for second in range(30, 90, 10):
        give(sink, snapshot([], second))
    assert outlet.sent == [b"alarm 1.0 hot", b"alarm 0.0 hot"]


def test_more_alarms_than_are_kept_are_counted() -> None:
    sink = lane(Slow(), "host.none")
    sink.offer(snapshot([]), [change("firing", rule=f"r{n}") for n in range(MOST_ALARMS + 7)])
    assert sink.tally.alarms_lost == 7


# how much leaves the host


def busy(second: int, count: int) -> Snapshot:
    """Everything changes by a lot, all the time."""

    def wild(place: int) -> float:
        return ((second * 7919 + place * 104_729) % 1_000) / 1_000

    readings: list[tuple[Entity, Mapping[str, float]]] = []
    for place in range(count):
        entity = wild(place)
        readings.append(
            (guest(place), {"util_ratio": entity, "steal_ratio": entity, "used_ratio": 1 - entity})
        )
        readings.append((disk(place), {"iops": entity * 1e4, "rd_bytes_per_s": entity * 1e9}))
        readings.append((nic(place), {"rx_bps": entity * 1e10, "tx_bps": entity * 1e9}))
    return snapshot(readings, second)


def test_the_busiest_host_stays_within_the_byte_budget(ear: Ear) -> None:
    sink = lane(statsd(ear), interval_s=1.0, bytes_per_s=1_000.0, guest_bytes_per_s=10.0)
    per_s, total = 1_000.0 + 10.0 * 20, 0
    for second in range(240):
        give(sink, busy(second, 20))
        total += sum(map(len, ear.heard()))
        assert total <= per_s * (second + 60)  # a minute's worth at once
    assert total >= per_s * 240 * 0.9
    assert sink.tally.held_back > 0


def test_under_a_byte_budget_each_value_is_sent_in_turn(ear: Ear) -> None:
    sink = lane(statsd(ear), interval_s=1.0, bytes_per_s=500.0, guest_bytes_per_s=0.0)
    for second in range(120):
        give(sink, busy(second, 20))
    ear.heard()
    late: set[str] = set()
    for second in range(120, 240):
        give(sink, busy(second, 20))
        late |= {line.partition(":")[0] for line in ear.lines()}
    assert len(late) == 20 * 7


def test_without_a_sink_nothing_leaves_but_the_sign_of_life() -> None:
    conf = configuration.load([], [])
    assert list(build_sinks(conf.metric_sinks, SimClock())) == []


def test_an_hour_in_which_nothing_happens_costs_the_refreshes_only(ear: Ear) -> None:
    sink = lane(statsd(ear), "guest.util_ratio", interval_s=10.0)
    total = 0
    for second in range(3_600):
        noise = 0.2 + 0.004 * (second % 3)
        give(sink, snapshot([(guest(n), {"util_ratio": noise}) for n in range(20)], second))
        total += len(ear.lines())
    assert total == pytest.approx(20 * 13, abs=20)


def test_an_invalid_secret_or_address_is_reported_at_the_start() -> None:
    conf = configuration.load([], [])
    conf.set_override("statsd", "nowhere:at-all", group="metric_sinks")
    with pytest.raises(BadSetup, match=r"\[metric_sinks\].*write HOST:PORT"):
        build_sinks(conf.metric_sinks, SimClock())


def test_every_configured_sink_is_created(ear: Ear) -> None:
    conf = configuration.load([], [])
    for name in ("statsd", "graphite", "ceilometer"):
        conf.set_override(name, f"127.0.0.1:{ear.port}", group="metric_sinks")
    conf.set_override("prometheus", f"127.0.0.1:{free_port()}", group="metric_sinks")
    conf.set_override("log", True, group="metric_sinks")
    sinks = build_sinks(conf.metric_sinks, SystemClock())
    try:
        assert [sink.name for sink in sinks] == [
            "statsd", "graphite", "ceilometer", "log", "prometheus",
        ]  # fmt: skip
        shot = snapshot([(guest(), {"util_ratio": 0.5, "cpu_time_ns": 7})])
        for sink in sinks:
            sink.offer(shot, ())
        datagrams: list[bytes] = []
        eventually(lambda: len(datagrams.__iadd__(ear.heard())) >= 3)
    finally:
        for sink in sinks:
            sink.close()


# Ceilometer


def sorted_pairs(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The check of a receiver, written once more: flat names, sorted on each level."""
    pairs: list[tuple[str, Any]] = []
    for key in sorted(message):
        value = message[key]
        if isinstance(value, dict):
            pairs += [(f"{key}:{below}", deep) for below, deep in sorted_pairs(value)]
        else:
            pairs.append((key, value))
    return pairs


def is_genuine(message: Mapping[str, Any], secret: str) -> bool:
    text = "".join(
        str(key) + str(value) for key, value in sorted_pairs(message) if key != "message_signature"
    )
    wanted = hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    return hmac.compare_digest(wanted, message["message_signature"])


@CALM
@given(HOSTILE, st.floats(allow_nan=False, allow_infinity=False))
def test_ceilometer_verifies_the_signature_for_any_guest_name(name: str, value: float) -> None:
    outlet = Ceilometer("127.0.0.1", 4952, SECRET)
    for field in ("rss_kib", "util_ratio", "cpu_time_ns"):
        sent = outlet.encode(sample(guest(0, name), field, value))
        assert len(sent) <= DATAGRAM
        message = msgpack.unpackb(sent, raw=False)
        assert is_genuine(message, SECRET)
        assert not is_genuine({**message, "counter_volume": "other"}, SECRET)
        assert not is_genuine(message, "another")


def test_ceilometer_gets_ceilometer_meter_names(ear: Ear) -> None:
    sink = lane(Ceilometer("127.0.0.1", ear.port, ""), *CEILOMETER_FIELDS)
    give(
        sink,
        snapshot([
            (guest(), {"cpu_time_ns": 81_000_000, "rss_kib": 2_048, "util_ratio": 0.5}),
            (disk(), {"rd_bytes": 4_096}),
            (nic(), {"tx_pkts": 12}),
        ]),
    )  # fmt: skip
    messages = {message["counter_name"]: message for message in map(msgpack.unpackb, ear.heard())}
    shown = {
        name: (
            message["counter_type"],
            message["counter_volume"],
            message["counter_unit"],
            message["resource_id"],
        )
        for name, message in messages.items()
    }
    assert shown == {
        "cpu": ("cumulative", 81_000_000, "ns", UUIDS[0]),
        "memory.resident": ("gauge", 2.0, "MiB", UUIDS[0]),
        "disk.device.read.bytes": ("cumulative", 4_096, "B", f"{UUIDS[0]}-vda"),
        "network.outgoing.packets": ("cumulative", 12, "packet", f"web0-{UUIDS[0]}-tap0"),
    }
    assert messages["cpu"].keys() == {
        *("source", "counter_name", "counter_type", "counter_unit", "counter_volume", "user_id"),
        *("user_name", "project_id", "project_name", "resource_id", "timestamp"),
        *("resource_metadata", "message_id", "monotonic_time", "message_signature"),
    }
    assert messages["cpu"]["message_signature"] == ""
    assert messages["cpu"]["project_id"] == "p-1"


def test_a_ceilometer_sample_keeps_its_message_id_when_sent_again() -> None:
    outlet = Ceilometer("127.0.0.1", 1, SECRET)
    first = sample(guest(), "cpu_time_ns", 1)
    assert outlet.encode(first) == outlet.encode(first)
    ids = {msgpack.unpackb(outlet.encode(sample(guest(n), f, 1)))["message_id"]
           for n in range(5) for f in ("cpu_time_ns", "rss_kib")}  # fmt: skip
    assert len(ids) == 10


# Prometheus


EVERYTHING = {
    GUEST: {
        "util_ratio": 0.5, "steal_ratio": 0.1, "cpu_time_ns": 81e6, "rss_kib": 4096.0, "vcpus": 2.0,
        "vcpu0_time_ns": 4e7, "vcpu1_time_ns": 41e6, "vcpu0_delay_ns": 1.0, "vcpu1_delay_ns": 2.0,
        "vcpu0_steal_ratio": 0.1, "vcpu1_steal_ratio": 0.1, "swap_in_kib": 3.0, "major_fault": 9.0,
        "swap_in_kib_per_s": 1.0, "major_fault_per_s": 2.0, "last_update_age_s": 3.0,
        "haltpoll_ok_ns": 5.0, "balloon_current_kib": 1024.0, "reset": 1.0,
    },
    HOST: {"cpu_user_ns": 3e9, "cpu_mhz": 2400.0, "load1": 1.5, "psi_cpu_some_avg10": 0.5,
           "mem_free_bytes": 1e9, "fds": 100.0, "ksm": 5.0, "vms_running": 3.0},
}  # fmt: skip
DISKS = {"rd_reqs": 3.0, "rd_bytes": 9.0, "rd_times_ns": 5e6, "mean_latency_ns": 1e6, "errors": 1.0,
         "rd_bytes_per_s": 5.0, "iops": 7.0, "fill_ratio": 0.5, "capacity_bytes": 1e9}  # fmt: skip
NICS = {"rx_bytes": 1.0, "rx_pkts": 1.0, "rx_errs": 1.0, "rx_drop": 1.0, "rx_bps": 800.0,
        "rx_pkts_per_s": 1.0, "contract_bps": 1e9, "over_contract_ratio": 0.1}  # fmt: skip


def everything(*names: str) -> Snapshot:
    readings: list[tuple[Entity, Mapping[str, float]]] = [(NODE_ENTITY, EVERYTHING[HOST])]
    for place, name in enumerate(names):
        readings += [
            (guest(place, name), EVERYTHING[GUEST]),
            (disk(place), DISKS),
            (nic(place), NICS),
        ]
    return snapshot(readings)


def test_promtool_has_nothing_to_say_about_our_page(promtool: str) -> None:
    hostile = ['"quoted"', "back\\slash", "new\nline", "é\u202e\U0001f600", "", "{a=b}", "\ud800"]
    sink = Prometheus("127.0.0.1", 0, Fields(["*"]), SimClock())
    sink.offer(everything(*hostile), [change("firing", rule='bad"\\\n')])
    ran = subprocess.run(
        [promtool, "check", "metrics"],
        input=sink.text().encode(), capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, b"")


def test_promtool_would_have_something_to_say(promtool: str) -> None:
    text = prometheus_sink.page(everything("a"), Fields(["*"])).replace("_total", "")
    ran = subprocess.run(
        [promtool, "check", "metrics"], input=text.encode(), capture_output=True, check=False
    )
    assert ran.returncode != 0


@CALM
@given(st.lists(HOSTILE, min_size=1, max_size=4))
def test_escaped_labels_parse_back_unchanged(names: list[str]) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    text = prometheus_sink.page(everything(*names), Fields(["guest.util_ratio"]))
    (family,) = text_string_to_metric_families(text)
    shown = [exposed.labels["name"].encode("utf-8", "replace") for exposed in family.samples]
    assert shown == [name.encode("utf-8", "replace") for name in names]


def test_prometheus_units_are_used() -> None:
    text = prometheus_sink.page(everything("a"), Fields(["*"]))
    assert re.search(r'holdfast_guest_vcpu_time_seconds_total{.*,vcpu="1"} 0.041\n', text)
    assert re.search(r"holdfast_guest_rss_bytes{.*} 4194304.0\n", text)
    assert re.search(r'holdfast_nic_rx_bytes_per_second{.*,nic="tap0"} 100.0\n', text)
    assert 'holdfast_host_cpu_hertz{host="cmp-7"} 2400000000.0' in text
    assert "reset" not in text


def test_the_same_guest_twice_does_not_spoil_the_page() -> None:
    text = prometheus_sink.page(
        snapshot([(guest(), {"util_ratio": 0.1}), (guest(), {"util_ratio": 0.2})]), Fields(["*"])
    )
    assert text.count("holdfast_guest_util_ratio{") == 1


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    made = Prometheus("127.0.0.1", 0, Fields(["*"]), SystemClock())
    made.start()
    yield made
    made.close()


def now_of(shot: Snapshot) -> Snapshot:
    clock = SystemClock()
    return Snapshot(shot.host, shot.pass_id, clock.now(), clock.monotonic(), 1.0, shot.tables)


def scrape(sink: Prometheus, path: str = "/metrics", timeout: float = PATIENCE_S) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}{path}", timeout=timeout) as answer:
        return str(answer.read().decode())


def test_a_scrape_gets_the_last_snapshot(prometheus: Prometheus) -> None:
    assert scrape(prometheus) == ""
    prometheus.offer(now_of(everything("a")), [change("firing"), change("firing")])
    text = scrape(prometheus)
    assert 'holdfast_alarm_transitions_total{rule="hot",state="firing"} 2.0' in text
    assert "holdfast_guest_util_ratio" in text
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(prometheus, "/")


def test_an_outdated_snapshot_is_not_served() -> None:
    clock = SimClock()
    sink = Prometheus("127.0.0.1", 0, Fields(["*"]), clock)
    shot = everything("a")
    sink.offer(Snapshot(shot.host, 1, shot.at, clock.monotonic(), 1.0, shot.tables), ())
    assert "holdfast_guest_util_ratio" in sink.text()
    clock.advance(OLD_S + 1)
    assert "holdfast_guest_util_ratio" not in sink.text()
    assert 'holdfast_snapshot_age_seconds{host="cmp-7"} 61.0' in sink.text()


def test_a_scrape_works_again_after_silent_clients_disconnect(
    prometheus: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "timeout", 600.0)  # they are not sent away before we ask
    prometheus.offer(now_of(everything("a")), ())
    idle = [socket.create_connection(("127.0.0.1", prometheus.port)) for _ in range(MOST)]
    try:
        with pytest.raises(OSError):
            scrape(prometheus)
    finally:
        for client in idle:
            client.close()
    assert eventually(lambda: _scraped(prometheus))


def _scraped(sink: Prometheus) -> str:
    try:
        return scrape(sink)
    except OSError:
        return ""


def test_a_port_in_use_is_logged_once_and_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    clock = SimClock(by_hand=True)
    with socket.create_server(("127.0.0.1", port)):
        sink = Prometheus("127.0.0.1", port, Fields(["*"]), clock)
        sink.start()
        clock.settle()
        clock.advance(6)
        clock.settle()
    assert [our.levelname for our in ours(caplog)] == ["ERROR"]
    clock.advance(6)
    eventually(lambda: sink.port == port)
    assert scrape(sink) == ""
    sink.close()


# the log


def test_the_log_shows_numbers_and_alarms_and_no_escape(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sink = lane(LogLines())
    hostile = guest(0, "a\x1b[2J\nb")
    give(sink, snapshot([(hostile, {"util_ratio": 0.5})]), [change("firing")])
    alarm, number = [our.getMessage() for our in ours(caplog)]
    assert number == f"a\\x1b[2J\\nb (guest={UUIDS[0]}): util_ratio 0.5"
    assert alarm == f"web0 (guest={UUIDS[0]}): alarm hot is raised value=0.97 threshold=0.9"


def test_sink_counters_can_be_queried(ear: Ear) -> None:
    from holdfast.metrics.admin import MetricsCommands

    sink = lane(statsd(ear))
    give(sink, snapshot([(guest(), {"util_ratio": 0.5})]))
    said = MetricsCommands(lambda: None, SimClock(), sinks=[sink]).sinks({})
    (shown,) = json.loads(json.dumps(said))["sinks"]
    assert (shown["name"], shown["sent"], shown["dropped"]) == ("statsd", 1, 0)
    assert shown["sent_bytes"] == sum(map(len, ear.heard())) + 1
