# SPDX-License-Identifier: Apache-2.0
"""What goes between API and manager comes out as it went in, through JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.drivers.rabbit import rpc
from holdfast.model.errors import DriverError, HoldfastError, NotEnoughHosts, Unavailable
from holdfast.model.lease import (
    Allocation,
    Lease,
    LeaseChange,
    NewLease,
    NewReservation,
    Reservation,
    Window,
)
from holdfast.model.observation import Expectation, Expected
from holdfast.ports.manager import (
    Availability,
    AvailabilityQuery,
    Available,
    Caller,
    Manager,
    Preview,
    Refusal,
    RepairMove,
    RepairReport,
)

NOW = datetime(2030, 1, 1, 12, 0, 0, 250, tzinfo=UTC)
WINDOW = Window(NOW, NOW + timedelta(hours=1))
SLOTS = Allocation(3, WINDOW, 2, {"VCPU": 4}, None, "cmp-3")
ADDRESS = Allocation(None, WINDOW, thing="address:1")
LEASE = Lease(
    "l1", "one", "u", "p", WINDOW.start, WINDOW.end,
    reservations=(
        Reservation("r1", "virtual:instance", spec={"amount": 2, "affinity": None},
                    made={"aggregate_id": 5}, allocations=(SLOTS, ADDRESS)),
    ),
)  # fmt: skip

MOVE = RepairMove(
    "l1", "one", "p", "r1", "physical:host", True, WINDOW.start, WINDOW.end,
    leaves=("cmp-1", "cmp-2"), joins=("cmp-3",), short="1 host: none is free",
)  # fmt: skip


def sent(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (Manager.create_lease, None),
        (Manager.create_lease, Preview(LEASE)),
        (Manager.update_lease, Preview(LEASE)),
        (Manager.availability, Availability(True, 3, (Available(WINDOW, 3),))),
        (Manager.availability, Availability(False, refusal=Refusal("no", {"earliest": None}))),
        (Manager.acknowledge, None),
        (Manager.plan_repair, RepairReport()),
        (Manager.run_repair, RepairReport(("cmp-1", "cmp-2"), (MOVE,), "too many", 5, 2)),
        (
            Manager.expected,
            Expectation("cmp-1", NOW, (Expected("u", "web", "runs", "it is ACTIVE"),)),
        ),
        (Manager.enrol_host, 7),
        (Manager.enrol_floatingip, "f1"),
        (Manager.ping, "m1"),
    ],
)
def test_a_result_survives_the_encoding(command: rpc.Command, result: Any) -> None:
    assert rpc.unpack_answer(command, sent(rpc.pack_answer(command, result))) == result


@pytest.mark.parametrize(
    ("command", "args"),
    [
        (
            Manager.create_lease,
            {
                "caller": Caller("u", "p", ("member",)),
                "lease": NewLease(
                    "l1", "one", None, NOW, None,
                    (NewReservation("a:b", {"deep": [{"x": None}]}),), dry_run=True,
                ),
            },
        ),
        (
            Manager.update_lease,
            {"caller": Caller("u", "p"), "lease_id": "l1",
             "change": LeaseChange(end=NOW, dry_run=True)},
        ),
        (
            Manager.availability,
            {"caller": Caller("u", "p"),
             "query": AvailabilityQuery(NewReservation("a:b"), length_s=5)},
        ),
        (Manager.plan_repair, {"caller": Caller("u", "p"), "hosts": ("cmp-1",), "racks": ("a",)}),
        (Manager.expected, {"caller": Caller("u", "p"), "host": "cmp-1", "also": ("u-1", "u-2")}),
        (
            Manager.run_repair,
            {"caller": Caller("u", "p"), "approve": True, "reason": "so it is", "domain": "r"},
        ),
    ],
)  # fmt: skip
def test_arguments_survive_the_encoding(command: rpc.Command, args: dict[str, Any]) -> None:
    assert rpc.unpack(command, sent(rpc.pack(command, args))) == args


def test_an_error_of_the_manager_is_raised_again_with_all_details() -> None:
    told = {"conditions": [{"what": "gpu", "removed": 3}], "obstacles": [], "earliest": None}
    answer = sent(rpc.pack_error(NotEnoughHosts("too few", **told)))
    with pytest.raises(NotEnoughHosts, match="too few") as raised:
        rpc.unpack_answer(Manager.create_lease, answer)
    assert raised.value.details == told


def test_details_unknown_to_json_are_sent_as_text() -> None:
    answer = sent(rpc.pack_error(NotEnoughHosts("too few", until=NOW)))
    with pytest.raises(NotEnoughHosts) as raised:
        rpc.unpack_answer(Manager.create_lease, answer)
    assert raised.value.details == {"until": str(NOW)}


def test_an_error_of_an_older_manager_has_no_parts() -> None:
    answer = {"error": {"code": NotEnoughHosts.code, "message": "too few"}}
    with pytest.raises(NotEnoughHosts) as raised:
        rpc.unpack_answer(Manager.create_lease, answer)
    assert raised.value.details == {}


def test_a_driver_error_of_the_manager_is_a_503_for_the_client() -> None:
    answer = sent(rpc.pack_error(DriverError("cloud", "away", retryable=True)))
    with pytest.raises(Unavailable, match="cloud: away"):
        rpc.unpack_answer(Manager.create_lease, answer)


def test_a_defect_of_the_manager_reaches_the_client_without_details() -> None:
    answer = sent(rpc.pack_error(KeyError("secret")))
    with pytest.raises(HoldfastError, match="unexpected error in the manager") as raised:
        rpc.unpack_answer(Manager.create_lease, answer)
    assert "secret" not in str(raised.value)


def test_an_answer_of_an_older_manager_says_nothing_of_a_preview() -> None:
    assert rpc.unpack_answer(Manager.create_lease, {"ok": None}) is None
