# SPDX-License-Identifier: Apache-2.0
"""Snapshots of what was read: who is stale, missing, gone, and what plugins get of it."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from holdfast.metrics import collector, plugin_input
from holdfast.metrics.collector import NO_LINK, PROMISES, Collector, promised
from holdfast.metrics.passes import Passes
from holdfast.ports.metrics import (
    DISK,
    GUEST,
    HOST,
    NIC,
    Disk,
    Facts,
    Guest,
    HostCounters,
    Link,
    Nic,
    PolledStats,
    Process,
    Reading,
    Roster,
    Snapshot,
    Stats,
    Vcpu,
)
from holdfast.runtime.clock import SystemClock
from tests.processes import eventually

WEB = Facts(
    "web",
    "instance-1",
    project="p",
    flavor="m1",
    vcpus=2,
    memory_kib=4096,
    balloon_kib=2048,
    disk_bytes=2**30,
    disks=(Disk("vda", "/a", "vol-1"),),
    nics=(Nic("tap0", "52:54:00:00:00:01", "port-1", True, {"tx_bps": 800.0}),),
)
BIG = replace(WEB, uuid="big", name="instance-2", nics=(), disks=())


class World:
    """What hypervisor and kernel would say, second by second."""

    def __init__(self) -> None:
        self.at = 100.0
        self.guests = {"web": Guest(WEB)}
        self.left: dict[str, str] = {}
        self.whole = True
        self.ran_ns = 0
        self.sent = 0
        self.process = True
        self.is_link = True
        self.last = PolledStats(interval_s=30.0)

    def start(self) -> None: ...

    def close(self) -> None: ...

    def roster(self) -> Roster:
        if not self.whole:
            return Roster(whole=False)
        return Roster(self.guests, {u: guest.facts for u, guest in self.guests.items()}, self.left)

    def polled(self) -> PolledStats:
        return self.last

    def tell(self, reqs: int, silent: dict[str, str] | None = None) -> None:
        values = {"block.count": 1, "block.0.name": "vda", "block.0.rd.reqs": reqs}
        values |= {"balloon.current": 2048, "balloon.available": 100, "balloon.unused": 50}
        self.last = PolledStats(
            self.last.round + 1, {"web": Stats(self.at, values)}, silent or {}, 30.0
        )

    def tell_names_only(self) -> None:
        """As of a guest that is passed by, because somebody waits for it already."""
        values = {"block.count": 1, "block.0.name": "vda"}
        self.last = PolledStats(self.last.round + 1, {"web": Stats(self.at, values)}, {}, 30.0)

    def pass_by(self, seconds: float, *, busy: float = 0.0, sent: int = 0) -> None:
        self.at += seconds
        self.ran_ns += int(seconds * busy * 2e9)
        self.sent += sent

    def read(self, roster: Roster) -> HostCounters:
        ran, half = self.ran_ns, self.ran_ns // 2
        vcpus = (Vcpu(0, half, 0), Vcpu(1, half, 0))
        process = Process(self.at, 1, ran, ran, 0, 4000, vcpus)
        processes = dict.fromkeys(roster.guests, process) if self.process else {}
        links = {"tap0": Link(self.sent, 0, 0, 0, 0, 0, 0, 0)} if self.is_link else {}
        host = {"cpu_idle_ns": self.at * 1e9, "cpu_user_ns": float(ran)}
        return HostCounters(self.at, host, processes, links, self.at)


class House:
    def __init__(self) -> None:
        self.world = World()
        self.collector = Collector("cmp-7", self.world, SystemClock())

    def look(self, kind: str) -> Reading:
        return self.collector.snapshot().tables[kind].readings[0]


@pytest.fixture
def house() -> House:
    made = House()
    made.world.tell(10)
    made.collector.snapshot()
    return made


def test_the_first_pass_has_counters_and_lists_rates_as_missing() -> None:
    house = House()
    reading = house.look(GUEST)
    assert reading.values["cpu_time_ns"] == 0
    assert "util_ratio" in reading.missing
    assert not reading.stale


def test_guests_and_promised_fields_are_unknown_until_all_guests_were_read() -> None:
    house = House()
    house.world.whole = False
    tables = house.collector.snapshot().tables
    assert list(tables) == [HOST]
    host = tables[HOST].readings[0]
    assert "vms_running" not in host.values
    assert {"vms_running", "disk_promised_bytes"} <= host.missing
    house.world.whole, house.world.guests = True, {}
    snapshot = house.collector.snapshot()
    assert snapshot.tables[GUEST].readings == ()
    assert snapshot.tables[HOST].readings[0].values["vms_running"] == 0


def test_promised_fields_are_all_missing_or_all_present(house: House) -> None:
    assert promised(Roster(), {}).values.keys() == PROMISES


def test_passes_carry_rates_of_kernel_counters(house: House) -> None:
    house.world.pass_by(1.0, busy=0.5, sent=200)
    snapshot = house.collector.snapshot()
    guest, nic = (snapshot.tables[kind].readings[0] for kind in (GUEST, NIC))
    assert guest.values["util_ratio"] == pytest.approx(0.5)
    assert nic.values["tx_bps"] == pytest.approx(1600)
    assert nic.values["over_contract_ratio"] == pytest.approx(2.0)
    assert snapshot.elapsed_s == pytest.approx(1.0)


def test_a_pass_after_another_has_a_higher_number_also_after_a_restart(house: House) -> None:
    first = house.collector.snapshot().pass_id
    second = house.collector.snapshot().pass_id
    assert second > first
    time.sleep(0.01)
    assert Collector("cmp-7", house.world, SystemClock()).snapshot().pass_id > second


def test_an_entity_stays_the_same_object_until_a_fact_changes(house: House) -> None:
    before = house.collector.snapshot().tables
    house.world.guests = {"web": Guest(replace(WEB, balloon_kib=1024))}
    after = house.collector.snapshot().tables
    for kind in (HOST, GUEST, DISK, NIC):
        assert after[kind].entities[0] is before[kind].entities[0]
    house.world.guests = {"web": Guest(replace(WEB, flavor="m2"))}
    assert house.look(GUEST).entity.flavor == "m2"


def test_between_polls_only_kernel_fields_are_fresh(house: House) -> None:
    house.world.pass_by(1.0)
    tables = house.collector.snapshot().tables
    assert tables[GUEST].is_fresh("util_ratio")
    assert tables[GUEST].is_fresh("vcpu1_steal_ratio")
    assert not tables[GUEST].is_fresh("used_ratio")
    assert not tables[DISK].is_fresh("rd_reqs")
    assert tables[NIC].is_fresh("rx_bps")
    house.world.tell(20)
    assert house.collector.snapshot().tables[DISK].is_fresh("rd_reqs")


def test_a_suspended_guest_keeps_the_last_values_and_is_stale(house: House) -> None:
    house.world.pass_by(1.0, busy=0.8)
    assert house.look(GUEST).values["util_ratio"] == pytest.approx(0.8)
    house.world.guests = {"web": Guest(WEB, "paused", "user")}
    house.world.pass_by(1.0)
    tables = house.collector.snapshot().tables
    for kind in (GUEST, DISK, NIC):
        assert tables[kind].readings[0].stale == "suspended: user"
    assert tables[GUEST].readings[0].values["util_ratio"] == pytest.approx(0.8)
    house.world.guests = {"web": Guest(WEB)}
    house.world.pass_by(1.0, busy=0.4)
    resumed = house.look(GUEST)
    assert not resumed.stale
    assert resumed.values["util_ratio"] == pytest.approx(0.4)


def test_a_hanging_guest_has_stale_disks_and_current_kernel_values(house: House) -> None:
    house.world.pass_by(1.0, busy=0.2)
    house.world.last = replace(house.world.last, silent={"web": "no answer"})
    tables = house.collector.snapshot().tables
    assert tables[DISK].readings[0].stale == "no answer"
    assert tables[DISK].readings[0].values["rd_reqs"] == 10
    assert not tables[GUEST].readings[0].stale
    assert not tables[NIC].readings[0].stale


def test_outdated_libvirt_values_are_left_out_and_kernel_values_stay(house: House) -> None:
    house.world.pass_by(59.0)
    assert house.look(GUEST).values["used_ratio"] == pytest.approx(0.5)
    house.world.pass_by(2.0, busy=0.5)
    tables = house.collector.snapshot().tables
    guest = tables[GUEST].readings[0]
    assert tables[DISK].readings[0].stale == "no answer"
    assert "used_ratio" in guest.missing
    assert guest.values["balloon_current_kib"] == 2048
    assert guest.values["util_ratio"] == pytest.approx(0.5)


def test_a_missing_process_or_interface_is_the_reason_of_a_stale_reading(house: House) -> None:
    house.world.process = house.world.is_link = False
    tables = house.collector.snapshot().tables
    assert tables[GUEST].readings[0].stale == "its process is gone"
    assert tables[NIC].readings[0].stale == "its interface is gone"


def test_interfaces_without_a_host_name_are_distinguished(house: House) -> None:
    more = (Nic("", "52:54:00:00:00:02", "port-2"), Nic("", "52:54:00:00:00:03"))
    facts = replace(WEB, nics=(*WEB.nics, *more))
    house.world.guests = {"web": Guest(facts)}
    readings = house.collector.snapshot().tables[NIC].readings
    ids = [reading.entity.id for reading in readings]
    assert ids == ["web/port-1", "web/port-2", "web/52:54:00:00:00:03"]
    assert [reading.stale for reading in readings] == ["", NO_LINK, NO_LINK]


def test_disks_have_rates_from_the_second_round_on(house: House) -> None:
    assert "rd_iops" in house.look(DISK).missing
    house.world.pass_by(30.0)
    house.world.tell(310)
    assert house.look(DISK).values["rd_iops"] == pytest.approx(10.0)
    house.world.pass_by(30.0)
    house.world.tell(5)
    assert house.look(DISK).values["reset"] == 1.0
    assert "rd_iops" in house.look(DISK).missing


def test_a_skipped_guest_has_rates_over_the_whole_time(house: House) -> None:
    house.world.pass_by(30.0)
    house.world.tell(3010)
    assert house.look(DISK).values["rd_iops"] == pytest.approx(100.0)
    house.world.pass_by(30.0)
    house.world.tell_names_only()
    assert house.look(DISK).values["rd_iops"] == pytest.approx(100.0)
    house.world.pass_by(30.0)
    house.world.tell(9010)
    assert house.look(DISK).values["rd_iops"] == pytest.approx(100.0)


def test_a_disk_is_stale_after_the_guest_was_skipped_for_too_long(house: House) -> None:
    for stale in ("", "", "no answer"):
        house.world.pass_by(30.0)
        house.world.tell_names_only()
        assert house.look(DISK).stale == stale
    house.world.pass_by(1.0)
    house.world.tell(20)
    assert house.look(DISK).stale == ""


def test_a_detached_disk_is_not_promised_and_starts_anew_when_reattached() -> None:
    house = House()
    two = replace(WEB, disk_bytes=None, disks=(Disk("vda"), Disk("vdb")))
    house.world.guests = {"web": Guest(two)}
    values = {"block.count": 2} | {
        f"block.{number}.{key}": value
        for number, name in enumerate(("vda", "vdb"))
        for key, value in (("name", name), ("rd.reqs", 900), ("capacity", 2**30))
    }

    def passes() -> tuple[Reading, Reading]:
        house.world.pass_by(30.0)
        house.world.last = PolledStats(
            house.world.last.round + 1, {"web": Stats(house.world.at, values)}
        )
        tables = house.collector.snapshot().tables
        return tables[HOST].readings[0], tables[DISK].readings[-1]

    passes()
    assert passes()[0].values["disk_promised_bytes"] == 2 * 2**30
    house.world.guests = {"web": Guest(replace(two, disks=(Disk("vda"),)))}
    values["block.count"] = 1
    assert passes()[0].values["disk_promised_bytes"] == 2**30
    house.world.guests = {"web": Guest(two)}
    values |= {"block.count": 2, "block.1.rd.reqs": 5}
    assert "reset" not in passes()[1].values


def test_a_guest_that_left_is_gone_with_its_disks_and_interfaces_and_the_reason(
    house: House,
) -> None:
    house.world.guests, house.world.left = {}, {"web": "migrated"}
    gone = house.collector.snapshot().gone
    assert gone == {"web": "migrated", "web/vda": "migrated", "web/port-1": "migrated"}
    assert house.collector.snapshot().gone == {}


def test_an_incoming_migration_is_marked_in_the_first_pass_only(house: House) -> None:
    house.world.guests = {**house.world.guests, "big": Guest(BIG, came="migrated")}
    came = [reading.entity.came for reading in house.collector.snapshot().tables[GUEST].readings]
    assert came == ["", "migrated"]
    assert house.collector.snapshot().tables[GUEST].readings[1].entity.came == ""


def test_promised_resources_include_stopped_servers() -> None:
    off = replace(BIG, vcpus=8, memory_kib=2**20)
    made = promised(Roster({"web": Guest(WEB)}, {"web": WEB, "big": off}), {})
    assert made.values == {
        "vms_running": 1,
        "vcpus_allocated": 2,
        "vms_defined": 2,
        "vcpus_promised": 10,
        "mem_promised_bytes": 2**30 + 2**22,
        "disk_promised_bytes": 2 * 2**30,
    }
    unknown = replace(WEB, uuid="x", disk_bytes=None)
    made = promised(Roster({}, {"x": unknown}), {})
    assert made.missing == {"disk_promised_bytes"}
    assert promised(Roster({}, {"x": unknown}), {"x": 7.0}).values["disk_promised_bytes"] == 7


def test_plugins_get_names_units_and_missing_fields(house: House) -> None:
    house.world.pass_by(1.0, busy=1.0, sent=300)
    snapshot = house.collector.snapshot()
    (host,), (cpu,) = plugin_input.on_host(snapshot), plugin_input.on_cpu(snapshot)
    assert host["ctx"]["host"] == "cmp-7"
    assert host["vcpus_promised"] == 2
    assert "load1" in host["missing"]
    assert (cpu["uuid"], cpu["project"], cpu["flavor_vcpus"]) == ("web", "p", 2)
    assert cpu["util_ratio"] == pytest.approx(1.0)
    assert cpu["missing"] == ("haltpoll_ok_ns", "haltpoll_fail_ns")
    assert [vcpu["id"] for vcpu in cpu["vcpus"]] == [0, 1]
    assert set(cpu["vcpus"][0]) == {
        *("id", "state", "time_ns", "delay_ns", "steal_ratio", "missing")
    }
    (ram,) = plugin_input.on_ram(snapshot)
    assert (ram["balloon_current_kib"], ram["used_ratio"]) == (2048, 0.5)
    assert "usable_kib" in ram["missing"]
    (volume,) = plugin_input.on_volume(snapshot)
    assert (volume["uuid"], volume["target"], volume["path"]) == ("web", "vda", "/a")
    assert volume["cinder_volume_id"] == "vol-1"
    (pipe,) = plugin_input.on_bandwidth(snapshot)
    assert (pipe["ifname"], pipe["mac"], pipe["port_id"]) == ("tap0", WEB.nics[0].mac, "port-1")
    assert pipe["over_contract_ratio"] == pytest.approx(3.0)


def test_after_a_reset_a_plugin_gets_no_rate_but_none(house: House) -> None:
    house.world.pass_by(1.0, sent=-house.world.sent)
    house.collector.snapshot()
    house.world.sent = 500
    house.collector.snapshot()
    house.world.pass_by(1.0)
    house.world.sent = 3
    (pipe,) = plugin_input.on_bandwidth(house.collector.snapshot())
    assert pipe["reset"]
    assert pipe["tx_bps"] is None
    assert "tx_bps" in pipe["missing"]


def test_every_field_of_every_callback_has_a_unit_or_is_a_plain_count(house: House) -> None:
    plain = {"load1", "fds", "ksm", "cpus", "vcpus", "major_fault", "errors", "backing_index"}
    documented = (
        collector.HOST_FIELDS
        | collector.RAM
        | collector.DISK_FIELDS
        | collector.NIC_FIELDS
        | collector.PROCESS_RATES
    )
    units = ("_ns", "_bytes", "_kib", "_per_s", "_ratio", "_bps", "_iops", "_mhz", "_avg10")
    counts = ("_reqs", "_pkts", "_errs", "_drop", "_s", "iops")
    assert {name for name in documented - plain if not name.endswith(units + counts)} == set()


def test_a_failing_receiver_does_not_affect_other_receivers(house: House) -> None:
    passes = Passes(house.collector, 1.0, SystemClock())
    taken: list[Snapshot] = []

    def bad(_snapshot: Snapshot) -> None:
        raise ValueError("mine alone")

    passes.receivers += [bad, taken.append]
    passes.turn()
    assert taken == [passes.last]
    assert taken[0].at <= datetime.now(UTC)


def test_passes_keep_their_pace_and_stop(house: House) -> None:
    passes = Passes(house.collector, 0.05, SystemClock())
    taken: list[Snapshot] = []
    passes.receivers.append(taken.append)
    passes.start()
    eventually(lambda: len(taken) >= 5)
    passes.stop()
