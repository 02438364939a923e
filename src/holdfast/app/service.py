# SPDX-License-Identifier: Apache-2.0
"""Composition root: builds core, manager and API of a process from the configuration."""

import functools
import gc
import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, NamedTuple

from oslo_config import cfg
from stevedore import driver, extension

from holdfast import console
from holdfast.api import app, health
from holdfast.api.auth import is_loopback
from holdfast.api.health import Metrics
from holdfast.api.request import Route, Services
from holdfast.api.reservation_v1 import leases as lease_api
from holdfast.api.routes import ROUTES
from holdfast.app.daemon import BadSetup
from holdfast.app.http_server import BodyLimit, Server
from holdfast.app.manager import Recovering, Watching, fence, speak
from holdfast.console.live import Feed
from holdfast.db import Store
from holdfast.hoststatus import poll
from holdfast.jobs import retention
from holdfast.jobs.job import Kind, never_ending
from holdfast.jobs.loop import Loop, Runner
from holdfast.leases import aggregates, auto_lease, hosts, lifecycle, policy, repair
from holdfast.leases.booking import Leases
from holdfast.leases.commands import Commands
from holdfast.leases.events import Announcer
from holdfast.leases.hosts import Hosts
from holdfast.leases.lifecycle import LeaseContext
from holdfast.leases.policy import Enforcement
from holdfast.leases.repair import Repairs
from holdfast.leases.resources.base import Resource
from holdfast.leases.resources.floatingip import FloatingIps
from holdfast.model.errors import DriverError, HoldfastError
from holdfast.model.operation import Operation
from holdfast.ports.cloud import Cloud
from holdfast.ports.fence import UNKNOWN, Fence
from holdfast.ports.manager import Manager
from holdfast.ports.publishers import Sink
from holdfast.recovery.expected import ExpectedOnHosts, SegmentHosts
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.threads import Worker

LOG = logging.getLogger(__name__)


def new_id() -> str:
    return str(uuid.uuid4())


class Core:
    """The parts of every program: configuration, clock, store and metrics."""

    def __init__(self, conf: cfg.ConfigOpts, clock: Clock | None = None) -> None:
        self.conf = conf
        self.clock: Clock = clock or SystemClock()
        self.store = Store(
            conf.database.connection,
            self.clock,
            pool_size=conf.database.pool_size,
            timeout_s=conf.database.timeout_s,
        )
        self._sinks: Sequence[Sink] | None = None
        self.metrics = Metrics()
        self.metrics.watch_open(self.store.operations.open_by_kind)

    def speak(self) -> Sequence[Sink]:
        """Connect the publishers once; API and managers need this before writing to the store."""
        if self._sinks is None:
            self._sinks = speak(self.conf, self.clock, self.store)
        return self._sinks

    def close(self) -> None:
        self.store.close()


def connect_cloud(conf: cfg.ConfigOpts, clock: Clock) -> Cloud:
    try:
        manager: Any = driver.DriverManager("holdfast.cloud", conf.cloud.driver)
    except Exception as error:  # stevedore raises what the plugin's import raised
        raise BadSetup(
            f"[cloud] driver = {conf.cloud.driver}: cannot be loaded: {error}"
        ) from error
    cloud: Cloud = manager.driver(conf, clock)
    return cloud


def resources() -> Mapping[str, Resource]:
    """Load the installed resource types; BadSetup if a type cannot be loaded."""

    def failed(_manager: Any, entry: Any, error: BaseException) -> None:
        raise BadSetup(f"resource type {entry.name} cannot be loaded: {error}") from error

    extensions: Any = extension.ExtensionManager(
        "holdfast.resources", invoke_on_load=True, on_load_failure_callback=failed
    )
    return {item.obj.type: item.obj for item in extensions}


def enforcement(core: Core) -> Enforcement:
    try:
        return policy.load(core.conf, lambda: core.store.ledger.capacity().hosts)
    except DriverError as error:
        raise BadSetup(error.message) from error


def _repair(now: datetime) -> Operation:
    """Return the repair job, due when a host fails or returns; all hosts share a single row."""
    return never_ending(repair.REPAIR, now)


