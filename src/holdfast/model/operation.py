# SPDX-License-Identifier: Apache-2.0
"""Durable operations: a row says what is to be done, when, and which manager does it now.

`key` is the natural key: requesting the same operation twice gives one row. `epoch` grows with
every claim, so a manager that lost its claim can no longer write. `next_try_at` is when a
manager should read the row again: its due time, the end of a back-off, or the expiry of the
current claim.
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
#: The status of a step that had nothing to do; of other finished steps DONE.
SKIPPED = "skipped"


class Skipped(str):
    """The sentence of a step that had nothing to do."""

    __slots__ = ()


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
    """The right to work on an operation; void once the epoch has grown."""

    operation_id: str
    owner: str
    epoch: int
