# SPDX-License-Identifier: Apache-2.0
"""A cloud that is only called while the claim outlasts the call.

The epoch stops a late writer at the database; it cannot stop a cloud call already on its way. So no
call starts unless the claim is sure to last until the call has ended, one way or the other.
"""

import functools
from collections.abc import Callable
from typing import Any, cast

from holdfast.ports.cloud import Cloud

#: Beyond the call's own limit: the time it takes a thread to be scheduled again.
MARGIN_S = 1.0


def guarded(cloud: Cloud, hold: Callable[[float], None]) -> Cloud:
    """The same cloud; every call of every port makes sure of the claim first."""
    return cast(Cloud, _Guarded(cloud, lambda: hold(cloud.call_timeout_s + MARGIN_S)))


class _Guarded:
    def __init__(self, target: Any, check: Callable[[], None]) -> None:
        self._target = target
        self._check = check

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if isinstance(value, int | float | str):
            return value
        if not callable(value):
            return _Guarded(value, self._check)

        @functools.wraps(value)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._check()
            return value(*args, **kwargs)

        return call
