# SPDX-License-Identifier: Apache-2.0
"""UDP metric sinks `statsd`, `graphite` and `ceilometer`, path names, and the sink `log`.

`Udp` sends datagrams to an address, in as few datagrams as possible. Sending never blocks; name
resolution may block.
"""

import functools
import hashlib
import hmac
import logging
import os
import re
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.metrics.fields import is_counter, unit
from holdfast.model.errors import DriverError, InvalidInput
from holdfast.ports.metric_plugins import ALARM, Sample
from holdfast.ports.metrics import DISK, GUEST, HOST, NIC
from holdfast.runtime.text import printable

#: Datagram size in bytes that passes any network unfragmented, with room for headers.
MOST: Final = 1_400
#: Seconds after which a host name is resolved again.
RESOLVE_EVERY_S: Final = 300.0


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
        self._resolved_at = 0.0
        self._late: list[bytes] = []  # failed while others were sent; retried once, then lost

    def send(self, datagrams: Iterable[bytes], now: float) -> None:
        """Send all datagrams. DriverError if none could be sent or no process listens.

        After a DriverError none of the datagrams has arrived.
        """
        connected = self._connection(now)
        try:
            _check(connected)
            self._late = _sent(connected, self._late, list(datagrams))
            _check(connected)
        except OSError as error:
            self.close()  # the address of the name may have changed
            raise self._error(error) from error

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _connection(self, now: float) -> socket.socket:
        if self._socket is not None and now - self._resolved_at < RESOLVE_EVERY_S:
            return self._socket
        self.close()
        try:
            addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, where = addresses[0]
            made = socket.socket(family, kind, protocol)
            try:
                made.setblocking(False)
                made.connect(where)
            except OSError:
                made.close()
                raise
        except (OSError, UnicodeError) as error:
            raise self._error(error) from error
        self._socket, self._resolved_at = made, now
        return made

    def _error(self, error: Exception) -> DriverError:
        why = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, ConnectionRefusedError):
            why = "no program listens there"
        return DriverError(self._name, f"{self._host}:{self._port}: {why or error}", retryable=True)


def _check(connected: socket.socket) -> None:
    """Raise the error that the kernel recorded for earlier datagrams, if any."""
    if number := connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(number, os.strerror(number))


def _sent(connected: socket.socket, late: list[bytes], datagrams: list[bytes]) -> list[bytes]:
    """Send the datagrams; return the new datagrams that failed while others were sent.

    Such a failure is temporary: a buffer is full, or an interface is removed. A datagram in
    `late` that fails again is lost.
    """
    failed: list[bytes] = []
    failure: OSError | None = None
    left = 0
    for number, datagram in enumerate((*late, *datagrams)):
        try:
            connected.send(datagram)
            left += 1
        except ConnectionRefusedError:
            raise
        except OSError as error:
            failure = error
            failed += [datagram] if number >= len(late) else []
    if failure is not None and not left:
        raise failure
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
        self._prefix = ".".join(part(component) for component in prefix.split(".") if component)
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
    guest, slash, rest = identity.partition("/")
    return guest, name.removesuffix(f"/{rest}") if slash else name, rest


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


# Ceilometer: samples in the format of Ceilometer's UDP publisher.
#
# Each datagram is a msgpack map. A field that Ceilometer has a meter for carries Ceilometer's
# meter name, unit and resource id, so existing consumers keep working; all other fields are named
# `holdfast.KIND.FIELD`. The signature is an HMAC over names and values, sorted by name, with the
# secret that Ceilometer calls telemetry_secret.


CEILOMETER_PORT: Final = 4952
SOURCE: Final = "openstack"
#: Longest text in bytes, so that a message always fits into a datagram.
CEILOMETER_LONGEST: Final = 120
_MESSAGE_IDS: Final = uuid.UUID("0f2a6c1e-6f0e-4d6e-9d55-3f7a6c2b8e10")


class Meter(NamedTuple):
    """A Ceilometer meter."""

    name: str
    unit: str
    scale: float = 1.0  # factor from Holdfast's unit to the meter's unit


def _both(ways: Mapping[str, str], fields: Mapping[str, tuple[str, str]]) -> dict[str, Meter]:
    return {
        f"{short}_{field}": Meter(name.format(long), unit)
        for short, long in ways.items()
        for field, (name, unit) in fields.items()
    }


#: Fields that Ceilometer's compute agent measures too.
METERS: Final[Mapping[str, Mapping[str, Meter]]] = {
    GUEST: {
        "cpu_time_ns": Meter("cpu", "ns"),
        "rss_kib": Meter("memory.resident", "MiB", 1 / 1024),
    },
    DISK: {
        **_both(
            {"rd": "read", "wr": "write"},
            {
                "bytes": ("disk.device.{}.bytes", "B"),
                "reqs": ("disk.device.{}.requests", "request"),
                "times_ns": ("disk.device.{}.latency", "ns"),
            },
        ),
        "capacity_bytes": Meter("disk.device.capacity", "B"),
        "allocation_bytes": Meter("disk.device.allocation", "B"),
        "physical_bytes": Meter("disk.device.usage", "B"),
    },
    NIC: _both(
        {"rx": "incoming", "tx": "outgoing"},
        {
            "bytes": ("network.{}.bytes", "B"),
            "pkts": ("network.{}.packets", "packet"),
            "drop": ("network.{}.packets.drop", "packet"),
            "errs": ("network.{}.packets.error", "packet"),
        },
    ),
}
#: Fields sent by default.
CEILOMETER_FIELDS: Final = [
    f"{kind}.{field}" for kind, fields in METERS.items() for field in fields
]


