# SPDX-License-Identifier: Apache-2.0
"""Composition root of the host monitor: networks, HA matrix, outbox and sender."""

import importlib.metadata
import logging
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from holdfast.agent.outbox import Heartbeat, Outbox, Sender
from holdfast.app.daemon import BadSetup, Part
from holdfast.client.auth import read_password
from holdfast.client.client import Client
from holdfast.client.errors import ClientError
from holdfast.client.reports import HoldfastReports, InstanceHaReports
from holdfast.conf import hostmonitor
from holdfast.conf.hostmonitor import INSTANCE_HA
from holdfast.hostmonitor.matrix import InvalidMatrix
from holdfast.hostmonitor.monitor import HostMonitor, MatrixFile, NetworkWatch
from holdfast.model.errors import DriverError, HoldfastError
from holdfast.ports.membership import Membership
from holdfast.ports.reports import Reports
from holdfast.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from holdfast.db import Store


# Membership drivers of networks, found by entry point `holdfast.membership`: Consul, or the
# simulated cloud's. The group [network_<name>] names the driver of a network.


NAMESPACE = "holdfast.membership"
PORT = "membership"


def connect(conf: cfg.ConfigOpts, network: str) -> Membership:
    """Return the membership driver of a network; DriverError if the named driver is unknown."""
    wanted = conf[hostmonitor.group(network)].driver
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=NAMESPACE)}
    if wanted not in entries:
        raise DriverError(
            PORT,
            f"[{hostmonitor.group(network)}] driver: there is no {wanted!r}; there are"
            f" {', '.join(sorted(entries))}",
            retryable=False,
        )
    membership: Membership = entries[wanted].load()(conf, network)
    return membership


LOG = logging.getLogger(__name__)


def observer(conf: cfg.ConfigOpts) -> str:
    """Return the name under which the monitor of this machine votes."""
    name: str = conf.hostmonitor.name or socket.gethostname()
    return name


class HostMonitorPart:
    """The host monitor with its outbox, sender and heartbeat."""

    def __init__(self, conf: cfg.ConfigOpts, reports: Reports, clock: Clock | None = None) -> None:
        settings = conf.hostmonitor
        clock = clock or SystemClock()
        name = observer(conf)
        try:
            ha_matrix = MatrixFile(settings.matrix_file, settings.networks)
            watches = [_watch(conf, name, clock) for name in settings.networks]
            self._outbox = Outbox(settings.outbox)
        except InvalidMatrix as error:
            raise BadSetup(
                f"{error.message}; `holdfast matrix check` names the problems"
            ) from error
        except HoldfastError as error:
            raise BadSetup(error.message) from error
        self._sender = Sender(self._outbox, reports, clock, observer=name)
        self._monitor = HostMonitor(
            name,
            watches,
            ha_matrix,
            self._outbox,
            settings,
            clock,
            report_stored=self._sender.wake,
            changed=self._say,
        )
        self._heartbeat = Heartbeat(reports, name, self._monitor.view, settings.heartbeat_s, clock)
        self._parts: Sequence[Part] = (self._sender, self._monitor, self._heartbeat)

    def _say(self) -> None:
        self._heartbeat.wake()

    def start(self) -> None:
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        for part in reversed(self._parts):
            part.stop()
        self._outbox.close()


def _watch(
    conf: cfg.ConfigOpts, network: str, clock: Clock
) -> Callable[[Callable[[], None]], NetworkWatch]:
    membership = connect(conf, network)
    return lambda changed: NetworkWatch(membership, conf.hostmonitor, clock, changed)


#: `by` of the registration that `holdfast up` makes for its own monitor.
UP = "holdfast up"


def register_own(store: "Store", name: str) -> None:
    """Register the monitor of `holdfast up`, which runs in the process of the API.

    A monitor that an earlier `holdfast up` registered under another host name is unregistered and
    does not vote any more.
    """
    _now, listed = store.monitors.listed(registered=True)
    for monitor in listed:
        if monitor.registration and monitor.registration.by == UP and monitor.observer != name:
            store.monitors.unregister(monitor.observer)
    store.monitors.register(name, UP)


class InHouse:
    """Writes a monitor's reports to the store, if it runs in the API's process (`Reports`)."""

    def __init__(self, store: "Store", wake: Callable[[], None]) -> None:
        self._store = store
        self._wake = wake

    def report(self, body: Mapping[str, Any]) -> None:
        times = {name: datetime.fromisoformat(body[name]) for name in ("since", "observed_at")}
        self._store.observations.add(str(uuid.uuid4()), {**body, **times})
        self._wake()

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        view = dict(body)
        self._store.monitors.put(observer, datetime.fromisoformat(view.pop("at")), view)


def reports(conf: cfg.ConfigOpts) -> Reports:
    """Return the configured client for the monitor's reports."""
    settings = conf.hostmonitor
    by_token = settings.report_to != INSTANCE_HA and settings.token_file

    def client() -> Client:
        if by_token:
            return Client(
                settings.api_url,
                agent=read_password(settings.token_file),
                timeout_s=settings.api_timeout_s,
                retries=0,
            )
        user, file = settings.api_user, settings.api_password_file
        return Client(
            settings.api_url,
            user=user,
            password=read_password(file) if user and file else None,
            timeout_s=settings.api_timeout_s,
            retries=0,
        )

    try:
        client().close()
    except ClientError as error:
        raise BadSetup(f"[hostmonitor] {error}") from error
    if settings.report_to == INSTANCE_HA:
        return InstanceHaReports(client)
    if not by_token:
        name = observer(conf)
        LOG.warning(
            "[hostmonitor] token_file is not set: this monitor does not vote; `holdfast monitor"
            " register %s` prints its token",
            name,
        )
    return HoldfastReports(client)
