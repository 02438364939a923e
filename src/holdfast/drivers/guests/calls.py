# SPDX-License-Identifier: Apache-2.0
"""Calls into libvirt that may never come back: each has a thread and is waited for so long only.

A call that is late goes on in its thread until libvirt lets it go; there are never more than a few
of them, because nothing new is asked while too many have not come back.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.drivers.guests import PORT
from holdfast.model.errors import DriverError

T = TypeVar("T")


class Call(Generic[T]):
    """One call, on its way from the beginning."""

    def __init__(self, what: str, do: Callable[[], T]) -> None:
        self.what = what
        self._do = do
        self._done = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name=f"libvirt-{what}", daemon=True).start()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def result(self, within_s: float) -> T:
        """Its value. DriverError if it is late; what it raised otherwise."""
        if not self._done.wait(within_s):
            raise failed(f"no answer to {self.what} within {within_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _run(self) -> None:
        try:
            self._value = self._do()
        except BaseException as error:  # the top of the thread: who waits gets it
            self._error = error
        finally:
            self._done.set()


class Opening(Generic[T]):
    """Of opening a way to the daemon there is one at a time: one that is frozen gets no more, and
    is met by the first when it thaws."""

    def __init__(self, do: Callable[[], T]) -> None:
        self._do = do
        self._call: Call[T] | None = None

    def result(self, within_s: float) -> T:
        """As a call's; asked again after it was late, it is the same one that is waited for."""
        if self._call is None:
            self._call = Call("open", self._do)
        call = self._call
        try:
            return call.result(within_s)
        finally:
            if call.is_done:
                self._call = None


class Calls:
    """Several at once; threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._out: list[Call[object]] = []

    def ask(self, what: str, do: Callable[[], T], within_s: float) -> T:
        return self.begin(what, do).result(within_s)

    def begin(self, what: str, do: Callable[[], T]) -> Call[T]:
        with self._lock:
            self._out = [call for call in self._out if not call.is_done]
            if len(self._out) >= self._most:
                raise failed(f"{len(self._out)} calls have not come back, {what} has to wait")
            call = Call(what, do)
            self._out.append(call)  # type: ignore[arg-type]
        return call


def failed(why: str) -> DriverError:
    return DriverError(PORT, why, retryable=True)
