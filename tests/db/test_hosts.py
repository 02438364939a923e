# SPDX-License-Identifier: Apache-2.0
"""Hosts on every database: names, capabilities, and many who enrol at once."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast.db import Store
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import Inventory
from holdfast.model.lease import Lease
from holdfast.ports.cloud import CloudHost
from holdfast.ports.ledger import Work


def cloud_host(name: str) -> CloudHost:
    return CloudHost(str(uuid.uuid4()), name, name, vcpus=4, memory_mb=512, local_gb=8)


def test_many_enrol_at_once_with_a_capability_that_is_new_to_all(store: Store) -> None:
    def enrol(number: int) -> int:
        return store.ledger.enrol(cloud_host(f"h{number}"), "", {"gpu": "a"}, Work()).id

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(enrol, range(8)))
    assert len(ids) == 8
    assert [row["name"] for row in store.ledger.properties()] == ["gpu"]


def test_the_same_host_enrolled_twice_at_once_is_one_host(store: Store) -> None:
    host = cloud_host("one")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: store.ledger.enrol(host, "", {}, Work()).id, range(4)))
    assert len(set(made)) == 1


def test_a_blank_at_the_end_makes_another_name(store: Store) -> None:
    host = store.ledger.enrol(cloud_host("h"), "", {"gpu": "a", "gpu ": "b", "GPU": "c"}, Work())
    assert host.capabilities == {"gpu": "a", "gpu ": "b", "GPU": "c"}
    now = store.database.now()
    lease = Lease(str(uuid.uuid4()), "l", "u", "p", now, now + timedelta(hours=1))
    store.ledger.book(lease, Work())
    assert store.ledger.lease(lease.id).name == "l"
    with pytest.raises(NotFound):
        store.ledger.lease(f"{lease.id} ")
    assert store.ledger.with_events(project_id="p ") == []


def test_hosts_go_by_id_uuid_short_and_full_name(store: Store) -> None:
    full = store.ledger.enrol(cloud_host("cmp-1.example.org"), "", {}, Work())
    for ref in (str(full.id), full.uuid, "cmp-1", "CMP-1.example.org"):
        assert store.ledger.host(ref).id == full.id
    with pytest.raises(NotFound):
        store.ledger.host("cmp-1.example.com")
    store.ledger.enrol(cloud_host("cmp-1.example.net"), "", {}, Work())
    with pytest.raises(Conflict, match="several hosts"):
        store.ledger.host("cmp-1")


def test_a_host_whose_name_is_a_number_is_not_the_host_of_that_id(store: Store) -> None:
    first = store.ledger.enrol(cloud_host("a"), "", {}, Work())
    other = store.ledger.enrol(cloud_host(str(first.id)), "", {}, Work())
    assert other.id != first.id


def test_a_host_is_written_anew_when_the_cloud_says_something_new_of_it(store: Store) -> None:
    cores = Inventory(4, reserved=1, ratio=1.1, most=4)
    first = replace(cloud_host("a"), inventories={"VCPU": cores}, traits=frozenset({"X", "Y"}))
    made = store.ledger.enrol(first, "", {}, Work())
    assert not store.ledger.refresh(made.id, first, "")
    assert store.ledger.host("a") == made
    changes = (
        replace(first, traits=frozenset({"X"})),
        replace(first, inventories={"VCPU": replace(cores, ratio=1.2)}),
        replace(first, zone="az-2"),
    )
    for number, change in enumerate(changes, 1):
        assert store.ledger.refresh(made.id, change, "")
        after = store.ledger.host("a")
        assert after.generation == made.generation + number
        assert (after.inventories, after.traits) == (change.inventories, change.traits)
    store.ledger.withdraw(made.id, Work())
    assert not store.ledger.refresh(made.id, first, "")
