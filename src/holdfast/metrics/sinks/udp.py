# SPDX-License-Identifier: Apache-2.0
"""UDP metric sinks `statsd` and `graphite`, their path names, and the sink `log`.

`Udp` sends datagrams to an address, in as few datagrams as possible. Sending never blocks; name
resolution may block.
"""

import functools
import hashlib
import logging
import os
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from holdfast.metrics.fields import is_counter
from holdfast.model.errors import DriverError, InvalidInput
from holdfast.ports.metric_plugins import ALARM, Sample
from holdfast.ports.metrics import GUEST, HOST
from holdfast.runtime.text import printable

#: Datagram size in bytes that passes any network unfragmented, with room for headers.
MOST: Final = 1_400
#: Seconds after which a host name is resolved again.
ASK_AGAIN_S: Final = 300.0


def address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Parse HOST:PORT or [::1]:PORT; HOST alone if there is a default port."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.strip(), str(default_port or "")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(f"{text!r} is no address: write HOST:PORT, as 127.0.0.1:8125")
    return host, int(port)


def packed(pieces: Iterable[bytes], between: bytes = b"\n", most: int = MOST) -> Iterator[bytes]:
    """Join pieces into datagrams of at most `most` bytes each."""
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
    """Sender of datagrams to an address; only one thread at a time may use the sender.

    The socket is connected, so that the kernel reports a port without listener: at once on this
    machine, otherwise before the next datagrams, which are then not sent. The caller repeats
    all datagrams after a failure, so `send` fails as a whole or not at all: a datagram that
    fails while others are sent is retried with the next call.
    """

    def __init__(self, name: str, host: str, port: int) -> None:
        self._name = name
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._asked = 0.0
        self._late: list[bytes] = []  # failed while others were sent; retried once, then lost

    def send(self, datagrams: Iterable[bytes], now: float) -> None:
        """Send all datagrams. DriverError if none could be sent or no process listens.

        After a DriverError none of the datagrams has arrived.
        """
        way = self._way(now)
        try:
            _check(way)
            self._late = _sent(way, self._late, list(datagrams))
            _check(way)
        except OSError as error:
            self.close()  # the address of the name may have changed
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
            why = "no program listens there"
        return DriverError(self._name, f"{self._host}:{self._port}: {why or error}", retryable=True)


def _check(way: socket.socket) -> None:
    """Raise the error that the kernel recorded for earlier datagrams, if any."""
    if number := way.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(number, os.strerror(number))


def _sent(way: socket.socket, late: list[bytes], datagrams: list[bytes]) -> list[bytes]:
    """Send the datagrams; return the new datagrams that failed while others were sent.

    Such a failure is temporary: a buffer is full, or an interface is removed. A datagram in
    `late` that fails again is lost.
    """
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


# Paths for statsd and graphite.


ID: Final = "id"
NAME: Final = "name"
#: Longest name in characters, before the hash.
LONGEST: Final = 80
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_HASHED: Final = re.compile(r".*_[0-9a-f]{16}", re.DOTALL)
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]{1,80}")


def part(text: str) -> str:
    """Return a component of a path; different texts give different components."""
    if _SAFE.fullmatch(text) and not _HASHED.fullmatch(text):
        return text
    return named_part(text, text)


def host_part(host: str) -> str:
    """Return the component for a host name.

    Host names contain no `_`, so dots become `_`; a name with other characters is hashed.
    """
    made = host.replace(".", "_")
    if _HOST.fullmatch(host) and not _HASHED.fullmatch(made):
        return made
    return named_part(host, host)


def named_part(name: str, identity: str) -> str:
    """Return the cleaned name with the hash of the identity."""
    return f"{_clean(name)}_{_hash(identity)}"


