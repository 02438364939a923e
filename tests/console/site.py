# SPDX-License-Identifier: Apache-2.0
"""A house (tests/api/house) that a browser can visit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

from holdfast import service
from tests.api.house import House
from tests.processes import eventually, free_port


class Site(House):
    """`url` is where its pages are."""

    def __init__(self, state: Path, config: str = "", **changes: Any) -> None:
        super().__init__(state, config, **changes)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        threads = self.conf.api.threads + self.conf.console.streams
        self._server = service.Server("127.0.0.1", port, self.app, threads)
        self._server.start()

    def settled(self) -> list[str]:
        """Everything in the database, once nothing happens there by itself any more."""

        def still() -> list[str]:
            found = self.dump()
            time.sleep(0.3)
            return found if found == self.dump() else []

        return eventually(still, 30)

    def alone(self) -> None:
        """Wait until nobody listens: a stream whose page was closed is given back seconds later,
        and a page that finds all of them taken is not told but asks."""
        eventually(lambda: not self.services.feed._places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.services.feed.stop()
        self._server.stop()
        super().__exit__()