def region(conf: cfg.ConfigOpts) -> str:
    """Return the region of the hosts: the option, or the region of the cloud's endpoints."""
    return conf.region or conf.openstack.region_name or ""


class ManagerPart:
    """A manager: commands and durable jobs. Several managers may share a database."""

    def __init__(self, core: Core, cloud: Cloud, *, serve_rpc: bool = False) -> None:
        conf = core.conf
        self.name = conf.manager.name or f"{socket.gethostname()}:{os.getpid()}"
        self._core = core
        self.cloud = cloud
        self._calls = ThreadPoolExecutor(conf.cloud.parallel_calls, thread_name_prefix="call")
        self._announcer = Announcer(core.speak(), lease_api.view, conf.publishers, core.clock)
        context = self._lease_context()
        leases = Leases(context, core.clock, new_id)
        its_hosts = Hosts(context, new_id, region(conf))
        repairs = Repairs(context, conf.reservation, conf.mass_failure, its_hosts, new_id)
        self.watching = Watching(core, cloud, repair=_repair, new_id=new_id, wake=self._wake)
        self.recovering = Recovering(
            core,
            cloud,
            self.watching.hosts,
            new_id=new_id,
            wake=self._wake,
            announce=core.store.database.publisher.incident,
        )
        self.runner = self._new_runner(self._kinds(context, leases, repairs))
        self.loop = Loop(core.store.operations, self.runner, core.clock, conf.manager)
        self.commands = self._new_commands(leases, its_hosts, repairs)
        self._serve_rpc = serve_rpc
        self._preparation = Worker(
            "ready", core.clock, self._prepare, longest_retry_s=5.0, stop_s=None
        )
        self._rpc: Any = None

    def _lease_context(self) -> LeaseContext:
        conf = self._core.conf
        return LeaseContext(
            ledger=self._core.store.ledger,
            cloud=self.cloud,
            calls=self._calls,
            resources=resources(),
            settings=conf.reservation,
            freepool=conf.cloud.freepool,
            announcer=self._announcer,
            enforcement=enforcement(self._core),
        )

    def _new_runner(self, kinds: Mapping[str, Kind]) -> Runner:
        conf = self._core.conf
        return Runner(
            self._core.store.operations,
            kinds,
            self._core.clock,
            owner=self.name,
            patience=conf.manager,
            workers=conf.manager.workers,
            # Longer than any single call made under the claim.
            claim_s=max(
                conf.manager.claim_s,
                conf.cloud.call_timeout_s + 5,
                self.recovering.fence.call_timeout_s + 5,
            ),
            on_ended=self._core.metrics.ended,
        )

    def _new_commands(self, leases: Leases, its_hosts: Hosts, repairs: Repairs) -> Commands:
        conf, store = self._core.conf, self._core.store
        return Commands(
            leases,
            its_hosts,
            FloatingIps(store.ledger, self.cloud),
            repairs,
            store.operations,
            self._core.clock,
            name=self.name,
            wake=self.loop.wake,
            patience_s=lambda: min(10.0, conf.rpc_timeout * 0.7),
            know_host=SegmentHosts(store.segments, self.cloud, region(conf)).know,
            expected=ExpectedOnHosts(store.incidents, self.cloud),
        )

    def _kinds(self, context: LeaseContext, leases: Leases, repairs: Repairs) -> Mapping[str, Kind]:
        """Return all kinds of durable jobs of a manager."""
        conf = self._core.conf
        return {
            **lifecycle.kinds(context),
            **hosts.host_kinds(context),
            **context.announcer.kinds(),
            **context.enforcement.kinds(),
            **repair.kinds(repairs, conf.reservation),
            **aggregates.reconcile_kinds(context, conf.reservation),
            **aggregates.resync_kinds(context),
            **hosts.refresh_kinds(context, conf.reservation, region(conf)),
            **auto_lease.kinds(context, conf.reservation, leases.create),
            **retention.kinds(self._core.store.tidy, conf.manager),
            **self.watching.kinds,
            **self.recovering.kinds,
        }

    def start(self) -> None:
        # Many threads that mostly wait: a thread that holds a lock must not wait 5 ms to run.
        sys.setswitchinterval(0.0005)
        self._preparation.start()
        self.loop.start()
        self.watching.part.start()
        if self._serve_rpc:
            rabbit = _rabbit()
            now = self._core.store.database.now
            self._rpc = rabbit.Server(self._core.conf, self.commands, now, self.name)
            self._rpc.start()
        LOG.info("manager %s started", self.name)

    def _wake(self) -> None:
        """Wake the job loop, which `__init__` creates after the parts with this callback."""
        self.loop.wake()

    def _prepare(self) -> None:
        """Create the rows of the periodic jobs, and load the capacity snapshot; then end.

        A thread of its own does this, so that a slow database does not delay the start.
        """
        store = self._core.store
        now = store.database.now()
        for chore in (
            repair.REPAIR,
            aggregates.RECONCILE,
            aggregates.RESYNC,
            hosts.REFRESH,
            auto_lease.SWEEP,
            retention.TIDY,
            poll.POLL,
        ):
            store.operations.ensure(never_ending(chore, now))
        began = self._core.clock.monotonic()
        snapshot = store.ledger.capacity()
        snapshot.lay_out()  # imports numpy too, so that no request waits for it
        gc.collect()
        gc.freeze()  # most objects stay: each garbage collection of them takes 0.1 s
        took = self._core.clock.monotonic() - began
        LOG.info("%s hosts and their leases read in %.1f s", len(snapshot.hosts), took)
        self._preparation.stopping.set()

    def stop(self) -> None:
        if self._rpc is not None:
            self._rpc.stop()
        self.watching.part.stop()
        self.loop.stop()
        self._preparation.stop()
        self._announcer.close()
        self._calls.shutdown(wait=True)
        self.cloud.close()
        LOG.info("manager %s stopped", self.name)


