# SPDX-License-Identifier: Apache-2.0
"""The libvirt side of the Services port: whether each host answers, and our own marks on it.

libvirt knows no closed hosts. The marks are in our file, and what goes by them is this driver: it
sends no guest to a host that is disabled or forced down. Who lists looks at all hosts, so that what
is known of guests is never older than the last time that a monitor looked round.
"""

import functools
import logging
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.drivers.cloud.libvirt import hands
from holdfast.drivers.cloud.libvirt.book import EVACUATION, Book
from holdfast.drivers.cloud.libvirt.line import Silent
from holdfast.drivers.cloud.libvirt.looks import Looks
from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Service

LOG = logging.getLogger(__name__)
#: Moves that may have left a copy of their guest on a host: from it, or to it and not arrived.
_COPIES = "((m.source = ? AND m.status = 'done') OR (m.dest = ? AND m.status = 'failed'))"


class LibvirtServices:
    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._book: Book = looks.book

    def list(self) -> Sequence[Service]:
        answering = self._looks.all()
        with self._book.file.transaction() as db:
            rows = db.execute("SELECT * FROM hosts ORDER BY name").fetchall()
        return [_service(row, answering) for row in rows if row["name"] in self._looks.lines]

    def disable(self, host: str, reason: str) -> None:
        self._mark(
            host,
            "enabled = 0, disabled_reason = ?1",
            "enabled OR disabled_reason != ?1",
            reason,
        )

    def enable(self, host: str) -> None:
        self._mark(host, "enabled = 1, disabled_reason = ?1", "NOT enabled", "")

    def force_down(self, host: str) -> None:
        self._mark(host, "forced_down = 1", "NOT forced_down")

    def unforce(self, host: str) -> None:
        """Its copies of guests that were moved away are taken from it first; one that runs there
        and elsewhere too is stopped."""
        name = self._looks.name(host)
        with self._book.file.transaction() as db:
            marks = db.execute("SELECT * FROM hosts WHERE name = ?", (name,)).fetchone()
            coming = db.execute(
                "SELECT 1 FROM migrations WHERE source = ? AND status = 'running'", (name,)
            ).fetchone()
            left = db.execute(
                "SELECT DISTINCT m.server_id, g.host FROM migrations m"
                " LEFT JOIN guests g ON g.uuid = m.server_id"
                f" WHERE m.type = ? AND NOT m.cleared AND {_COPIES}",
                (EVACUATION, name, name),
            ).fetchall()
        if not marks["forced_down"]:
            return
        if coming:
            raise Conflict(f"host {name}: guests are leaving it still")
        self._clear(name, [row["server_id"] for row in left if row["host"] != name])
        with self._book.file.transaction() as db:
            db.execute(f"UPDATE migrations AS m SET cleared = 1 WHERE {_COPIES}", (name, name))
        self._mark(name, "forced_down = 0", "forced_down")
        self._looks.host(name)

    def _clear(self, host: str, moved: Sequence[str]) -> None:
        if not moved:
            return
        try:
            run = self._looks.ask(host, "undefine", functools.partial(_forget, moved=moved))
            for server_id in run:
                self._stop_copy(host, server_id)
        except Silent as silent:
            raise Conflict(
                f"host {host}: {len(moved)} guests were moved away from it, and it does not answer:"
                f" restart it first ({silent.message})"
            ) from silent

    def _stop_copy(self, host: str, server_id: str) -> None:
        """A guest that was moved away runs on the host it came from."""
        if not any(on for name, on in self._looks.running(server_id).items() if name != host):
            raise Conflict(
                f"host {host}: guest {server_id} was moved away and runs there, and nowhere else:"
                " stop the one that is not wanted, or restart the host first"
            )
        LOG.error("guest %s ran on %s too, from where it was moved away: stopped", server_id, host)
        self._looks.ask(host, "stop", functools.partial(hands.stop, server_id=server_id))
        self._looks.ask(host, "undefine", functools.partial(hands.forget, server_id=server_id))

    def _mark(self, host: str, mark: str, unless: str, text: str | None = None) -> None:
        """Change what is not so yet."""
        with self._book.file.transaction() as db:
            db.execute(
                f"UPDATE hosts SET {mark}, changed_at = ?2 WHERE name = ?3 AND ({unless})",
                (text, self._book.now(), self._looks.name(host)),
            )


def _forget(conn: Any, moved: Sequence[str]) -> list[str]:
    """Those that run."""
    return [server_id for server_id in moved if hands.forget(conn, server_id)]


def _service(row: sqlite3.Row, answering: Any) -> Service:
    last = max(row["seen_at"] or 0.0, row["changed_at"] or 0.0)
    up = row["name"] in answering and not row["forced_down"]
    return Service(
        host=row["name"],
        state="up" if up else "down",
        enabled=bool(row["enabled"]),
        disabled_reason=row["disabled_reason"],
        forced_down=bool(row["forced_down"]),
        updated_at=datetime.fromtimestamp(last, UTC) if last else None,
    )
