# SPDX-License-Identifier: Apache-2.0
"""Deadlines for libraries that need a requests session (keystoneauth1, sushy)."""

from collections.abc import Callable
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from holdfast.runtime.http import POOL_CLASSES, Deadline, limited

#: Largest answer in bytes, uncompressed; the answer of a list of 10,000 servers has less than half.
LARGEST = 64 * 2**20
#: Bytes read at a time: a compressed part of this size becomes at most 1,000 times as large.
PART = 2**14
#: Minimum timeout in seconds of a socket operation, since 0 would mean "do not block".
SHORTEST = 0.001


class TooLarge(requests.ConnectionError):
    """An answer has more than LARGEST bytes."""


class DeadlineAdapter(HTTPAdapter):
    """Ends each request at the deadline of the calling thread, whole response included.

    Many threads may share an adapter. A request that ends there raises requests.Timeout.
    """

    def __init__(self, deadline: Callable[[], Deadline], *, connections: int = 10) -> None:
        self._deadline = deadline
        super().__init__(pool_connections=32, pool_maxsize=connections, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = dict(POOL_CLASSES)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = dict(POOL_CLASSES)
        return manager

    def send(
        self, request: requests.PreparedRequest, *args: Any, **kwargs: Any
    ) -> requests.Response:
        deadline = self._deadline()
        left = deadline.left()
        if left <= 0:
            raise requests.Timeout(f"no time left for {request.method} {request.url}")
        options = {**kwargs, "stream": True, "timeout": max(left, SHORTEST)}
        try:
            with limited(deadline):
                response = super().send(request, *args, **options)
                _read(response)  # here, under the deadline
        except requests.RequestException as error:
            if deadline.left() <= 0:  # the deadline caused it, whatever the error says
                raise requests.Timeout(str(error), request=request) from error
            raise
        return response


def _read(response: requests.Response) -> None:
    """Read the content into the response; TooLarge above LARGEST bytes."""
    parts, size = [], 0
    for part in response.iter_content(PART):
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            response.close()
            raise TooLarge(f"the answer has more than {LARGEST} bytes", request=response.request)
    response._content = b"".join(parts)
