# SPDX-License-Identifier: Apache-2.0
"""What people fill in to get a lease, as the API takes it and as a command says it. Pure; the words
are those of the client: `+8h`, `vcpus>=8 and rack=rack-a`.

    wish = Wish.of({"kind": "host", "count": "2", "where": "gpu=True", …})
    wish.reservation()       # {"resource_type": "physical:host", "min": 2, …}
    wish.command()           # ["holdfast", "lease", "create", "night", "--hosts", "2", …]
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from holdfast.client import dates, where
from holdfast.model.errors import InvalidInput

T = TypeVar("T")

#: What can be asked for here; the API knows more.
KINDS: Final[Mapping[str, str]] = {
    "host": "whole hosts",
    "slots": "slots for servers",
    "flavor": "slots of a flavor",
}
DEFAULTS: Final[Mapping[str, str]] = {
    "kind": "host",
    "name": "",
    "count": "1",
    "most": "",
    "where": "",
    "vcpus": "1",
    "memory_mb": "1024",
    "disk_gb": "10",
    "flavor": "",
    "start": "now",
    "end": "+24h",
    "before_end": "",
    "length": "8h",
    "earliest": "now",
}
_SEVERAL = re.compile(r"\s+and\s+|;|\n")


@dataclass(frozen=True)
class Wish:
    """The fields as they were filled in; empty ones have their default."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Wish":
        said = {name: str(given.get(name, "")).strip() for name in DEFAULTS}
        return cls({name: said[name] or default for name, default in DEFAULTS.items()})

    def __getitem__(self, name: str) -> str:
        return self.given[name]

    def reservation(self) -> dict[str, Any]:
        """The one entry of a lease's reservations."""
        kind = self["kind"]
        if kind not in KINDS:
            raise InvalidInput(f"kind: there is no {kind[:40]!r}; one of {', '.join(KINDS)}")
        if kind == "host":
            low = self._number("count", 1)
            high = self._number("most", 1) if self["most"] else low
            about = {"min": low, "max": high, "hypervisor_properties": ""}
            return {"resource_type": "physical:host", **about, **self._where()}
        amount = {"amount": self._number("count", 1), "affinity": None}
        if kind == "flavor":
            return {"resource_type": "flavor:instance", "flavor_id": self["flavor"], **amount}
        sizes = {name: self._number(name, 0) for name in ("vcpus", "memory_mb", "disk_gb")}
        return {"resource_type": "virtual:instance", **sizes, **amount, **self._where()}

    def dates(self, now: datetime) -> dict[str, Any]:
        """Start, end and the time before the end, on the wire; +8h counts from the start."""
        start = _date(self["start"], "start")
        origin = _moment(start.at, now, "start")
        announced = self["before_end"]
        return {
            "start_date": _moment(start.on_wire, now, "start"),
            "end_date": _moment(_date(self["end"], "end").on_wire, origin, "end"),
            "before_end_date": (
                _moment(_date(announced, "before end").on_wire, origin, "before end")
                if announced
                else None
            ),
        }

    def body(self, now: datetime, dry_run: bool) -> dict[str, Any]:
        """For POST /reservation/v1/leases."""
        if not self["name"]:
            raise InvalidInput("name: give the lease a name, so that you find it again")
        found = {"name": self["name"], **self.dates(now), "reservations": [self.reservation()]}
        return {**found, "dry_run": True} if dry_run else found

    def search(self, now: datetime, limit: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of GET /holdfast/v1/availability: the reservation, and the rest of the query."""
        try:
            length = dates.span(self["length"])
        except ValueError as error:
            raise InvalidInput(f"length: {error}") from None
        first = _date(self["earliest"], "earliest")
        asked: dict[str, Any] = {"duration_s": int(length.total_seconds()), "limit": limit}
        if first != dates.NOW:
            asked["from"] = _moment(first.on_wire, now, "earliest")
        return self.reservation(), asked

    # the same by command

    def command(self) -> list[str]:
        words = ["holdfast", "lease", "create", self["name"] or "NAME", *self._what()]
        words += ["--start", self["start"], "--end", self["end"]]
        announced = self["before_end"]
        return [*words, "--before-end-date", announced] if announced else words

    def search_command(self) -> list[str]:
        words = ["holdfast", "availability", *self._what(), "--for", self["length"]]
        return words if self["earliest"] == "now" else [*words, "--from", self["earliest"]]

    def _what(self) -> list[str]:
        if self["kind"] == "host":
            number = ["--hosts", self["count"]]
            if self["most"]:
                number = ["--min", self["count"], "--max", self["most"]]
            return [*number, *(word for one in self._conditions() for word in ("--where", one))]
        if self["kind"] == "flavor":
            told = f"flavor:instance,flavor_id={self['flavor']},amount={self['count']}"
            return ["--reservation", told]
        sizes = ",".join(f"{name}={self[name]}" for name in ("vcpus", "memory_mb", "disk_gb"))
        told = f"virtual:instance,{sizes},amount={self['count']}"
        if self["where"]:
            told += f",resource_properties={self._as_said()}"
        return ["--reservation", told]

    def _as_said(self) -> str:
        """What makes no sense is said as it was filled in: the refusal is told beside it."""
        try:
            return self._expression()
        except InvalidInput:
            return self["where"]

    # shared

    def _number(self, name: str, least: int) -> int:
        said = self[name]
        if not said.isdecimal() or len(said) > 9 or int(said) < least:
            raise InvalidInput(f"{name}: {said[:40]!r} is not a number from {least} on")
        return int(said)

    def _where(self) -> dict[str, str]:
        return {"resource_properties": self._expression()}

    def _expression(self) -> str:
        try:
            return where.expression(self._conditions())
        except ValueError as error:
            raise InvalidInput(f"where: {error}") from None

    def _conditions(self) -> list[str]:
        said = self["where"]
        if said.startswith("["):
            return [said]
        return [part.strip() for part in _SEVERAL.split(said) if part.strip()]


def _date(text: str, field: str) -> dates.Date:
    try:
        return dates.parse(text)
    except ValueError as error:
        raise InvalidInput(f"{field}: {error}") from None


def _moment(of: Callable[[datetime], T], origin: datetime, field: str) -> T:
    """What a date means, counted from there; +24h after the last day of all is none."""
    try:
        return of(origin)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{field}: {error}") from None
