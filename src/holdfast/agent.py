# SPDX-License-Identifier: Apache-2.0
"""Puts the agent of a compute host together: what `service.py` is to a manager.

It runs beside the guests of customers: it knows neither the cloud nor the database, and imports
none of what speaks to them.
"""

import fcntl
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from oslo_config import cfg

from holdfast import __version__
from holdfast.alarming import Alarming
from holdfast.client import Client
from holdfast.client.access import read_password
from holdfast.client.agents import HoldfastCentre
from holdfast.client.errors import ClientError
from holdfast.client.expected import HoldfastExpected
from holdfast.client.reports import HoldfastReports
from holdfast.daemon import BadSetup, Part
from holdfast.drivers.admin_socket import AdminSocket
from holdfast.drivers.guests import connect
from holdfast.drivers.processes import LinuxProcesses
from holdfast.hanging import HangPart
from holdfast.measuring import Losses, measuring
from holdfast.model.errors import HoldfastError
from holdfast.model.host import normalise
from holdfast.model.service import Service
from holdfast.ports.clock import Clock, SystemClock
from holdfast.ports.guests import Guests
from holdfast.ports.reports import Reports
from holdfast.watch.admin import Admin
from holdfast.watch.agent import SERVICES, HostAgent, observer
from holdfast.watch.courier import Courier
from holdfast.watch.errand import Rounds
from holdfast.watch.expectation import SecondOpinion
from holdfast.watch.filters import FilterFile
from holdfast.watch.guest_admin import GuestCommands
from holdfast.watch.metrics.recent import Recent
from holdfast.watch.processes import ProcessWatch, ServicesFile
from holdfast.watch.spool import Spool
from holdfast.watch.tap import Tap, TappedReports


class AgentPart:
    def __init__(self, conf: cfg.ConfigOpts, reports: Reports, clock: Clock | None = None) -> None:
        settings = conf.agent
        clock = clock or SystemClock()
        try:
            filters = FilterFile(settings.filters_file)
            guests = connect(settings.guests, settings.guests_address, clock)
            self._owned = own(settings.spool)
            self._spool = Spool(settings.spool)
            process_watch = watch_services(settings, self._spool, clock)
        except HoldfastError as error:
            raise BadSetup(error.message) from error
        tap = Tap()
        host = normalise(settings.host or socket.gethostname())
        self._courier = Courier(
            self._spool, TappedReports(reports, tap), clock, observer=observer(host)
        )
        self._agent = HostAgent(
            host,
            guests,
            process_watch,
            filters,
            self._spool,
            settings,
            clock,
            spooled=self._courier.ring,
            tap=tap,
        )
        about = {
            "pid": os.getpid(),
            "version": __version__,
            "started_at": clock.now().isoformat(),
        }
        self.admin = Admin()
        ring, recent = self._courier.ring, Recent()
        alarming = Alarming(
            *(conf, self._agent, self._spool, centre(settings), clock), spooled=ring, recent=recent
        )
        self.admin.add(alarming.commands())
        measured = measuring(conf, self._agent.host, self.admin, clock, alarming.alarms, [recent])
        losses = Losses(alarming.alarms, measured).said
        asked = GuestCommands(self._agent, self._spool, tap, clock, about, losses)
        self.admin.add(asked.commands())
        self._parts: list[Part] = [self._courier, self._agent]
        self._parts += [HangPart(settings, self._agent, clock), alarming, *measured]
        if settings.socket:
            self._parts.append(AdminSocket(settings.socket, self.admin, clock))
        if settings.expectation_every_s:
            self._parts.append(self._second_opinion(settings, guests, clock))

    def _second_opinion(self, settings: cfg.ConfigOpts, guests: Guests, clock: Clock) -> Part:
        agent = self._agent
        second = SecondOpinion(
            agent.host, expected(settings), guests, settings, clock, agent.looked
        )
        rounds = Rounds("expectation", second.pause_s, second.round, clock)

        def removed() -> None:
            if second.hurry():
                rounds.ring()

        agent.removed = removed
        return rounds

    def start(self) -> None:
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        for part in reversed(self._parts):
            part.stop()
        self._spool.close()
        self._owned.close()


def own(spool: str) -> IO[bytes]:
    """The spool is this agent's alone until that is closed, or it ends in any other way: of two
    each would tell, and take for told, what is the other's."""
    path = Path(f"{spool}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise BadSetup(f"[agent] spool: {path}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise BadSetup(
            f"[agent] spool: another agent that runs has {spool}: stop it, or give this one a"
            " spool of its own"
        ) from error
    return file


def services(names: Sequence[str]) -> Sequence[Service]:
    return [Service(name, restart=("systemctl", "restart", name)) for name in names]


def watch_services(settings: cfg.ConfigOpts, spool: Spool, clock: Clock) -> ProcessWatch:
    """What was tried by the agent before us counts."""

    def keep(said: Mapping[str, Any]) -> None:
        spool.put((), {SERVICES: said})

    file = ServicesFile(settings.services_file)
    watch = ProcessWatch(LinuxProcesses(), services(settings.services), file, keep)
    watch.recall(spool.note(SERVICES), clock.monotonic())
    return watch


def reports(conf: cfg.ConfigOpts) -> Reports:
    """To Holdfast, by the host's own token."""
    try:
        client(conf.agent).close()
    except ClientError as error:
        raise BadSetup(f"[agent] {error}") from error
    return HoldfastReports(lambda: client(conf.agent), SystemClock().now)


def expected(settings: cfg.ConfigOpts) -> HoldfastExpected:
    """What should run here, asked of Holdfast by the same token."""
    return HoldfastExpected(lambda: client(settings))


def centre(settings: cfg.ConfigOpts) -> HoldfastCentre:
    """Where it says that it lives, and learns which alarm rules hold, by the same token."""
    return HoldfastCentre(lambda: client(settings))


def client(settings: cfg.ConfigOpts) -> Client:
    file = settings.token_file
    return Client(
        settings.api_url,
        agent=read_password(file) if file else None,
        timeout_s=settings.api_timeout_s,
        retries=0,
    )
