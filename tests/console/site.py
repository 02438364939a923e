# SPDX-License-Identifier: Apache-2.0
"""The whole service (tests/api/house) behind a real HTTP server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from holdfast.app import service
from holdfast.console.live import most_per_user
from holdfast.db.tables import operations
from tests.api.house import CHORES, House
from tests.processes import eventually, free_port


class Site(House):
    """A running service; `url` is the address of its pages."""

    def __init__(self, state: Path, config: str = "", **changes: Any) -> None:
        super().__init__(state, config, **changes)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._server = service.http_server(self.conf, self.app, port)
        self._server.start()

    def settled(self) -> list[str]:
        """Return a dump of the database after all due jobs have run."""

        def still() -> list[str]:
            if self._has_work():
                return []
            found = self.dump()
            time.sleep(0.3)
            return found if found == self.dump() and not self._has_work() else []

        return eventually(still)

    def _has_work(self) -> bool:
        """Return whether a job is due or runs."""
        o, database = operations.c, self.core.store.database
        due = sa.select(o.id).where(
            o.is_open.is_(True), o.next_try_at <= database.now(), o.kind.not_in(CHORES)
        )
        with database.read() as conn:
            return conn.execute(due).first() is not None

    def alone(self) -> None:
        """Wait until no stream is open: the stream of a closed page ends seconds later."""
        eventually(lambda: not self.services.feed._slots)

    def has_room(self) -> None:
        """Wait until a stream is free: otherwise the next page polls."""
        most = most_per_user(self.conf.console.streams)
        eventually(lambda: len(self.services.feed._slots) < most)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.services.feed.stop()
        self._server.stop()
        super().__exit__()
