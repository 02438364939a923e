# SPDX-License-Identifier: Apache-2.0
"""How nasty the simulated cloud is right now: values, their checks, their rows."""

import dataclasses
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.model.errors import InvalidInput
from holdfast.ports import cloud as ports

#: Every call of every port, as `only_calls`, `calls()` and `effects()` name them.
CALLS = frozenset(
    f"{protocol.__name__.lower()}.{method}"
    for protocol in (
        ports.Hosts,
        ports.Pools,
        ports.Servers,
        ports.Moves,
        ports.Services,
        ports.Flavors,
        ports.Slots,
        ports.Addresses,
        ports.Volumes,
    )
    for method in vars(protocol)
    if not method.startswith("_")
)
#: Those of its hosts' fences (`drivers/fence/sim.py`): their faults are theirs alone.
FENCES = frozenset({"fence.power", "fence.off", "fence.on"})


@dataclass(frozen=True)
class Settings:
    """Faults of calls (only those of `only_calls`, if any) and the pace of the world."""

    latency_s: float = 0.0  # how long a call takes
    latency_jitter: float = 0.0  # by what fraction, more or less
    lost_reply_rate: float = 0.0  # it happens, but nobody hears
    failure_rate: float = 0.0  # it does not happen
    hang_s: float = 0.0  # it blocks; at the call's timeout the caller gives up
    down: bool = False  # every call fails at once
    only_calls: tuple[str, ...] = ()
    delete_s: float = 0.0  # a server is `deleting` that long
    action_s: float = 0.0  # stop, start, shelve, evacuate, ... take that long
    service_down_s: float = 0.0  # a dead host's service still looks up that long
    report_s: float = 0.0  # how often a nova-compute reports; 0: all the time
    fence_lies: bool = False  # a fence takes the order, and the power stays as it is

    def applies_to(self, call: str) -> bool:
        return not self.only_calls or call in self.only_calls


FIELDS = tuple(field.name for field in dataclasses.fields(Settings))
_TRUTHS = frozenset({"down", "fence_lies"})
_RATES = frozenset({"latency_jitter", "lost_reply_rate", "failure_rate"})


def check(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes as Settings keeps them; InvalidInput names the first wrong field."""
    return {name: _value(name, value) for name, value in changes.items()}


LARGEST = 86_400.0


def load(db: sqlite3.Connection) -> Settings:
    rows = db.execute("SELECT name, value FROM settings").fetchall()
    return Settings(**check({row["name"]: json.loads(row["value"]) for row in rows}))


def save(db: sqlite3.Connection, changes: Mapping[str, Any]) -> None:
    for name, value in check(changes).items():
        db.execute(
            "INSERT INTO settings VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, json.dumps(value)),
        )


def _value(name: str, value: Any) -> Any:
    if name not in FIELDS:
        raise _wrong(name, f"no such setting; there are {', '.join(FIELDS)}")
    if name in _TRUTHS:
        if not isinstance(value, bool):
            raise _wrong(name, "must be true or false")
        return value
    if name == "only_calls":
        return _calls(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, "must be a number")
    if not 0 <= value < LARGEST:  # not true of NaN either
        raise _wrong(name, "must be zero or more, and no more than a day of seconds")
    if name in _RATES and value > 1:
        raise _wrong(name, "must be between 0 and 1")
    return float(value)


def _calls(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise _wrong("only_calls", "must be a list of call names")
    unknown = [call for call in value if call not in CALLS | FENCES]
    if unknown:
        raise _wrong("only_calls", f"no such call: {unknown[0]!r}")
    return tuple(value)


def _wrong(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"simulated cloud: setting {name}: {why}", field=name)
