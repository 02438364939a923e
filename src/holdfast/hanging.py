# SPDX-License-Identifier: Apache-2.0
"""Puts together who looks for guests that hang, for the agent of a host: what they find is heard as
if the hypervisor had said it."""

import logging
from collections.abc import Mapping
from typing import Protocol

from holdfast.drivers.guests import heartbeats
from holdfast.drivers.guests.vcpus import QemuVcpus
from holdfast.model.guest_filter import Sign
from holdfast.ports.clock import Clock
from holdfast.ports.guests import HANG, Heartbeats
from holdfast.ports.vcpus import Vcpus
from holdfast.watch import hangs, stalls
from holdfast.watch.agent import HostAgent
from holdfast.watch.errand import Rounds
from holdfast.watch.guest_meaning import RUNNING, cause

LOG = logging.getLogger(__name__)
#: How often a processor is looked at before it is called stalled.
LOOKS = 3


class Settings(Protocol):
    """[agent]."""

    guests: str
    guests_address: str
    heartbeats_every_s: float
    heartbeats_missed: int
    heartbeats_quiet_s: float
    stalled_s: float


class HangPart:
    """DriverError if the driver of the guests cannot be used."""

    def __init__(self, settings: Settings, agent: HostAgent, clock: Clock) -> None:
        self._agent = agent
        self._clock = clock
        self._rounds: list[Rounds] = []
        self._hearts: Heartbeats | None = None
        if settings.heartbeats_every_s:
            self._hearts = heartbeats(settings.guests, settings.guests_address, clock)
        if self._hearts is not None:
            wanted = hangs.Settings(settings.heartbeats_missed, settings.heartbeats_quiet_s)
            self._hangs = hangs.HangWatch(wanted)
            self._hangs.recall(*self._said(hangs.HUNG))
            every_s = settings.heartbeats_every_s
            self._rounds.append(Rounds("heartbeats", every_s, self.ask_agents, clock))
        elif settings.heartbeats_every_s:
            LOG.info("guests of %s have no heartbeat that could be asked for", settings.guests)
        if settings.stalled_s:
            self._vcpus: Vcpus = QemuVcpus()
            self._stalls = stalls.StallWatch(stalls.Settings(settings.stalled_s))
            self._stalls.told, _ = self._said(stalls.STALLED)
            every_s = settings.stalled_s / LOOKS
            self._rounds.append(Rounds("vcpus", every_s, self.look_at_processors, clock))

    def start(self) -> None:
        for rounds in self._rounds:
            rounds.start()

    def stop(self) -> None:
        for rounds in self._rounds:
            rounds.stop()
        if self._hearts is not None:
            self._hearts.close()

    def ask_agents(self) -> None:
        assert self._hearts is not None
        pulses = self._hearts.pulses()
        at, now = self._clock.now(), self._clock.monotonic()
        for event in self._hangs.look(pulses, self._running(), at, now):
            self._agent.heard(event)

    def look_at_processors(self) -> None:
        known = self._running()
        vcpus = self._vcpus.read() if known else ()
        at, now = self._clock.now(), self._clock.monotonic()
        for event in self._stalls.look(vcpus, known, at, now):
            self._agent.heard(event)

    def _said(self, what: str) -> tuple[dict[str, str], dict[str, str]]:
        """Guests of which it was told before our time, and is not over; and those of which it was
        not told yet. Names by uuid."""
        name = cause(Sign(HANG, what))
        tracks = [one for one in self._agent.view().tracks.values() if name in one.troubles]
        told = {one.uuid: one.name for one in tracks if one.troubles[name].told}
        return told, {one.uuid: one.name for one in tracks if one.uuid not in told}

    def _running(self) -> Mapping[str, str]:
        """Guests of this agent's hypervisor; others may run on this machine, too."""
        tracks = self._agent.view().tracks.values()
        return {track.uuid: track.name for track in tracks if track.life == RUNNING}
