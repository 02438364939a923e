# SPDX-License-Identifier: Apache-2.0
"""Snapshots made up for sinks, and a socket that hears what they send."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from holdfast.alarms.tracks import Change
from holdfast.ports.metrics import DISK, GUEST, HOST, NIC, Entity, Reading, Snapshot, Table

BEGIN = datetime(2026, 11, 16, 12, tzinfo=UTC)
NODE = "cmp-7"
UUIDS = [f"6f0c5e9a-0000-4000-8000-{number:012d}" for number in range(1_000)]

Values = Mapping[str, float]


def guest(number: int = 0, name: str | None = None) -> Entity:
    called = f"web{number}" if name is None else name
    return Entity(GUEST, UUIDS[number], called, "p-1", "shop", "m1.small")


def disk(number: int = 0, target: str = "vda") -> Entity:
    return _part(DISK, number, target, {"target": target})


def nic(number: int = 0, tap: str = "tap0", contracts: Values | None = None) -> Entity:
    return _part(NIC, number, tap, {"ifname": tap, "mac": "52:54:00:00:00:01"}, contracts)


def _part(
    kind: str,
    number: int,
    name: str,
    about: Mapping[str, str],
    contracts: Values | None = None,
) -> Entity:
    return Entity(
        kind,
        f"{UUIDS[number]}/{name}",
        f"web{number}/{name}",
        "p-1",
        "shop",
        guest=UUIDS[number],
        contracts=contracts or {},
        about=about,
    )


NODE_ENTITY = Entity(HOST, NODE, NODE)


def snapshot(readings: Iterable[tuple[Entity, Values] | Reading], second: float = 0.0) -> Snapshot:
    tables: dict[str, list[Reading]] = {}
    for reading in readings:
        made = reading if isinstance(reading, Reading) else Reading(*reading)
        tables.setdefault(made.entity.kind, []).append(made)
    return Snapshot(
        NODE,
        int(second * 1000) + 1,
        BEGIN + timedelta(seconds=second),
        1_000.0 + second,
        1.0,
        {kind: Table(kind, readings) for kind, readings in tables.items()},
    )


def change(
    state: str, before: str = "ok", rule: str = "hot", number: int = 0, second: float = 0.0
) -> Change:
    at = BEGIN + timedelta(seconds=second)
    return Change(
        *(rule, "v1", NODE, GUEST, UUIDS[number], f"web{number}", "p-1", before, state),
        *("warning", 0.97, 0.9, 60.0, at, at, at, 3),
    )


class Ear:
    """A UDP socket on loopback."""

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * 1024 * 1024)
        self._socket.bind(("127.0.0.1", port))
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    def heard(self) -> list[bytes]:
        """All that lies there: on loopback it is there when it is sent."""
        datagrams = []
        while True:
            try:
                datagrams.append(self._socket.recv(65_536))
            except BlockingIOError:
                return datagrams

    def lines(self) -> list[str]:
        return [line for datagram in self.heard() for line in datagram.decode().splitlines()]

    def close(self) -> None:
        self._socket.close()
