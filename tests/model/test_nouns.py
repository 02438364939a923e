# SPDX-License-Identifier: Apache-2.0
"""Hosts, leases, state machines and errors: the rules of the nouns themselves."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.model import errors, state_machines
from holdfast.model.errors import HoldfastError, IllegalMove
from holdfast.model.host import AMOUNTS, RESERVED_NAMES, Host, Inventory, normalise, same, short
from holdfast.model.lease import SEQUENCE, Allocation, Lease, Reservation
from holdfast.model.operation import OPEN
from holdfast.ports.manager import Caller

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


# hosts


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("cmp-1", "cmp-1", True),
        ("CMP-1", "cmp-1", True),
        ("cmp-1.example.org.", "cmp-1.example.org", True),
        ("cmp-1", "cmp-1.example.org", True),
        ("cmp-1.example.org", "cmp-1.example.com", False),
        ("cmp-1", "cmp-10", False),
        ("cmp-1", "cmp", False),
        (" cmp-1 ", "cmp-1", True),
    ],
)
def test_short_and_full_names_mean_one_host(one: str, other: str, expected: bool) -> None:
    assert same(one, other) is same(other, one) is expected


def test_names_are_kept_in_one_form() -> None:
    assert normalise(" CMP-1.Example.ORG. ") == "cmp-1.example.org"
    assert short("CMP-1.Example.ORG") == "cmp-1"


def test_a_capability_never_hides_a_column() -> None:
    host = Host(1, "u", "n", "h", "s", vcpus=8, capabilities={"vcpus": "99", "gpu": "x"})
    assert host.facts()["vcpus"] == 8
    assert host.facts()["gpu"] == "x"
    assert {"vcpus", "reservable", "created_at"} <= RESERVED_NAMES
    assert host.facts().keys() - {"gpu", "rack", "region", *AMOUNTS} <= RESERVED_NAMES


def test_rack_and_region_as_capabilities_replace_the_columns() -> None:
    host = Host(1, "u", "n", "h", "s", rack="a", region="north", capabilities={"rack": "b7"})
    assert (host.fact("rack"), host.fact("region")) == ("b7", "north")
    assert (host.facts()["rack"], host.facts()["region"]) == ("b7", "north")


def test_the_amounts_of_a_host_follow_placement_inventories_where_known() -> None:
    host = Host(1, "u", "n", "h", "s", vcpus=8, memory_mb=100, local_gb=7)
    assert [host.fact(name) for name in AMOUNTS] == [8, 100, 7]
    known = {"VCPU": Inventory(6, 1, 16.0), "PCPU": Inventory(2), "MEMORY_MB": Inventory(90, 99)}
    host = replace(host, inventories=known, capabilities={"cpu_cores": "many"})
    assert [host.amount(name) for name in AMOUNTS] == [7, 0, 7]
    assert host.fact("cpu_cores") == "many"
    assert host.fact("moon") is None
    assert all(host.fact(name) == value for name, value in host.facts().items())


# state machines

#: Section 2.1 of the contract, word for word.
LEASE = {
    "PENDING": {"STARTING", "UPDATING", "DELETING"},
    "ACTIVE": {"TERMINATING", "UPDATING", "DELETING"},
    "TERMINATED": {"UPDATING", "DELETING"},
    "ERROR": {"TERMINATING", "UPDATING", "DELETING"},
    "CREATING": {"PENDING", "DELETING"},
    "STARTING": {"ACTIVE", "ERROR", "DELETING"},
    "UPDATING": {"PENDING", "ACTIVE", "TERMINATED", "ERROR", "DELETING"},
    "TERMINATING": {"TERMINATED", "ERROR", "DELETING"},
    "DELETING": {"ERROR"},
}
RESERVATION = {
    "pending": {"active", "deleted", "error"},
    "active": {"deleted", "error"},
    "error": {"deleted"},
    "deleted": set(),
}


def lease(status: str, *reservations: Reservation) -> Lease:
    return Lease("id", "n", "u", "p", NOW, NOW + HOUR, status=status, reservations=reservations)


@pytest.mark.parametrize("old", LEASE)
@pytest.mark.parametrize("new", LEASE)
def test_leases_move_as_the_contract_has_it_and_no_other_way(old: str, new: str) -> None:
    if new == old or new in LEASE[old]:
        assert lease(old).move(new).status == new
        return
    with pytest.raises(IllegalMove, match=f"lease id is {old} and cannot become {new}"):
        lease(old).move(new)


@pytest.mark.parametrize("old", RESERVATION)
@pytest.mark.parametrize("new", RESERVATION)
def test_reservations_move_as_the_contract_has_it(old: str, new: str) -> None:
    reservation = Reservation("r", "physical:host", status=old)
    if new == old or new in RESERVATION[old]:
        assert reservation.move(new).status == new
        return
    with pytest.raises(IllegalMove):
        reservation.move(new)


def test_every_target_of_a_table_is_a_state_of_it() -> None:
    for table in (state_machines.LEASE, state_machines.RESERVATION, state_machines.OPERATION):
        assert {t for targets in table.values() for t in targets} <= table.keys()


def test_closed_operations_stay_closed() -> None:
    closed = state_machines.OPERATION.keys() - OPEN
    assert closed == {"done", "error", "cancelled"}
    assert not any(state_machines.OPERATION[state] for state in closed)


def test_an_unknown_state_has_no_transitions() -> None:
    with pytest.raises(IllegalMove):
        state_machines.check("x", state_machines.LEASE, "MOON", "ACTIVE")
    with pytest.raises(IllegalMove):
        state_machines.check("x", state_machines.LEASE, "ACTIVE", "MOON")


# leases


def reservation(status: str, *allocations: Allocation) -> Reservation:
    return Reservation(f"r-{status}", "physical:host", status=status, allocations=allocations)


def test_reservations_move_together_but_none_backwards() -> None:
    before = lease("STARTING", *(reservation(s) for s in ("pending", "error", "deleted", "active")))
    after = before.move_reservations("active")
    assert [r.status for r in after.reservations] == ["active", "error", "deleted", "active"]
    gone = after.move_reservations("deleted")
    assert {r.status for r in gone.reservations} == {"deleted"}


def test_the_work_of_a_lease_has_an_order() -> None:
    order = sorted(SEQUENCE, key=lambda kind: SEQUENCE[kind])
    assert order[:2] == ["lease_arrange", "lease_start"]
    assert order[-3:] == ["lease_before_end", "lease_end", "lease_delete"]
    assert len(set(SEQUENCE.values())) == len(SEQUENCE)


# errors and callers


def tree(cls: type[HoldfastError] = HoldfastError) -> list[type[HoldfastError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in tree(child))]


def test_every_error_has_a_code_of_its_own() -> None:
    ours = [cls for cls in tree() if cls.__module__.startswith("holdfast.")]
    assert len({cls.code for cls in ours}) == len(ours)
    found = errors.by_code()
    for cls in ours:
        assert found[cls.code] is cls


def test_errors_carry_a_sentence_even_without_one() -> None:
    assert errors.NotFound().message == "Not found"
    error = errors.DriverError("cloud", "no answer", retryable=True, host="cmp-1")
    assert (error.message, error.details) == ("cloud: no answer", {"host": "cmp-1"})


def test_projects_do_not_see_each_other_but_admins_do() -> None:
    assert Caller("u", "p").may_see("p")
    assert not Caller("u", "p").may_see("q")
    assert Caller("u", "p", is_admin=True).may_see("q")
