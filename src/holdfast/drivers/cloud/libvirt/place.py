# SPDX-License-Identifier: Apache-2.0
"""Where a guest goes: onto a host that answers, is open and has the memory; of those onto the one
that has most of it left."""

import contextlib
import json
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.drivers.cloud.libvirt import guest
from holdfast.drivers.cloud.libvirt.book import Known

if TYPE_CHECKING:
    from holdfast.drivers.cloud.libvirt.looks import Looks


@dataclass(frozen=True)
class Room:
    host: str
    free_mb: float


def best(rooms: Sequence[Room], needs_mb: int, tried: Mapping[str, int]) -> str | None:
    """The host of the largest room that is large enough; one where it failed before comes last."""
    fit = [room for room in rooms if room.free_mb >= needs_mb]
    if not fit:
        return None
    return min(fit, key=lambda room: (tried.get(room.host, 0), -room.free_mb, room.host)).host


class Rooms:
    def __init__(self, looks: "Looks") -> None:
        self._looks = looks
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def choosing(self) -> Iterator[None]:
        """One after the other, so that each counts who goes there already."""
        with self._turn:
            yield

    def choose(
        self,
        known: Known,
        host: str | None,
        answering: Collection[str],
        unwanted: str | None = None,
    ) -> str | None:
        """A host for it: the one that is named, or the best; None if there is no room. NotFound if
        there is no such host. Where it comes from (`unwanted`) is the last choice."""
        named = self._looks.name(host) if host is not None else None
        rooms = [
            room
            for room in self._open(known)
            if room.host in answering and named in (None, room.host) and room.host != known.host
        ]
        tried = self._tried(known)
        if unwanted is not None:
            tried[unwanted] = tried.get(unwanted, 0) + 1000
        return best(rooms, guest.facts(known.xml).memory_mb, tried)

    def _open(self, known: Known) -> list[Room]:
        """Hosts that take guests, with the memory that is left when all who are on their way have
        come."""
        book, ratio = self._looks.book, self._looks.settings.ram_ratio
        used: dict[str, int] = {}
        for one in book.all():
            place = one.dest if one.task and one.dest else one.host
            runs = one.status != "SHUTOFF" or one.task
            if place is not None and runs and one.uuid != known.uuid:
                used[place] = used.get(place, 0) + guest.facts(one.xml).memory_mb
        with book.file.transaction() as db:
            rows = db.execute("SELECT * FROM hosts WHERE enabled AND NOT forced_down").fetchall()
        return [
            Room(
                row["name"],
                json.loads(row["size"]).get("memory_mb", 0) * ratio - used.get(row["name"], 0),
            )
            for row in rows
            if row["name"] in self._looks.lines
        ]

    def _tried(self, known: Known) -> dict[str, int]:
        with self._looks.book.file.transaction() as db:
            rows = db.execute(
                "SELECT dest, count(*) AS times FROM migrations WHERE server_id = ?"
                " AND status = 'failed' AND dest IS NOT NULL GROUP BY dest",
                (known.uuid,),
            ).fetchall()
        return {row["dest"]: row["times"] for row in rows}