class Ceilometer:
    """Outlet of the sink: encodes samples and sends each in a datagram of its own."""

    name = "ceilometer"

    def __init__(self, host: str, port: int, secret: str) -> None:
        self._udp = Udp(self.name, host, port)
        self._secret = secret.encode()
        import msgpack  # here, so that agents without this sink do not load it

        self._pack = msgpack.packb

    def encode(self, sample: Sample) -> bytes:
        message = meter_message(sample)
        message["message_signature"] = signature(message, self._secret)
        data: bytes = self._pack(message, use_bin_type=True)
        return data

    def send(self, samples: Sequence[bytes], now: float) -> None:
        self._udp.send(samples, now)

    def close(self) -> None:
        self._udp.close()


def meter_message(sample: Sample) -> dict[str, Any]:
    """Build the unsigned Ceilometer message of a sample."""
    entity, field = sample.entity, sample.field
    meter = METERS.get(entity.kind, {}).get(field)
    if meter is None:
        meter = Meter(_text(f"holdfast.{entity.kind}.{field}"), unit(field))
    resource = _resource(sample)
    own = f"{sample.host} {sample.at.isoformat()} {meter.name} {resource} {sample.about}"
    return {
        "source": SOURCE,
        "counter_name": meter.name,
        "counter_type": "cumulative" if is_counter(field) else "gauge",
        "counter_unit": meter.unit,
        "counter_volume": sample.value if meter.scale == 1.0 else sample.value * meter.scale,
        "user_id": None,
        "user_name": None,
        "project_id": _text(entity.project) or None,
        "project_name": _text(entity.project_name) or None,
        "resource_id": resource,
        "timestamp": sample.at.isoformat(),
        "resource_metadata": _metadata(sample),
        "message_id": str(uuid.uuid5(_MESSAGE_IDS, _text(own, 10 * CEILOMETER_LONGEST))),
        "monotonic_time": sample.monotonic,
    }


def signature(message: Mapping[str, Any], secret: bytes) -> str:
    """Return the HMAC of a message; "" without a secret, because then no receiver verifies."""
    if not secret:
        return ""
    pairs = (f"{name}{value}" for name, value in _pairs(message) if name != "message_signature")
    return hmac.new(secret, "".join(pairs).encode(), hashlib.sha256).hexdigest()


def _pairs(message: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value in sorted order; names in nested maps are joined by a colon.

    Holdfast sends no lists.
    """
    for name, value in sorted(message.items()):
        if isinstance(value, Mapping):
            yield from _pairs(value, f"{above}{name}:")
        else:
            yield f"{above}{name}", value


def _resource(sample: Sample) -> str:
    """Return the resource id that Ceilometer's compute agent uses for a server, disk or NIC."""
    entity = sample.entity
    if entity.kind == HOST:
        return _text(entity.id)
    guest, name, rest = split(entity.id, entity.name)
    if entity.kind == NIC:
        return f"{_text(name)}-{_text(guest)}-{_text(entity.about.get('ifname', rest))}"
    return f"{_text(guest)}-{_text(rest)}" if rest else _text(guest)


def _metadata(sample: Sample) -> dict[str, Any]:
    entity = sample.entity
    metadata: dict[str, Any] = {"host": _text(sample.host)}
    if entity.kind != HOST:
        guest, name, rest = split(entity.id, entity.name)
        metadata |= {"instance_id": _text(guest), "name": _text(name)}
        if entity.flavor:
            metadata["flavor"] = {"name": _text(entity.flavor)}
        if entity.kind == DISK:
            metadata["disk_name"] = _text(rest)
        if entity.kind == NIC:
            metadata["name"] = metadata["vnic_name"] = _text(entity.about.get("ifname", rest))
            metadata["mac"] = _text(entity.about.get("mac", ""))
    if sample.field == ALARM:
        metadata |= {name: _text(text) for name, text in sample.about.items()}
    return metadata


def _text(text: str, most: int = CEILOMETER_LONGEST) -> str:
    """Cut a text to `most` bytes of valid UTF-8."""
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


# Log lines.


LOG = logging.getLogger(__name__)
_STANDS = {0.0: "is over", 1.0: "is raised", 2.0: "has no data"}


class LogLines:
    """Outlet that writes each sample as a line of the agent's log, for sites that collect logs."""

    name = "log"

    def encode(self, sample: Sample) -> bytes:
        entity = sample.entity
        guest, name, rest = split(entity.id, entity.name)
        subject = printable(name or guest)[:120]
        where = "host" if entity.kind == HOST else f"guest={printable(guest)[:80]}"
        if rest:
            where += f" {entity.kind}={printable(rest)[:80]}"
        if sample.field == ALARM:
            sentence = f"alarm {printable(sample.about['rule'])[:80]} {_STANDS[sample.value]}"
            sentence += "".join(
                f" {key}={sample.about[key]}"
                for key in ("value", "threshold")
                if key in sample.about
            )
        else:
            sentence = f"{printable(sample.field)} {number(sample.value)}"
        return f"{subject} ({where}): {sentence}".encode()

    def send(self, samples: Sequence[bytes], now: float) -> None:
        for line in samples:
            LOG.info("%s", line.decode())

    def close(self) -> None:
        pass
