# SPDX-License-Identifier: Apache-2.0
"""Datagrams to one address, as few as go. Sending never waits; to find the address may.

The socket is connected, so that a machine on which nobody listens can say so: at once if it is this
one, else before the next datagrams, which are then not sent. Who is told that it failed sends all
again, so it fails as a whole or not at all: what did not leave while others did goes with the next.
"""

import os
import socket
from collections.abc import Iterable, Iterator
from typing import Final

from holdfast.model.errors import DriverError, InvalidInput

#: What goes through any network in one piece, with room for headers.
MOST: Final = 1_400
#: The address of a name is asked for again after so long.
ASK_AGAIN_S: Final = 300.0


def address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """HOST:PORT, [::1]:PORT; HOST alone where there is a usual port."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.strip(), str(default_port or "")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(f"{text!r} is no address: write HOST:PORT, as 127.0.0.1:8125")
    return host, int(port)


def packed(pieces: Iterable[bytes], between: bytes = b"\n", most: int = MOST) -> Iterator[bytes]:
    """As many in each datagram as fit."""
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        longer = size + len(between) + len(piece)
        if batch and longer > most:
            yield between.join(batch)
            batch, longer = [], len(piece)
        elif not batch:
            longer = len(piece)
        batch.append(piece)
        size = longer
    if batch:
        yield between.join(batch)


class Udp:
    """One thread at a time."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self._name = name
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._asked = 0.0
        self._late: list[bytes] = []  # did not leave with the others; once more, then it is lost

    def send(self, datagrams: Iterable[bytes], now: float) -> None:
        """DriverError if none could leave, or nobody listens: then none of them has arrived."""
        way = self._way(now)
        try:
            _check(way)
            self._late = _sent(way, self._late, list(datagrams))
            _check(way)
        except OSError as error:
            self.close()  # its address may be another one by now
            raise self._error(error) from error

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _way(self, now: float) -> socket.socket:
        if self._socket is not None and now - self._asked < ASK_AGAIN_S:
            return self._socket
        self.close()
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, where = found[0]
            made = socket.socket(family, kind, protocol)
            try:
                made.setblocking(False)
                made.connect(where)
            except OSError:
                made.close()
                raise
        except (OSError, UnicodeError) as error:
            raise self._error(error) from error
        self._socket, self._asked = made, now
        return made

    def _error(self, error: Exception) -> DriverError:
        why = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, ConnectionRefusedError):
            why = "nobody listens there"
        return DriverError(self._name, f"{self._host}:{self._port}: {why or error}", retryable=True)


def _check(way: socket.socket) -> None:
    """Whether it was said of earlier ones that nobody listens."""
    if number := way.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(number, os.strerror(number))


def _sent(way: socket.socket, late: list[bytes], datagrams: list[bytes]) -> list[bytes]:
    """Those of them that did not leave, while others did. Such a moment passes: a buffer is full,
    an interface is taken away."""
    failed: list[bytes] = []
    trouble: OSError | None = None
    left = 0
    for number, datagram in enumerate((*late, *datagrams)):
        try:
            way.send(datagram)
            left += 1
        except ConnectionRefusedError:
            raise
        except OSError as error:
            trouble = error
            failed += [datagram] if number >= len(late) else []
    if trouble is not None and not left:
        raise trouble
    return failed
