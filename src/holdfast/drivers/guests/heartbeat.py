# SPDX-License-Identifier: Apache-2.0
"""The heartbeat of guests that want it: their agents are asked through libvirt, many at a time.

Only of those that do not answer is more asked: whether the agent's channel is open, and what the
guest has done so far. libvirtd serves five requests of a connection at a time, so there are
several connections; they may write, which a question to an agent needs.
"""

import functools
import logging
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.drivers.guests import facts, loop
from holdfast.drivers.guests.calls import Call, Opening, failed
from holdfast.drivers.guests.facts import Facts
from holdfast.model.errors import DriverError
from holdfast.ports.clock import Clock
from holdfast.ports.guests import Pulse

LOG = logging.getLogger(__name__)
LANES: Final = 4
AT_ONCE: Final = LANES * 4
#: What an agent gets to answer; libvirt itself counts.
ANSWER_S: Final = 2
#: Before that libvirt makes sure that an agent hears it at all, which takes so long if none does.
SYNC_S: Final = 5
#: And what libvirt gets on top.
SPARE_S: Final = 2.0
KEEPALIVE: Final = (1, 3)
_PING: Final = '{"execute": "guest-ping"}'
_CHANNEL: Final = "devices/channel/target[@name='org.qemu.guest_agent.0']"
_DONE: Final = (".rd.reqs", ".wr.reqs", ".fl.reqs", ".tx.pkts")


class LibvirtHeartbeats:
    """One thread at a time."""

    def __init__(self, address: str, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._libvirt = loop.running()
        self._ways: list[Any] = []
        self._opening = Opening(self._open)

    def pulses(self) -> Sequence[Pulse]:
        try:
            wanted = self._wanted(self._connected()[0])
        except self._libvirt.libvirtError as error:
            raise failed(str(error)) from error
        found: list[Pulse] = []
        for start in range(0, len(wanted), AT_ONCE):
            found += self._some(wanted[start : start + AT_ONCE])
        return found

    def close(self) -> None:
        self._ways = []

    def _connected(self) -> Sequence[Any]:
        if self._ways and all(way.isAlive() for way in self._ways):
            return self._ways
        self._ways = self._opening.result(ANSWER_S)
        return self._ways

    def _open(self) -> list[Any]:
        ways = [self._libvirt.open(self._address) for _ in range(LANES)]
        for way in ways:
            way.setKeepAlive(*KEEPALIVE)
        return ways

    def _wanted(self, way: Any) -> list[tuple[str, str, Facts]]:
        def look() -> list[tuple[str, str, Facts]]:
            active = way.listAllDomains(self._libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
            return [(one.UUIDString(), one.name(), facts.read(one.XMLDesc())) for one in active]

        found = Call("list", look).result(ANSWER_S + SPARE_S)
        return [one for one in found if one[2].metadata.get("heartbeat") == "yes"]

    def _some(self, guests: Sequence[tuple[str, str, Facts]]) -> Iterator[Pulse]:
        until = self._clock.monotonic() + SYNC_S + ANSWER_S + SPARE_S
        calls = []
        for number, (uuid, _, _) in enumerate(guests):
            way = self._ways[number % LANES]
            calls.append(Call("ping", functools.partial(self._look, way, uuid)))
        for (uuid, name, known), call in zip(guests, calls, strict=True):
            try:
                seen = call.result(max(0.0, until - self._clock.monotonic()))
            except DriverError:  # it hangs with its QEMU, which is noticed elsewhere
                seen = {"answered": False}
            except self._libvirt.libvirtError as error:  # it has just ended
                LOG.debug("%s: %s", name, error)
                continue
            yield Pulse(uuid, name, **seen, metadata=known.metadata)

    def _look(self, way: Any, uuid: str) -> dict[str, Any]:
        """On a thread of its own."""
        import libvirt_qemu

        domain = way.lookupByUUIDString(uuid)
        try:
            libvirt_qemu.qemuAgentCommand(domain, _PING, ANSWER_S, 0)
            return {"answered": True}
        except self._libvirt.libvirtError as error:
            LOG.debug("%s: %s", uuid, error)
        if not _is_open(domain.XMLDesc()):
            return {"answered": False, "open": False}
        groups = (
            self._libvirt.VIR_DOMAIN_STATS_CPU_TOTAL
            | self._libvirt.VIR_DOMAIN_STATS_VCPU
            | self._libvirt.VIR_DOMAIN_STATS_BLOCK
            | self._libvirt.VIR_DOMAIN_STATS_INTERFACE
        )
        ((_, stats),) = way.domainListGetStats([domain], groups)
        io, cpu_s = activity(stats)
        return {"answered": False, "io": io, "cpu_s": cpu_s}


def activity(stats: Mapping[str, Any]) -> tuple[int, float | None]:
    """What it read, wrote and sent, and the seconds of processors that it used or waited for: on a
    host that is full, what spins gets only its share."""
    done = sum(value for name, value in stats.items() if name.endswith(_DONE))
    used = stats.get("cpu.time")
    waited = sum(value for name, value in stats.items() if name.endswith(".delay"))
    return done, None if used is None else (used + waited) / 1e9


def _is_open(text: str) -> bool:
    target = ET.fromstring(text).find(_CHANNEL)
    return target is not None and target.get("state") == "connected"


def connect(address: str, clock: Clock) -> LibvirtHeartbeats:
    return LibvirtHeartbeats(address or "qemu:///system", clock)