def http_server(conf: cfg.ConfigOpts, application: Any, port: int = 0) -> Server:
    """Return the server of the API, by default on the port of [api]."""
    threads = conf.api.threads + conf.console.streams
    return Server(conf.api.host, port or conf.api.port, application, threads, _body_limit(conf))


def _body_limit(conf: cfg.ConfigOpts) -> BodyLimit:
    """Return the body limit of a connection; the API applies the limit of the route later."""
    largest = max(route.max_body for route in (*ROUTES, *console.ROUTES))

    def limit(has_credentials: bool) -> int:
        usual: int = conf.api.max_body
        trusted = has_credentials or conf.auth_strategy == "noauth"
        return max(usual, largest) if trusted else usual

    return limit


def api_services(
    core: Core,
    manager: Manager,
    *,
    loop_age_s: Callable[[], float] | None = None,
    wake: Callable[[], None] = lambda: None,
) -> Services:
    core.speak()
    return Services(
        conf=core.conf,
        store=core.store,
        manager=manager,
        clock=core.clock,
        new_id=new_id,
        loop_age_s=loop_age_s,
        wake=wake,
        read_power=functools.partial(_read_power, core, functools.cache(lambda: fence(core))),
        sim=functools.cache(lambda: _simulator(core)) if core.conf.cloud.driver == "sim" else None,
        feed=Feed(core.store.changes.marks, core.clock, core.conf.console.streams),
    )


def _read_power(core: Core, fences: Callable[[], Fence], host: str) -> str:
    """Return the power state of a host; UNKNOWN if the fence device cannot be read."""
    try:
        return fences().power(host)
    except (HoldfastError, BadSetup) as error:
        LOG.warning("the power of %s cannot be read: %s", host, error)
        return UNKNOWN


def _simulator(core: Core) -> Any:
    """Open the simulator on first use, because a forking server must not share its connection."""
    from holdfast.drivers.sim.simulator import Simulator

    return Simulator(core.conf.sim.database, core.clock)


def application(core: Core, services: Services, routes: Sequence[Route] | None = None) -> Any:
    return app.build(services, core.metrics, routes)


