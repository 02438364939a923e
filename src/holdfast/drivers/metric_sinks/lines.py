# SPDX-License-Identifier: Apache-2.0
"""statsd and graphite over UDP: a line for each number, many lines in a datagram."""

from collections.abc import Sequence

from holdfast.drivers.metric_sinks.names import Names
from holdfast.drivers.metric_sinks.udp import Udp, packed
from holdfast.model.metric_fields import is_counter
from holdfast.ports.metric_sinks import Sample


class Statsd:
    """Gauges, and counters by how much they grew. What a counter had before we looked, or did while
    it was begun anew, nobody knows: nothing is said of that."""

    name = "statsd"

    def __init__(self, host: str, port: int, names: Names) -> None:
        self._udp = Udp(self.name, host, port)
        self._names = names

    def encode(self, sample: Sample) -> bytes:
        path = self._names.path(sample)
        if is_counter(sample.field):
            return b"" if sample.step is None else f"{path}:{number(sample.step)}|c".encode()
        line = f"{path}:{number(sample.value)}|g"
        if sample.value < 0:  # a sign means a step from what it was: make that nothing first
            line = f"{path}:0|g\n{line}"
        return line.encode()

    def send(self, samples: Sequence[bytes], now: float) -> None:
        self._udp.send(packed(samples), now)

    def close(self) -> None:
        self._udp.close()


class Graphite:
    """The plain text protocol; counters as they are."""

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
    """Without an exponent, which not every receiver can read, and no more digits than matter."""
    if value == int(value):
        return str(int(value))
    text = f"{value:.6f}" if abs(value) < 1e6 else f"{value:.1f}"
    text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
