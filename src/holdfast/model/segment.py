# SPDX-License-Identifier: Apache-2.0
"""Segments and their hosts: where recovery may happen, by which method, with which spares.

A segment host is a row of the one list of hosts in its role as member of a segment; whether that
host is enrolled for reservation as well is the other facet, and no matter here.

>>> truth("off", "enabled")
False
>>> text("north ", "name")
Traceback (most recent call last):
holdfast.model.errors.InvalidInput: name: begins or ends with a blank; leave it out
"""

import unicodedata
from dataclasses import dataclass
from datetime import datetime

from holdfast.model.errors import InvalidInput
from holdfast.model.host import normalise

AUTO, RESERVED_HOST, AUTO_PRIORITY, RH_PRIORITY = (
    "auto",
    "reserved_host",
    "auto_priority",
    "rh_priority",
)
METHODS = (AUTO, RESERVED_HOST, AUTO_PRIORITY, RH_PRIORITY)
_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0"})


@dataclass(frozen=True)
class Segment:
    """`spare_hosts`: so many hosts of it may fail, and room for that is kept free.
    `trust_host_status`: a monitor's word that a host is off counts like a fence's.
    `trust_notifications`: a notification that a host failed is acted on at once, whatever signs of
    life the host gives; as Masakari does."""

    id: int
    uuid: str
    name: str
    recovery_method: str
    service_type: str
    description: str | None = None
    enabled: bool = True
    trust_host_status: bool = False
    trust_notifications: bool = False
    spare_hosts: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True)
class SegmentHost:
    """`name` is the cloud's own for its service; `host_id` is the row in the list of hosts.
    A `reserved` one is a spare: it takes over when another fails."""

    id: int
    uuid: str
    name: str
    host_id: int
    type: str
    control_attributes: str
    reserved: bool
    on_maintenance: bool
    segment: Segment
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def key(self) -> str:
        """Its name as the list of hosts keeps it, and as incidents name it."""
        return normalise(self.name)


def truth(value: object, field: str) -> bool:
    """The word as what it says: "off" is false. InvalidInput for any other."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise InvalidInput(f"{field}: {str(value)[:40]!r} is neither true nor false; write one of them")


def text(value: str, field: str) -> str:
    """A name or a type of service, fit to be shown in one line."""
    if value.strip() != value:
        raise InvalidInput(f"{field}: begins or ends with a blank; leave it out")
    if not all(_printable(char) for char in value):
        raise InvalidInput(f"{field}: holds characters that cannot be printed; leave them out")
    return value


def _printable(char: str) -> bool:
    kind = unicodedata.category(char)
    return kind[0] != "C" and kind not in ("Zl", "Zp")