def check_bind(conf: cfg.ConfigOpts, host: str) -> None:
    """Refuse noauth on non-loopback addresses, because noauth makes every caller an admin."""
    if conf.auth_strategy == "noauth" and not is_loopback(host):
        raise BadSetup(
            f"refusing to listen on {host}: auth_strategy is noauth, which makes every caller an"
            " admin, so only loopback addresses are possible. Use --host 127.0.0.1, or set"
            " auth_strategy to http_basic or keystone"
        )


def check_auth(conf: cfg.ConfigOpts) -> None:
    """Refuse to start if http_basic cannot read its user files, as every login would fail."""
    if conf.auth_strategy != "http_basic":
        return
    for name in ("htpasswd_file", "users_file"):
        path = conf.auth[name]
        if not os.access(path, os.R_OK):
            raise BadSetup(f"[auth] {name}: {path} cannot be read, and http_basic needs it")


def auth_warning(conf: cfg.ConfigOpts) -> str:
    """Return a sentence about what `auth_strategy` leaves open; empty if nothing."""
    host = conf.api.host
    if conf.auth_strategy == "noauth":
        return (
            "auth_strategy is noauth: every user and program of this machine is an admin, and so is"
            " everybody behind a proxy of this machine that adds no header"
        )
    is_https = conf.api.public_url.startswith("https:")
    if conf.auth_strategy == "http_basic" and not is_loopback(host) and not is_https:
        return (
            f"auth_strategy is http_basic on {host} WITHOUT TLS: passwords cross the network in"
            " clear. Put a TLS proxy in front and set [api] public_url to its https:// URL, or"
            " listen on 127.0.0.1"
        )
    return ""


def manager_health(core: Core, manager: ManagerPart) -> Sequence[Server]:
    """Return the health server of a manager without API.

    The health check calls the manager through the broker: an unreachable manager is not ready.
    """
    remote = _rabbit().RemoteManager(core.conf, core.store.database.now)
    services = api_services(core, remote, loop_age_s=manager.loop.age_s)
    return health_servers(core, services, core.conf.manager.health_port)


def health_servers(core: Core, services: Services, port: int) -> Sequence[Server]:
    """Return the server for /livez, /readyz and /metrics on a port of its own; none for port 0."""
    if not port:
        return []
    conf = core.conf
    application_ = application(core, services, health.routes(core.metrics))
    host, limit = conf.manager.health_host, conf.api.max_body
    return [Server(host, port, application_, threads=2, body_limit=lambda _: limit)]


def need_broker(conf: cfg.ConfigOpts) -> None:
    if not conf.transport_url:
        raise BadSetup(
            "transport_url is not set: API and managers as separate programs need a message broker."
            " Set it (rabbit://user:secret@host:5672//), or run `holdfast up`: all in one process"
        )


def check_schema(core: Core) -> None:
    """Refuse to start unless the database has the schema of this version (`holdfast db sync`)."""
    from holdfast.db import migrations

    current, wanted = migrations.version(core.store.database), migrations.head()
    if current != wanted:
        raise BadSetup(
            f"the database is at {current or 'nothing'} and this version needs {wanted}:"
            " run `holdfast db sync` first"
        )


class Api(NamedTuple):
    application: Any
    health: Callable[[], Sequence[Server]]  # servers of [api] health_port
    quiet: Callable[[], None]  # ends open event streams before the server stops
    close: Callable[[], None]


def api_application(conf: cfg.ConfigOpts) -> Api:
    """Build the API without a manager; the API reaches managers through the broker."""
    need_broker(conf)
    check_auth(conf)
    if warning := auth_warning(conf):
        LOG.warning("%s", warning)
    core = Core(conf)
    remote = _rabbit().RemoteManager(conf, core.store.database.now)
    services = api_services(core, remote)

    def close() -> None:
        remote.close()
        core.close()

    probes = functools.partial(health_servers, core, services, conf.api.health_port)
    return Api(application(core, services), probes, services.feed.stop, close)


def _rabbit() -> Any:
    try:
        from holdfast.drivers.rabbit import rpc
    except ImportError as error:
        raise BadSetup(
            f"transport_url is set but {error.name} is not installed: pip install holdfast[rabbit]"
        ) from error
    return rpc
