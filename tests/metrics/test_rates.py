# SPDX-License-Identifier: Apache-2.0
"""Rates of counters that grow, stand still, step back or are not there."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.metrics import collector
from holdfast.ports.metrics import Facts, Link, Process, Stats, Vcpu

#: However busy the machine is.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

COUNTER = st.integers(0, 2**63)
LINKS = st.builds(Link, *(COUNTER for _ in Link._fields))
SECONDS = st.floats(0.001, 1000)
VCPUS = st.lists(st.tuples(COUNTER, COUNTER), max_size=4).map(
    lambda many: tuple(Vcpu(number, *times) for number, times in enumerate(many))
)
PROCESSES = st.builds(
    Process,
    at=st.just(100.0),
    started=st.just(7),
    cpu_ns=COUNTER,
    user_ns=COUNTER,
    system_ns=COUNTER,
    rss_kib=COUNTER,
    vcpus=VCPUS,
)
DISKS = st.fixed_dictionaries({}, optional=dict.fromkeys(collector.DISK_COUNTERS.values(), COUNTER))
SERVER = Facts("u", "web", vcpus=4, memory_kib=4096, balloon_kib=4096)


def process(at: float, cpu_ns: int, *vcpus: tuple[int, int], started: int = 7) -> Process:
    made = tuple(Vcpu(number, *times) for number, times in enumerate(vcpus))
    return Process(at, started, cpu_ns, cpu_ns, 0, 4000, made)


def sane(made: collector.Made, names: frozenset[str]) -> None:
    """Never below zero, and what is not there is named."""
    for name in names:
        assert (name in made.values) != (name in made.missing)
        assert made.values.get(name, 0) >= 0


@CALM
@given(PROCESSES, PROCESSES, SECONDS)
def test_rates_of_a_process_are_never_negative_and_a_step_back_is_a_reset(
    before: Process, now: Process, seconds: float
) -> None:
    now = now._replace(at=before.at + seconds)
    made = collector.process_rates(now, before, 4)
    sane(made, collector.PROCESS_RATES)
    assert all(value >= 0 for value in made.values.values())
    if now.cpu_ns < before.cpu_ns:
        assert made.values["reset"]
        assert "util_ratio" in made.missing


@CALM
@given(LINKS, LINKS, SECONDS, st.booleans())
def test_rates_of_an_interface_are_never_negative_and_a_step_back_is_a_reset(
    before: Link, now: Link, seconds: float, swapped: bool
) -> None:
    made = collector.nic_rates(now, before, seconds, swapped=swapped, contracts={"tx_bps": 1e9})
    sane(made, collector.NIC_FIELDS)
    stepped = any(new < old for new, old in zip(now, before, strict=True))
    assert ("reset" in made.values) == stepped == ("rx_bps" in made.missing)


@CALM
@given(DISKS, DISKS, SECONDS)
def test_rates_of_a_disk_are_never_negative_and_a_step_back_is_a_reset(
    before: dict[str, float], now: dict[str, float], seconds: float
) -> None:
    made = collector.disk_rates(now, before, seconds)
    sane(made, collector.DISK_FIELDS)
    stepped = any(now[name] < before[name] for name in now if name in before)
    assert ("reset" in made.values) == stepped
    assert not stepped or made.missing >= collector.DISK_RATES


@CALM
@given(st.dictionaries(st.sampled_from(["cpu_idle_ns", "cpu_user_ns", "cpu_iowait_ns"]), COUNTER))
def test_a_freshly_started_host_has_counters_and_no_rates(now: dict[str, float]) -> None:
    made = collector.host_rates(now, None)
    assert made.values == now
    assert made.missing >= collector.HOST_RATES


def test_full_use_of_all_vcpus_is_a_ratio_of_1() -> None:
    before = process(10.0, 0, (0, 0), (0, 0))
    now = process(12.0, 4_000_000_000, (2_000_000_000, 0), (2_000_000_000, 500_000_000))
    made = collector.process_rates(now, before, 2)
    assert made.values["util_ratio"] == pytest.approx(1.0)
    assert made.values["vcpu1_steal_ratio"] == pytest.approx(0.25)
    assert made.values["steal_ratio"] == pytest.approx(0.125)
    assert not made.missing


def test_a_restarted_guest_has_no_rate_even_if_the_counter_is_higher() -> None:
    made = collector.process_rates(process(11.0, 900, started=8), process(10.0, 100, started=7), 1)
    assert made.values["reset"] == 1.0
    assert "util_ratio" not in made.values


def test_a_hot_plugged_vcpu_keeps_the_cpu_rate_of_the_guest() -> None:
    made = collector.process_rates(
        process(11.0, 10**9, (5, 5), (1, 1)), process(10.0, 0, (4, 4)), 1
    )
    assert made.values["util_ratio"] == pytest.approx(0.5)
    assert made.missing == {"steal_ratio"}


def test_host_cpu_use_excludes_idle_and_iowait() -> None:
    before = {"cpu_user_ns": 0, "cpu_kernel_ns": 0, "cpu_idle_ns": 0, "cpu_iowait_ns": 0}
    now = {"cpu_user_ns": 60, "cpu_kernel_ns": 15, "cpu_idle_ns": 20, "cpu_iowait_ns": 5}
    made = collector.host_rates(now, before)
    assert made.values["cpu_util_ratio"] == pytest.approx(0.75)
    assert made.values["cpu_iowait_ratio"] == pytest.approx(0.05)


@pytest.mark.parametrize("name", ["cpu_idle_ns", "cpu_iowait_ns"])
def test_a_small_step_back_of_idle_time_keeps_the_host_rates(name: str) -> None:
    tick = 10_000_000
    before = dict.fromkeys(("cpu_user_ns", "cpu_idle_ns", "cpu_iowait_ns"), 10**12)
    now = {key: value + 10 * tick for key, value in before.items()} | {name: before[name] - tick}
    made = collector.host_rates(now, before)
    assert made.values["cpu_util_ratio"] == pytest.approx(0.5)
    assert made.values["cpu_iowait_ratio"] in (0, pytest.approx(0.5))
    assert "reset" not in made.values
    for other in ({name: 0}, {"cpu_user_ns": before["cpu_user_ns"] - tick}):
        begun = collector.host_rates(now | other, before)
        assert begun.values["reset"] and begun.missing >= collector.HOST_RATES


def test_bytes_sent_by_the_tap_are_received_by_the_guest_and_compared_with_the_contract() -> None:
    quiet = Link(0, 0, 0, 0, 0, 0, 0, 0)
    sent = Link(125_000_000, 10, 1, 2, 2_500_000_000, 20, 3, 4)
    made = collector.nic_rates(
        sent, quiet, 1.0, swapped=True, contracts={"rx_bps": 5e9, "tx_bps": 5e9}
    )
    assert (made.values["rx_bps"], made.values["tx_bps"]) == (20e9, 1e9)
    assert (made.values["rx_errs"], made.values["rx_drop"]) == (3, 4)
    assert made.values["over_contract_ratio"] == pytest.approx(4.0)
    assert made.values["contract_bps"] == 5e9


def test_a_macvtap_counts_from_the_guests_side() -> None:
    sent = Link(125, 1, 0, 0, 0, 0, 0, 0)
    made = collector.nic_rates(sent, Link(*[0] * 8), 1.0, swapped=False, contracts={})
    assert made.values["rx_bps"] == 1000
    assert made.missing == {"contract_bps", "over_contract_ratio"}


def test_the_latency_of_a_disk_is_per_request_and_none_while_nothing_is_asked() -> None:
    before = dict.fromkeys(collector.DISK_COUNTERS.values(), 0)
    now = before | {"rd_reqs": 10, "rd_times_ns": 50, "wr_reqs": 10, "wr_times_ns": 150}
    made = collector.disk_rates(now | {"allocation_bytes": 3, "capacity_bytes": 4}, before, 2.0)
    assert made.values["mean_latency_ns"] == 10
    assert made.values["wr_mean_latency_ns"] == 15
    assert made.values["fl_mean_latency_ns"] == 0
    assert made.values["iops"] == 10
    assert made.values["fill_ratio"] == 0.75


def test_disk_numbers_may_have_gaps_and_a_skipped_disk_has_no_values() -> None:
    stats: dict[str, float | str] = {
        "block.count": 3,
        "block.0.name": "vda",
        "block.0.rd.reqs": 1,
        "block.1.name": "vdb",
        "block.2.name": "vdc",
        "block.2.rd.reqs": 3,
        "block.2.capacity": 9,
    }
    disks = collector.disks_rates(Stats(1.0, stats))
    assert disks == {"vda": {"rd_reqs": 1}, "vdc": {"rd_reqs": 3, "capacity_bytes": 9}}


def test_used_memory_is_known_only_if_the_guest_reports_memory() -> None:
    stats = {"balloon.available": 1000, "balloon.unused": 100, "balloon.swap_in": 50}
    reported = Stats(10.0, {**stats, "balloon.usable": 250, "balloon.last-update": 95})
    made = collector.ram_rates(reported, Stats(8.0, {"balloon.swap_in": 10}), SERVER, 100.0)
    assert made.values["used_ratio"] == pytest.approx(0.75)
    assert made.values["swap_in_kib_per_s"] == 20
    assert made.values["last_update_age_s"] == 5
    silent = collector.ram_rates(Stats(10.0, {"balloon.last-update": 0}), None, SERVER, 100.0)
    assert silent.values == {"balloon_current_kib": 4096, "balloon_maximum_kib": 4096}
    assert {"used_ratio", "last_update_age_s", "haltpoll_ok_ns"} <= silent.missing
