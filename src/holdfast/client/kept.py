# SPDX-License-Identifier: Apache-2.0
"""A client that a program keeps for as long as it runs."""

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.client import errors
from holdfast.client.client import Client


class Kept:
    """Made when it is first needed, and anew once it is not let in: by then its token or password
    may have been replaced, and is read again. One thread at a time."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None

    def call(
        self,
        method: str,
        where: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Any:
        """As `Wire.call`."""
        if self._client is None:
            self._client = self._connect()
        try:
            return self._client.wire.call(method, where, body=body, query=query, key=key)
        except errors.Unauthorized:
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
