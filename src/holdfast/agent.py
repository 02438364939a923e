# SPDX-License-Identifier: Apache-2.0
"""Puts the agent of a compute host together: what `service.py` is to a manager.

It runs beside the guests of customers: it knows neither the cloud nor the database, and imports
none of what speaks to them.
"""

import socket
from collections.abc import Sequence

from oslo_config import cfg

from holdfast.client import Client
from holdfast.client.access import read_password
from holdfast.client.errors import ClientError
from holdfast.client.reports import HoldfastReports
from holdfast.daemon import BadSetup, Part
from holdfast.drivers.guests import connect
from holdfast.drivers.processes import LinuxProcesses
from holdfast.model.errors import HoldfastError
from holdfast.model.host import normalise
from holdfast.ports.clock import Clock, SystemClock
from holdfast.ports.processes import Service
from holdfast.ports.reports import Reports
from holdfast.watch.agent import HostAgent
from holdfast.watch.courier import Courier
from holdfast.watch.filters import FilterFile
from holdfast.watch.processes import ProcessWatch
from holdfast.watch.spool import Spool


class AgentPart:
    def __init__(self, conf: cfg.ConfigOpts, reports: Reports, clock: Clock | None = None) -> None:
        settings = conf.agent
        clock = clock or SystemClock()
        try:
            filters = FilterFile(settings.filters_file)
            guests = connect(settings.guests, settings.guests_address, clock)
            self._spool = Spool(settings.spool)
        except HoldfastError as error:
            raise BadSetup(error.message) from error
        self._courier = Courier(self._spool, reports, clock)
        self._agent = HostAgent(
            normalise(settings.host or socket.gethostname()),
            guests,
            ProcessWatch(LinuxProcesses(), services(settings.services)),
            filters,
            self._spool,
            settings,
            clock,
            spooled=self._courier.ring,
        )
        self._parts: Sequence[Part] = (self._courier, self._agent)

    def start(self) -> None:
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        for part in reversed(self._parts):
            part.stop()
        self._spool.close()


def services(names: Sequence[str]) -> Sequence[Service]:
    return [Service(name, restart=("systemctl", "restart", name)) for name in names]


def reports(conf: cfg.ConfigOpts) -> Reports:
    """To Holdfast, by the host's own token."""
    settings = conf.agent

    def client() -> Client:
        file = settings.token_file
        return Client(
            settings.api_url,
            agent=read_password(file) if file else None,
            timeout_s=settings.api_timeout_s,
            retries=0,
        )

    try:
        client().close()
    except ClientError as error:
        raise BadSetup(f"[agent] {error}") from error
    return HoldfastReports(client)
