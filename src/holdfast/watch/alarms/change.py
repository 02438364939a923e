# SPDX-License-Identifier: Apache-2.0
"""What is told of an alarm: one that changed, and messages that belong together."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from math import isfinite
from typing import Any, Final

OK: Final = "ok"
PENDING: Final = "pending"
FIRING: Final = "firing"
NO_DATA: Final = "no_data"
STATES: Final = (OK, PENDING, FIRING, NO_DATA)

#: Why something is told.
RAISED: Final = "raised"
CLEARED: Final = "cleared"
LOST: Final = "no_data"
AGAIN: Final = "again"
_DATES: Final = ("first_at", "last_at", "at")
_WORDS: Final = ("version", "name", "project", "topic", "summary", "reason", "event")


@dataclass(frozen=True, slots=True)
class Change:
    """An alarm went from one state to another, or is told of."""

    rule: str
    version: str
    host: str
    kind: str
    entity: str
    name: str
    project: str
    before: str
    state: str
    severity: str
    value: float | None  # None: not known
    threshold: float
    window_s: float
    first_at: datetime
    last_at: datetime
    at: datetime
    samples: int
    topic: str = ""
    summary: str = ""
    reason: str = ""
    actions: tuple[str, ...] = ()
    event: str = ""  # raised, cleared, no_data, again; "" of a change that is told to nobody

    @property
    def key(self) -> str:
        """The same for everything that is told of one alarm, from begin to end: told twice, it is
        the same alarm."""
        return f"{self.entity}/{self.rule}/{self.first_at.isoformat()}"

    def plain(self) -> dict[str, Any]:
        """As JSON has it; with the key, and without what is empty."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        found |= {name: found[name].isoformat() for name in _DATES}
        found |= {"actions": list(self.actions), "key": self.key}
        if self.value is not None and not isfinite(self.value):
            found["value"] = None
        return {name: value for name, value in found.items() if value not in ("", [])}


def change_from(plain: Mapping[str, Any]) -> Change:
    """Back from `plain`."""
    found = {**dict.fromkeys(_WORDS, ""), **plain}
    del found["key"]
    found |= {name: datetime.fromisoformat(found[name]) for name in _DATES}
    return Change(**{**found, "actions": tuple(plain.get("actions", ()))})


@dataclass(frozen=True, slots=True)
class Group:
    """Messages about one project on one host, sent as one; those about the host have no project."""

    host: str
    project: str
    changes: tuple[Change, ...]

    def plain(self) -> dict[str, Any]:
        told = [one.plain() for one in self.changes]
        return {"host": self.host, "project": self.project, "alarms": told}
