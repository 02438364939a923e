# SPDX-License-Identifier: Apache-2.0
"""The auditor of the races can fail: each thing that must not be is planted, and found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.db import Store, migrations
from holdfast.runtime.clock import SystemClock
from tests.races import journal
from tests.races.audit import QUERIES, Audit
from tests.races.journal import Entry, Told

NINE, TEN, ELEVEN = (f"2031-01-01 {hour:02d}:00:00.000000" for hour in (9, 10, 11))
CAPACITY = {"VCPU": 8, "MEMORY_MB": 1000, "DISK_GB": 100}
WHOLE = {"min": 1, "max": 1}
SLOTS = {"vcpus": 3, "memory_mb": 100, "disk_gb": 10, "amount": 2}
TWO = {"VCPU": 6, "MEMORY_MB": 200, "DISK_GB": 20}


class Ground:
    """Rows by hand in a file that is ours."""

    def __init__(self, url: str) -> None:
        self.audit = Audit(url, CAPACITY)
        self.run = self.audit.run
        self.run(
            "INSERT INTO hosts (id, uuid, name, hypervisor_hostname, service_host, hypervisor_type,"
            " hypervisor_version, cpu_info, region, zone, rack, vcpus, memory_mb, local_gb,"
            " inventories, state, enrolled, reservable, generation, touched_at, created_at) VALUES"
            " (1, 'u', 'h', 'h', 'h', '', 0, '', '', '', '', 8, 1000, 100, '{}', 'up', 1, 1, 0,"
            " :at, :at)",
            at=NINE,
        )

    def lease(self, name: str, kind: str = "physical:host", **spec: object) -> None:
        """A lease from nine to eleven with one reservation, and its work."""
        self.run(
            "INSERT INTO leases (id, name, user_id, project_id, start_date, end_date, status,"
            " degraded, version, created_at) VALUES (:id, '', '', '', :start, :end, 'PENDING', 0,"
            " 0, :start)",
            **{"id": name, "start": NINE, "end": ELEVEN},
        )
        self.run(
            "INSERT INTO reservations (id, lease_id, position, resource_type, status,"
            " missing_resources, resources_changed, spec, made, created_at)"
            " VALUES (:id, :id, 0, :kind, 'pending', 0, 0, :spec, '{}', :at)",
            **{"id": name, "kind": kind, "spec": json.dumps(spec), "at": NINE},
        )
        self.work(name, "lease_start")
        self.work(name, "lease_end")

    def work(self, subject: str, kind: str) -> None:
        self.run(
            "INSERT INTO operations (id, kind, subject, key, sequence, due_at, status, is_open,"
            " epoch, attempts, next_try_at, sentence, payload, created_at) VALUES (:key, :kind,"
            " :subject, :key, 0, :at, 'waiting', 1, 0, 0, :at, '', '{}', :at)",
            **{"key": f"{kind}/{subject}", "kind": kind, "subject": subject, "at": NINE},
        )

    def hold(
        self,
        reservation: str,
        *,
        host: int | None = 1,
        slots: int | None = None,
        takes: dict[str, int] | None = None,
        thing: str | None = None,
        since: str = NINE,
        until: str = ELEVEN,
    ) -> None:
        self.run(
            "INSERT INTO allocations (reservation_id, host_id, held_from, held_until, slots, takes,"
            " thing) VALUES (:reservation, :host, :since, :until, :slots, :takes, :thing)",
            reservation=reservation,
            host=host,
            since=since,
            until=until,
            slots=slots,
            takes=json.dumps(takes) if takes else None,
            thing=thing,
        )


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    store = Store(url, SystemClock())
    migrations.sync(store.database)
    store.close()
    yield Ground(url)


def tidy(ground: Ground) -> None:
    """A whole host, slots side by side after it, and an address: all as it should be."""
    ground.lease("whole", **WHOLE)
    ground.hold("whole")
    ground.lease("slots", "virtual:instance", **SLOTS)
    ground.run("UPDATE leases SET start_date = :at WHERE id = 'slots'", at=ELEVEN)
    ground.run("UPDATE leases SET end_date = '2031-01-01 12:00:00.000000' WHERE id = 'slots'")
    late = {"since": ELEVEN, "until": "2031-01-01 12:00:00.000000"}
    ground.hold("slots", slots=2, takes=TWO, **late)
    ground.lease("address", "virtual:floatingip", amount=1)
    ground.hold("address", host=None, thing="ip:1")


def whole_twice(ground: Ground) -> None:
    ground.lease("b", **WHOLE)
    ground.hold("b", since=TEN)
    ground.run("UPDATE leases SET start_date = :at WHERE id = 'b'", at=TEN)


def whole_under_slots(ground: Ground) -> None:
    ground.lease("b", "virtual:instance", **SLOTS)
    ground.hold("b", slots=2, takes=TWO)


def thing_twice(ground: Ground) -> None:
    ground.lease("b", "virtual:floatingip", amount=1)
    ground.hold("b", host=None, thing="ip:1")


def holds_nothing(ground: Ground) -> None:
    ground.hold("address", host=None)


def over_before(ground: Ground) -> None:
    ground.hold("address", host=None, thing="ip:2", until=NINE)


def no_reservation(ground: Ground) -> None:
    ground.run("DELETE FROM reservations WHERE id = 'whole'")


def host_gone(ground: Ground) -> None:
    ground.run("UPDATE hosts SET enrolled = 0")


def no_lease(ground: Ground) -> None:
    ground.run("DELETE FROM leases WHERE id = 'whole'")


def too_short(ground: Ground) -> None:
    ground.run("UPDATE leases SET end_date = '2031-01-01 11:30:00.000000' WHERE id = 'whole'")


def no_end(ground: Ground) -> None:
    ground.run("DELETE FROM operations WHERE key = 'lease_end/whole'")


def work_of_nobody(ground: Ground) -> None:
    ground.work("ghost", "lease_start")


def too_few(ground: Ground) -> None:
    ground.run("DELETE FROM allocations WHERE reservation_id = 'whole'")


def slot_lost(ground: Ground) -> None:
    ground.run("DELETE FROM allocations WHERE reservation_id = 'slots'")


def address_lost(ground: Ground) -> None:
    ground.run("DELETE FROM allocations WHERE reservation_id = 'address'")


def light_slots(ground: Ground) -> None:
    light = json.dumps({**TWO, "VCPU": 2})
    ground.run("UPDATE allocations SET takes = :light WHERE slots IS NOT NULL", light=light)


PLANTED = {
    "a host held as a whole is held by somebody else at the same time": whole_twice,
    "a thing is held twice at the same time": thing_twice,
    "an allocation holds neither a host nor a thing": holds_nothing,
    "an allocation is over before it begins": over_before,
    "an allocation has no reservation": no_reservation,
    "an allocation holds a host that cannot be reserved": host_gone,
    "a reservation has no lease": no_lease,
    "a lease has no reservation": no_reservation,
    "an allocation does not last as long as its lease": too_short,
    "a lease lacks its start or its end": no_end,
    "work waits for a lease that is not there": work_of_nobody,
    "a reservation of whole hosts has too few or too many": too_few,
    "a reservation of slots has too few or too many": slot_lost,
    "a reservation of addresses has too few or too many": address_lost,
    "slots take something else than their size": light_slots,
}


def test_a_tidy_book_has_no_findings(ground: Ground) -> None:
    tidy(ground)
    assert ground.audit.findings() == []


def test_every_database_understands_the_audit(database_url: str) -> None:
    store = Store(database_url, SystemClock())
    migrations.sync(store.database)
    store.close()
    assert Audit(database_url, CAPACITY).findings() == []


@pytest.mark.parametrize("what", QUERIES)
def test_the_audit_finds_every_forbidden_state(ground: Ground, what: str) -> None:
    tidy(ground)
    PLANTED[what](ground)
    assert what in {finding.partition(":")[0] for finding in ground.audit.findings()}


def test_slots_on_a_host_that_is_held_as_a_whole_are_found(ground: Ground) -> None:
    tidy(ground)
    whole_under_slots(ground)
    assert "held as a whole" in ground.audit.findings()[0]


def test_a_host_sold_beyond_its_capacity_for_an_hour_is_found(ground: Ground) -> None:
    for name, since, until in (("a", NINE, TEN), ("b", TEN, ELEVEN), ("c", NINE, ELEVEN)):
        ground.lease(name, "virtual:instance", **SLOTS)
        times = {"since": since, "until": until}
        ground.hold(name, slots=2, takes=TWO, **times)
        for column, at in (("start_date", since), ("end_date", until)):
            ground.run(f"UPDATE leases SET {column} = :at WHERE id = :id", at=at, id=name)
    found = ground.audit.findings()
    # a and c at nine, b and c at ten; a and b only touch
    assert {finding.partition(":")[0] for finding in found} == {
        "more VCPU is taken of a host than the 8 it has"
    }
    ground.run("DELETE FROM allocations WHERE reservation_id = 'c'")
    ground.run("DELETE FROM operations WHERE subject = 'c'")
    ground.run("DELETE FROM reservations WHERE id = 'c'")
    ground.run("DELETE FROM leases WHERE id = 'c'")
    assert ground.audit.findings() == []


def test_the_audit_compares_the_answers_of_clients_with_the_tables(ground: Ground) -> None:
    tidy(ground)
    window = (NINE[:19], ELEVEN[:19])
    good = Told(accepted={"whole": [window], "address": [window]}, deleted={"gone"}, refused={"no"})
    nobody = "lease slots is there and nobody was told"
    assert ground.audit.told(good) == [nobody]
    ground.work("no", "lease_start")
    bad = Told(
        accepted={"whole": [(NINE[:19], TEN[:19])], "lost": [window]},
        deleted={"address"},
        refused={"no"},
        unsure={"slots"},
    )
    found = ground.audit.told(bad)
    assert [line.split(",")[0].split(":")[0] for line in found] == [
        "lease no was refused and is there",
        "lease address was deleted and is there",
        "lease whole is ('2031-01-01 09",
        "lease lost was accepted and is not there",
    ]


def test_only_a_lease_without_other_writers_has_a_single_possible_window() -> None:
    one, two, three = ((f"{hour}", "end") for hour in "123")
    entries = [
        Entry(1, "create", "own", "yes", window=one),
        Entry(1, "update", "own", "yes", window=two),
        Entry(1, "update", "own", "no"),
        Entry(1, "create", "common", "yes", window=one),
        Entry(2, "meddle", "common", "yes", window=three),
        Entry(1, "create", "refused", "no"),
        Entry(2, "delete", "refused", "no"),
        Entry(1, "create", "deleted", "yes", window=one),
        Entry(2, "delete", "deleted", "yes"),
        Entry(1, "create", "lost", "unsure"),
    ]
    told = journal.told(entries)
    assert told.accepted == {"own": [two], "common": [one, three]}
    assert (told.refused, told.deleted, told.unsure) == ({"refused"}, {"deleted"}, {"lost"})
