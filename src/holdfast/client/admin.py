# SPDX-License-Identifier: Apache-2.0
"""Client for the admin socket of the agent: a Unix socket, JSON lines, a command per connection.

    ask("/run/holdfast/agent.sock", "status")        # {"host": "cmp-7", "deaf": "", …}

The client raises the agent's errors with their original class. If nothing answers, the client
raises `NotReachable`, which says what to do.
"""

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.client import dates
from holdfast.client.errors import NotReachable
from holdfast.model.errors import DriverError, HoldfastError, Unavailable, by_code

#: Timeout for a complete answer.
ANSWER_S = 3.0
#: Interval at which `stream` returns control to the caller, also without a new item.
TICK_S = 0.5
MOST_BYTES = 64 * 1024 * 1024


def ask(
    path: str,
    command: str,
    args: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = ANSWER_S,
) -> dict[str, Any]:
    """Send a command and return the agent's answer."""
    until = dates.monotonic() + timeout_s
    with contextlib.closing(_Line(path, command, args or {}, until)) as line:
        response = line.next(until)
    if response is None:
        raise NotReachable(f"the agent at {path} does not answer within {timeout_s:g} s")
    answer = response.get("answer")
    if not isinstance(answer, dict):
        raise NotReachable(f"the program at {path} is not holdfast-agent: {str(response)[:80]}")
    return answer


def stream(
    path: str, command: str, args: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any] | None]:
    """Send a command and yield items until the agent ends the stream; None every `TICK_S`."""
    until = dates.monotonic() + ANSWER_S
    with contextlib.closing(_Line(path, command, args or {}, until)) as line:
        while True:
            response = line.next(dates.monotonic() + TICK_S)
            if response is None:
                yield None
            elif "item" in response:
                yield response["item"]
            else:
                return


class _Line:
    """A connection to the admin socket for a single command."""

    def __init__(self, path: str, command: str, args: Mapping[str, Any], until: float) -> None:
        self._path = path
        self._got = bytearray()
        self._looked = 0  # `_got` has no newline before this offset
        self._socket = _connected(path, until)
        question = json.dumps({"command": command, "args": args}).encode() + b"\n"
        try:
            self._socket.settimeout(_left(until))
            # the agent also answers a command that it refuses without reading all of it
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._socket.sendall(question)
        except OSError as error:
            self.close()
            raise NotReachable(f"the agent at {path} takes no question: {error}") from error

    def close(self) -> None:
        self._socket.close()

    def next(self, until: float) -> dict[str, Any] | None:
        """Return the next line; None if no line arrives until `until`."""
        while (end := self._got.find(b"\n", self._looked)) < 0:
            self._looked = len(self._got)
            left = until - dates.monotonic()
            if left <= 0:
                return None
            self._socket.settimeout(left)
            try:
                got = self._socket.recv(256 * 1024)
            except TimeoutError:
                return None
            except OSError as error:
                raise self._ended(error.strerror or str(error)) from error
            if not got or len(self._got) > MOST_BYTES:
                raise self._ended("it hung up" if not got else "its answer is too long")
            self._got += got
        line = bytes(self._got[:end])
        del self._got[: end + 1]
        self._looked = 0
        return self._understood(line)

    def _understood(self, line: bytes) -> dict[str, Any]:
        try:
            response = json.loads(line)
        except ValueError:
            response = None
        if not isinstance(response, dict):
            shown = line[:80].decode(errors="replace")
            raise NotReachable(f"the program at {self._path} is not holdfast-agent: {shown!r}")
        error = response.get("error")
        if isinstance(error, dict):
            raise _error(str(error.get("code", "")), str(error.get("message", "")))
        return response

    def _ended(self, why: str) -> NotReachable:
        return NotReachable(
            f"the agent at {self._path} is gone ({why}): it was stopped, or we read too slowly"
        )


def _left(until: float) -> float:
    """Return the remaining seconds, at least 1 ms: a socket timeout of 0 means non-blocking."""
    return max(0.001, until - dates.monotonic())


def _connected(path: str, until: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(_left(until))
        while True:
            try:
                made.connect(path)
                return made
            except BlockingIOError:  # the listen backlog is full
                if dates.monotonic() >= until:
                    raise
                dates.sleep(0.02)
    except OSError as error:
        made.close()
        raise NotReachable(_why(path, error)) from error


def _why(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return f"no agent listens at {path}: start holdfast-agent, or name its socket with --socket"
    if isinstance(error, PermissionError):
        return f"you may not ask the agent at {path}: do it as root, or as the agent's own user"
    return f"the agent at {path} cannot be asked: {error.strerror or error}"


def _error(code: str, message: str) -> HoldfastError:
    """Rebuild the agent's error from code and message."""
    if code == DriverError.code:  # its constructor takes other arguments
        return Unavailable(message)
    return by_code().get(code, HoldfastError)(message)
