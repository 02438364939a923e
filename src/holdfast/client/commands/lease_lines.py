# SPDX-License-Identifier: Apache-2.0
"""A lease for people: each reservation and event in one short line."""

from collections.abc import Iterator
from typing import Any

from holdfast.client.commands import Lines, Moment, Table, one

LONGEST_WHERE = 60
#: Of how many hosts the names are said.
MOST_NAMED = 4


def shown(lease: dict[str, Any]) -> Table:
    return one(lease, reservations=Reservations, events=Events)


def hosts_of(lease: dict[str, Any]) -> str:
    """How many hosts were asked for: "2", "1-4", "" for other resources."""
    return " + ".join(filter(None, map(_count_of, lease.get("reservations", ()))))


class Reservations(Lines):
    """physical:host, active, 1-4 hosts, where [">=", "$vcpus", "8"], on cmp-1, cmp-2"""

    def line(self, value: Any) -> str:
        return ", ".join(word for word in _words(value) if word)


class Events(Lines):
    """start_lease 2027-01-31 18:00:00 DONE"""

    def line(self, value: Any) -> str:
        time = Moment(value.get("time")).human_readable()
        return f"{value.get('event_type', '')} {time} {value.get('status', '')}"


def _words(value: dict[str, Any]) -> Iterator[str]:
    yield value.get("resource_type") or ""
    yield value.get("status") or ""
    if count := _count_of(value):
        yield f"{count} host" + "s" * (count != "1")
    yield _amount(value)
    for key in ("hypervisor_properties", "resource_properties"):
        if asked := value.get(key):
            yield "where " + _cut(str(asked))
    yield _got(value)
    for key in ("missing_resources", "resources_changed"):
        if value.get(key):
            yield key.replace("_", " ")


def _amount(value: dict[str, Any]) -> str:
    """3 of 2 vCPU 4096 MB 20 GB; 2 addresses; "" where nothing is counted."""
    amount = value.get("amount")
    if amount is None:
        return ""
    if "network_id" in value:
        return f"{amount} address{'es' if amount != 1 else ''}"
    sizes = {"vcpus": "vCPU", "memory_mb": "MB", "disk_gb": "GB"}
    size = " ".join(
        f"{value[key]} {unit}" for key, unit in sizes.items() if value.get(key) is not None
    )
    return f"{amount} of {size}" if size else f"{amount}"


def _got(value: dict[str, Any]) -> str:
    """on cmp-1, cmp-2 (3 slots) and 5 more"""
    hosts = value.get("hosts") or []
    names = [
        f"{host.get('name') or host.get('id')}"
        + (f" ({host['slots']} slot{'s' * (host['slots'] != 1)})" if "slots" in host else "")
        for host in hosts[:MOST_NAMED]
    ]
    more = f" and {len(hosts) - MOST_NAMED} more" if len(hosts) > MOST_NAMED else ""
    return f"on {', '.join(names)}{more}" if names else ""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_WHERE else text[: LONGEST_WHERE - 1] + "…"


def _count_of(reservation: dict[str, Any]) -> str:
    low, high = reservation.get("min"), reservation.get("max")
    if low is None:
        return ""
    return f"{low}" if low == high else f"{low}-{high}"