class Names:
    """Builds paths for statsd and graphite from names chosen by users.

        Names("holdfast").path(sample)    # holdfast.cmp-7.guest.6f0c….nic.tap1.tx_bps

    A component has ASCII letters, digits, `_` and `-`. Any other character becomes `_`, and
    then 16 hexadecimal digits of the hash of the whole name follow, so different names never
    share a path. A name that already ends like such a hash gets a hash too, so nobody can
    choose the path of another guest.

    Guests are identified by UUID, because names change and are not unique. For readable paths,
    `by` selects the name followed by the hash of the UUID.
    """

    def __init__(self, prefix: str = "holdfast", by: str = ID) -> None:
        """`by` selects the identification of guests: ID or NAME."""
        self._prefix = ".".join(part(one) for one in prefix.split(".") if one)
        self._by = by
        self._base = functools.lru_cache(maxsize=16_384)(self._base_of)

    def path(self, sample: Sample) -> str:
        """Return the path of a sample."""
        entity = sample.entity
        base = self._base(sample.host, entity.kind, entity.id, entity.name)
        if sample.field == ALARM:
            return f"{base}.{ALARM}.{part(sample.about['rule'])}"
        return f"{base}.{part(sample.field)}"

    def _base_of(self, host: str, kind: str, identity: str, name: str) -> str:
        parts = [self._prefix] if self._prefix else []
        parts.append(host_part(host))
        if kind == HOST:
            parts.append(HOST)
            return ".".join(parts)
        guest, shown, rest = split(identity, name)
        parts += [GUEST, part(guest) if self._by == ID else named_part(shown, guest)]
        if kind != GUEST:
            parts += [part(kind), part(rest)]
        return ".".join(parts)


def split(identity: str, name: str) -> tuple[str, str, str]:
    """Split an entity id: return UUID and name of the guest, and the disk or NIC part."""
    uuid, slash, rest = identity.partition("/")
    return uuid, name.removesuffix(f"/{rest}") if slash else name, rest


def _clean(text: str) -> str:
    return _UNSAFE.sub("_", text[:LONGEST]) or "_"


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


# statsd and graphite over UDP: a line per sample, many lines per datagram.


class Statsd:
    """Outlet for statsd: gauges, and counters as increments.

    The increment is unknown for the first value of a counter and after a reset; then nothing is
    sent.
    """

    name = "statsd"

    def __init__(self, host: str, port: int, names: Names) -> None:
        self._udp = Udp(self.name, host, port)
        self._names = names

    def encode(self, sample: Sample) -> bytes:
        path = self._names.path(sample)
        if is_counter(sample.field):
            return b"" if sample.step is None else f"{path}:{number(sample.step)}|c".encode()
        line = f"{path}:{number(sample.value)}|g"
        if sample.value < 0:  # a sign means a relative change: set the gauge to 0 first
            line = f"{path}:0|g\n{line}"
        return line.encode()

    def send(self, samples: Sequence[bytes], now: float) -> None:
        self._udp.send(packed(samples), now)

    def close(self) -> None:
        self._udp.close()


class Graphite:
    """Outlet for graphite's plain text protocol; counters are sent as absolute values."""

    name = "graphite"

    def __init__(self, host: str, port: int, names: Names) -> None:
        self._udp = Udp(self.name, host, port)
        self._names = names

    def encode(self, sample: Sample) -> bytes:
        at = int(sample.at.timestamp())
        return f"{self._names.path(sample)} {number(sample.value)} {at}\n".encode()

    def send(self, samples: Sequence[bytes], now: float) -> None:
        self._udp.send(packed(samples, b""), now)

    def close(self) -> None:
        self._udp.close()


def number(value: float) -> str:
    """Format a number without exponent, which some receivers cannot parse, and with few digits."""
    if value == int(value):
        return str(int(value))
    text = f"{value:.6f}" if abs(value) < 1e6 else f"{value:.1f}"
    text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


# Log lines.


LOG = logging.getLogger(__name__)
_STANDS = {0.0: "is over", 1.0: "is raised", 2.0: "has no data"}


class LogLines:
    """Outlet that writes each sample as a line of the agent's log, for sites that collect logs."""

    name = "log"

    def encode(self, sample: Sample) -> bytes:
        entity = sample.entity
        uuid, name, rest = split(entity.id, entity.name)
        who = printable(name or uuid)[:120]
        where = "host" if entity.kind == HOST else f"guest={printable(uuid)[:80]}"
        if rest:
            where += f" {entity.kind}={printable(rest)[:80]}"
        if sample.field == ALARM:
            said = f"alarm {printable(sample.about['rule'])[:80]} {_STANDS[sample.value]}"
            said += "".join(
                f" {key}={sample.about[key]}"
                for key in ("value", "threshold")
                if key in sample.about
            )
        else:
            said = f"{printable(sample.field)} {number(sample.value)}"
        return f"{who} ({where}): {said}".encode()

    def send(self, samples: Sequence[bytes], now: float) -> None:
        for one in samples:
            LOG.info("%s", one.decode())

    def close(self) -> None:
        pass
