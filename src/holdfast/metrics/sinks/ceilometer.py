# SPDX-License-Identifier: Apache-2.0
"""Metric sink `ceilometer`: samples in the format of Ceilometer's UDP publisher.

Each datagram is a msgpack map. A field that Ceilometer has a meter for carries Ceilometer's
meter name, unit and resource id, so existing consumers keep working; all other fields are named
`holdfast.KIND.FIELD`. The signature is an HMAC over names and values, sorted by name, with the
secret that Ceilometer calls telemetry_secret.
"""

import hashlib
import hmac
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from holdfast.metrics.fields import is_counter, unit
from holdfast.metrics.sinks.udp import Udp, split
from holdfast.ports.metric_plugins import ALARM, Sample
from holdfast.ports.metrics import DISK, GUEST, HOST, NIC

PORT: Final = 4952
SOURCE: Final = "openstack"
#: Longest text in bytes, so that a message always fits into a datagram.
LONGEST: Final = 120
_SPACE: Final = uuid.UUID("0f2a6c1e-6f0e-4d6e-9d55-3f7a6c2b8e10")


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
FIELDS: Final = [f"{kind}.{field}" for kind, fields in METERS.items() for field in fields]


class Ceilometer:
    """Outlet of the sink: encodes samples and sends each in a datagram of its own."""

    name = "ceilometer"

    def __init__(self, host: str, port: int, secret: str) -> None:
        self._udp = Udp(self.name, host, port)
        self._secret = secret.encode()

    def encode(self, sample: Sample) -> bytes:
        message = meter_message(sample)
        message["message_signature"] = signature(message, self._secret)
        packed: bytes = msgpack.packb(message, use_bin_type=True)
        return packed

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
        "message_id": str(uuid.uuid5(_SPACE, _text(own, 10 * LONGEST))),
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
    found: dict[str, Any] = {"host": _text(sample.host)}
    if entity.kind != HOST:
        guest, name, rest = split(entity.id, entity.name)
        found |= {"instance_id": _text(guest), "name": _text(name)}
        if entity.flavor:
            found["flavor"] = {"name": _text(entity.flavor)}
        if entity.kind == DISK:
            found["disk_name"] = _text(rest)
        if entity.kind == NIC:
            found["name"] = found["vnic_name"] = _text(entity.about.get("ifname", rest))
            found["mac"] = _text(entity.about.get("mac", ""))
    if sample.field == ALARM:
        found |= {name: _text(text) for name, text in sample.about.items()}
    return found


def _text(text: str, most: int = LONGEST) -> str:
    """Cut a text to `most` bytes of valid UTF-8."""
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")
