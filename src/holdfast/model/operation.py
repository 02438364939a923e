# SPDX-License-Identifier: Apache-2.0
"""Durable work: an operation is a row that says what is to be done, when, and who does it now.

`key` is the natural key: the same work asked for twice is one row. `epoch` grows with every claim,
so a manager that lost its claim cannot write any more. `next_try_at` is when anybody should look
at the row again: its time, the end of a back-off, or the expiry of the present claim.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

WAITING, RUNNING, RETRYING, DONE, ERROR, CANCELLED = (
    "waiting",
    "running",
    "retrying",
    "done",
    "error",
    "cancelled",
)
OPEN = frozenset({WAITING, RUNNING, RETRYING})


@dataclass(frozen=True)
class Operation:
    id: str
    kind: str
    subject: str
    key: str
    due_at: datetime
    next_try_at: datetime
    sequence: int = 0
    status: str = WAITING
    owner: str | None = None
    epoch: int = 0
    claim_until: datetime | None = None
    attempts: int = 0
    sentence: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    done_steps: frozenset[str] = frozenset()
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True)
class Claim:
    """The right to work on one operation; worth nothing once the epoch has moved on."""

    operation_id: str
    owner: str
    epoch: int
