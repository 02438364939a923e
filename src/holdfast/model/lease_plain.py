# SPDX-License-Identifier: Apache-2.0
"""A lease as plain data and back: what durable work keeps of a lease that may be gone by then."""

import dataclasses
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.model.lease import Allocation, Lease, Reservation, Window

_TIMES = ("start", "end", "before_end", "created_at", "updated_at")


def to_plain(lease: Lease) -> dict[str, Any]:
    """JSON-able; `from_plain` gives an equal lease."""
    text = json.dumps(dataclasses.asdict(lease), default=datetime.isoformat)
    plain: dict[str, Any] = json.loads(text)
    return plain


def from_plain(plain: Mapping[str, Any]) -> Lease:
    reservations = tuple(_reservation(one) for one in plain["reservations"])
    return Lease(**{**_with_times(plain), "reservations": reservations})


def _reservation(plain: Mapping[str, Any]) -> Reservation:
    allocations = tuple(_allocation(one) for one in plain["allocations"])
    return Reservation(**{**_with_times(plain), "allocations": allocations})


def _allocation(plain: Mapping[str, Any]) -> Allocation:
    return Allocation(**{**plain, "held": Window(**_with_times(plain["held"]))})


def _with_times(plain: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: datetime.fromisoformat(value) if key in _TIMES and value else value
        for key, value in plain.items()
    }
