# SPDX-License-Identifier: Apache-2.0
"""Composition root of the agent: guests, services, metrics, alarms and metric sinks of a host."""

import fcntl
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from oslo_config import cfg

from holdfast import __version__
from holdfast.agent import hangs
from holdfast.agent.admin import Admin, AdminSocket, Handler
from holdfast.agent.agent import SERVICES, HostAgent, Tap, TappedReports, observer
from holdfast.agent.expected import SecondOpinion
from holdfast.agent.guest_admin import GuestCommands
from holdfast.agent.guest_filters import FilterFile, Symptom
from holdfast.agent.guest_state import PAUSED, RUNNING, cause
from holdfast.agent.linux_processes import LinuxProcesses
from holdfast.agent.outbox import Outbox, Sender
from holdfast.agent.processes import ProcessWatch, Service, ServicesFile
from holdfast.alarms.engine import Engine
from holdfast.alarms.host_alarms import HostAlarms
from holdfast.alarms.rule_manager import Heartbeat, RuleCommands, RuleManager, RulesFile, RulesPart
from holdfast.alarms.rules import RuleSet
from holdfast.app.daemon import BadSetup, Part
from holdfast.client.auth import read_password
from holdfast.client.client import Client
from holdfast.client.errors import ClientError
from holdfast.client.reports import HoldfastCentre, HoldfastExpected, HoldfastReports
from holdfast.drivers import connect_guests, connect_heartbeats
from holdfast.drivers.libvirt.heartbeat import QemuVcpus
from holdfast.metrics.admin import MetricsCommands
from holdfast.metrics.collector import Collector
from holdfast.metrics.fields import Fields
from holdfast.metrics.history import Recent
from holdfast.metrics.passes import MetricsPart, Sink, Stages
from holdfast.metrics.plugin_events import PluginEvents
from holdfast.metrics.plugin_manager import PluginManager
from holdfast.metrics.plugin_runner import MIB, Limits, PluginRunner
from holdfast.metrics.sinks.udp import Names, address
from holdfast.metrics.sinks.worker import Band, Export, Pace, SinkWorker
from holdfast.model.errors import HoldfastError
from holdfast.model.host import normalise
from holdfast.ports.guests import HANG, Guests, Heartbeats, Vcpus
from holdfast.ports.metric_plugins import Outlet
from holdfast.ports.metrics import Measures
from holdfast.ports.reports import Centre, Reports
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.threads import PeriodicTask

if TYPE_CHECKING:
    from holdfast.metrics.sinks.prometheus import Prometheus


# Alarms: the rules, their notifications, and the heartbeat that tells Holdfast about both.


SWITCH_S = 0.0005
ALIVE = (RUNNING, PAUSED)
#: The kernel generates a new id at each boot.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: For this long after the host's boot, heartbeats list the guests that run on the host.
BOOTED_LATELY_S = 1800.0
MOST_RUNNING = 4096
#: Note of the outbox with the boot id and the guests that ran before that boot.
BOOT_NOTE = "boot"


class Alarming:
    """The alarms of an agent (`app.daemon.Part`).

    The metrics passes feed `alarms`. Rules and alarms continue from the previous agent process.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        agent: HostAgent,
        outbox: Outbox,
        centre: Centre,
        clock: Clock,
        *,
        report_stored: Callable[[], None],
        recent: Recent | None = None,
    ) -> None:
        settings = conf.metrics
        self._agent = agent
        self._outbox = outbox
        self._boot = boot_of(outbox, BOOT_ID.read_text().strip(), agent.ran_before)
        self._groups = list(settings.groups)
        self._started_at = clock.now().isoformat()
        self.rule_manager = RuleManager(Engine(RuleSet(), self._groups), outbox, clock)
        self.alarms = HostAlarms(
            agent.host, self.rule_manager, outbox, clock, report_stored=report_stored
        )
        file = RulesFile(settings.rules_file, self.rule_manager)
        beat = Heartbeat(agent.host, centre, self.rule_manager, self._about, recent)
        self._part = RulesPart(file, beat, clock)
        conf.register_mutate_hook(lambda _conf, _fresh: self._part.reload())  # SIGHUP

    def commands(self) -> Mapping[str, Handler]:
        return RuleCommands(self.rule_manager).commands()

    def start(self) -> None:
        # the thread that loads new rules must yield to a pass at once, not after Python's 5 ms
        sys.setswitchinterval(SWITCH_S)
        self._part.start()

    def stop(self) -> None:
        self._part.stop()
        self.alarms.close()

    def _about(self) -> dict[str, Any]:
        waiting, parked = self._outbox.counts()
        view = self._agent.view()
        alive = sorted(uuid for uuid, track in view.tracks.items() if track.life in ALIVE)
        running = alive if view.was_read and not (view.deaf or view.stuck) else None
        return {
            **_lately(self._boot, running),
            "started_at": self._started_at,
            "program": __version__,
            "groups": self._groups,
            "deaf": (view.deaf or view.stuck)[:2000],
            "guests": len(alive),
            "waiting": waiting,
            "parked": parked,
        }


def _lately(boot: Mapping[str, Any], running: list[str] | None) -> dict[str, Any]:
    """Return the boot id; after a recent boot also the guests before the boot and now."""
    if time.clock_gettime(time.CLOCK_BOOTTIME) > BOOTED_LATELY_S:
        return {"boot_id": boot["boot_id"]}
    is_known = running is not None and len(running) <= MOST_RUNNING
    return {**boot, **({"running": running} if is_known else {})}


def boot_of(outbox: Outbox, boot_id: str, ran: Sequence[str]) -> Mapping[str, Any]:
    """Return the host's boot id and the guests that ran before this boot.

    `ran`: the guests that ran when an earlier agent process last wrote. The outbox keeps the list
    of the first agent process after the boot.
    """
    known = outbox.note(BOOT_NOTE)
    if known is not None and known["boot_id"] == boot_id:
        return dict(known)
    boot = {"boot_id": boot_id, "ran": list(ran)[:MOST_RUNNING]}
    outbox.put((), {BOOT_NOTE: boot})
    return boot


# Hang detection: the agent handles hang events like events of the hypervisor.


LOG = logging.getLogger(__name__)
#: Number of checks of a vCPU within `stalled_s`.
POLLS = 3


class HangSettings(Protocol):
    """The options of [agent] for hang detection."""

    guests: str
    guests_address: str
    heartbeat_interval_s: float
    heartbeat_max_missed: int
    heartbeat_idle_s: float
    stalled_s: float


class HangPart:
    """Periodic checks for hung guests and stalled vCPUs; DriverError if the driver is unusable."""

    def __init__(self, settings: HangSettings, agent: HostAgent, clock: Clock) -> None:
        self._agent = agent
        self._clock = clock
        self._tasks: list[PeriodicTask] = []
        self._hearts: Heartbeats | None = None
        if settings.heartbeat_interval_s:
            self._hearts = connect_heartbeats(settings.guests, settings.guests_address, clock)
        if self._hearts is not None:
            wanted = hangs.HangSettings(settings.heartbeat_max_missed, settings.heartbeat_idle_s)
            self._hangs = hangs.HangWatch(wanted)
            self._hangs.recall(*self._open_hangs(hangs.HUNG))
            interval_s = settings.heartbeat_interval_s
            self._tasks.append(PeriodicTask("heartbeats", interval_s, self.ask_agents, clock))
        elif settings.heartbeat_interval_s:
            LOG.info("guests of %s have no heartbeat", settings.guests)
        if settings.stalled_s:
            self._vcpus: Vcpus = QemuVcpus()
            self._stalls = hangs.StallWatch(hangs.StallSettings(settings.stalled_s))
            self._stalls.reported, _ = self._open_hangs(hangs.STALLED)
            interval_s = settings.stalled_s / POLLS
            self._tasks.append(PeriodicTask("vcpus", interval_s, self.poll_vcpus, clock))

    def start(self) -> None:
        for task in self._tasks:
            task.start()

    def stop(self) -> None:
        for task in self._tasks:
            task.stop()
        if self._hearts is not None:
            self._hearts.close()

    def ask_agents(self) -> None:
        assert self._hearts is not None
        pulses = self._hearts.pulses()
        at, now = self._clock.now(), self._clock.monotonic()
        for event in self._hangs.check(pulses, self._running(), at, now):
            self._agent.heard(event)

    def poll_vcpus(self) -> None:
        running = self._running()
        vcpus = self._vcpus.read() if running else ()
        at, now = self._clock.now(), self._clock.monotonic()
        for event in self._stalls.check(vcpus, running, at, now):
            self._agent.heard(event)

    def _open_hangs(self, sign: str) -> tuple[dict[str, str], dict[str, str]]:
        """Return guests with an open hang fault, reported and not yet reported (names by uuid).

        The faults come from the previous agent process.
        """
        name = cause(Symptom(HANG, sign))
        tracks = [track for track in self._agent.view().tracks.values() if name in track.faults]
        reported = {track.uuid: track.name for track in tracks if track.faults[name].reported}
        return reported, {track.uuid: track.name for track in tracks if track.uuid not in reported}

    def _running(self) -> Mapping[str, str]:
        """Return the running guests of this agent's hypervisor; the machine may run others too."""
        tracks = self._agent.view().tracks.values()
        return {track.uuid: track.name for track in tracks if track.life == RUNNING}


# Metric sinks of the configuration; only the modules of configured sinks are imported.


def build_sinks(settings: cfg.ConfigOpts, clock: Clock) -> Sequence[Sink]:
    """Build and start the sinks of [metric_sinks]; the default is none."""
    try:
        sinks: list[SinkWorker | Prometheus] = [
            *_pushing(settings, clock),
            *_asked(settings, clock),
        ]
    except HoldfastError as error:
        raise BadSetup(f"[metric_sinks] {error.message}") from error
    for sink in sinks:
        sink.start()
    return sinks


def _pushing(settings: cfg.ConfigOpts, clock: Clock) -> Iterator[SinkWorker]:
    for outlet, fields, interval_s in _outlets(settings):
        export = Export(Fields(fields), Band(settings.dead_band, settings.refresh_s))
        pace = Pace(
            interval_s=interval_s,
            refresh_s=settings.refresh_s,
            alarm_bytes_per_s=settings.bytes_per_s,
            bytes_per_s=settings.bytes_per_s,
            guest_bytes_per_s=settings.guest_bytes_per_s,
        )
        yield SinkWorker(outlet, export, pace, clock)


def _outlets(settings: cfg.ConfigOpts) -> Iterator[tuple[Outlet, Sequence[str], float]]:
    names = Names(settings.prefix, settings.names)
    fields, interval_s = settings.fields, settings.interval_s
    if settings.statsd:
        from holdfast.metrics.sinks.udp import Statsd

        yield Statsd(*address(settings.statsd, 8125), names), fields, interval_s
    if settings.graphite:
        from holdfast.metrics.sinks.udp import Graphite

        yield Graphite(*address(settings.graphite, 2003), names), fields, interval_s
    if settings.ceilometer:
        from holdfast.metrics.sinks.udp import CEILOMETER_FIELDS, CEILOMETER_PORT, Ceilometer

        where = address(settings.ceilometer, CEILOMETER_PORT)
        outlet = Ceilometer(*where, settings.telemetry_secret)
        wanted = settings.ceilometer_fields or CEILOMETER_FIELDS
        yield outlet, wanted, settings.ceilometer_interval_s
    if settings.log:
        from holdfast.metrics.sinks.udp import LogLines

        yield LogLines(), fields, interval_s


def _asked(settings: cfg.ConfigOpts, clock: Clock) -> Iterator["Prometheus"]:
    if settings.prometheus:
        from holdfast.metrics.sinks.prometheus import Prometheus

        where = address(settings.prometheus)
        yield Prometheus(*where, Fields(settings.prometheus_fields), clock)


# Metrics of the host and their consumers: plugins, alarms and sinks.


LIBVIRT = "libvirt"


class MetricSettings(Protocol):
    """The options of [metrics] for the collector and plugins."""

    interval_s: float
    plugins_file: str | None
    plugins_memory_mib: int


class Measuring:
    """Metrics collection of a host; adds the plugin and metrics commands to `admin`."""

    def __init__(
        self,
        host: str,
        measures: Measures,
        settings: MetricSettings,
        admin: Admin,
        clock: Clock,
        *,
        alarms: HostAlarms | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self._measures = measures
        self.events = PluginEvents(host)
        limits = Limits(memory_bytes=settings.plugins_memory_mib * MIB)
        self.runner = PluginRunner(limits, self.events)
        self._plugins = PluginManager(self.runner, settings.plugins_file, clock)
        notify, scheduler = (alarms.notify, alarms.scheduler) if alarms else (None, None)
        open_alarms = alarms.raised if alarms else tuple
        stages = Stages(self.runner, self.events, alarms, notify, sinks)
        collector = Collector(host, measures, clock)
        self.part = MetricsPart(collector, settings.interval_s, clock, stages, scheduler)
        admin.add(self._plugins.commands())
        admin.add(MetricsCommands(lambda: self.part.last, clock, open_alarms, sinks).commands())

    def start(self) -> None:
        self._measures.start()
        self._plugins.start()
        self.part.start()

    def stop(self) -> None:
        self.part.stop()
        self._plugins.stop()
        self._measures.close()


class Losses:
    """Problems of an agent's metrics, and the number of lost alarms, for `status`."""

    def __init__(self, alarms: HostAlarms, measured: Sequence[Measuring]) -> None:
        self._alarms = alarms
        self._measured = measured

    def said(self) -> dict[str, Any]:
        troubles: dict[str, str] = {}
        for metrics in self._measured:
            troubles |= metrics.part.failures()
        return {"troubles": troubles, "alarms_lost": self._alarms.lost}


def measuring(
    conf: cfg.ConfigOpts,
    host: str,
    admin: Admin,
    clock: Clock,
    alarms: HostAlarms | None = None,
    more: Sequence[Sink] = (),
) -> Sequence[Measuring]:
    """Build the metrics collection; empty if [metrics] is disabled or the driver has no metrics.

    `more` are sinks besides the configured ones.
    """
    settings, agent = conf.metrics, conf.agent
    if not settings.enabled:
        return ()
    if agent.guests != LIBVIRT:
        LOG.info("guests of %s are not measured: there are no numbers of them", agent.guests)
        return ()
    from holdfast.drivers.libvirt.metrics import LibvirtMeasures

    interval_s = settings.libvirt_interval_s
    measures = LibvirtMeasures(agent.guests_address, clock, interval_s=interval_s)
    sinks = [*build_sinks(conf.metric_sinks, clock), *more]
    made = Measuring(host, measures, settings, admin, clock, alarms=alarms, sinks=sinks)
    return (made,)


class AgentPart:
    """The agent of a compute host.

    The agent runs beside customers' guests. It has no access to the cloud or the database, and
    imports no module that speaks to them.
    """

    def __init__(self, conf: cfg.ConfigOpts, reports: Reports, clock: Clock | None = None) -> None:
        settings = conf.agent
        clock = clock or SystemClock()
        try:
            filters = FilterFile(settings.filters_file)
            guests = connect_guests(settings.guests, settings.guests_address, clock)
            self._owned = own(settings.outbox)
            self._outbox = Outbox(settings.outbox)
            process_watch = watch_services(settings, self._outbox, clock)
        except HoldfastError as error:
            raise BadSetup(error.message) from error
        tap = Tap()
        host = normalise(settings.host or socket.gethostname())
        self._sender = Sender(
            self._outbox, TappedReports(reports, tap), clock, observer=observer(host)
        )
        self._agent = HostAgent(
            host,
            guests,
            process_watch,
            filters,
            self._outbox,
            settings,
            clock,
            report_stored=self._sender.wake,
            tap=tap,
        )
        about = {
            "pid": os.getpid(),
            "version": __version__,
            "started_at": clock.now().isoformat(),
        }
        self.admin = Admin()
        wake, recent = self._sender.wake, Recent()
        alarming = Alarming(
            *(conf, self._agent, self._outbox, centre(settings), clock),
            report_stored=wake,
            recent=recent,
        )
        self.admin.add(alarming.commands())
        measured = measuring(conf, self._agent.host, self.admin, clock, alarming.alarms, [recent])
        losses = Losses(alarming.alarms, measured).said
        guest_commands = GuestCommands(self._agent, self._outbox, tap, clock, about, losses)
        self.admin.add(guest_commands.commands())
        self._parts: list[Part] = [self._sender, self._agent]
        self._parts += [HangPart(settings, self._agent, clock), alarming, *measured]
        if settings.socket:
            self._parts.append(AdminSocket(settings.socket, self.admin, clock))
        if settings.expected_interval_s:
            self._parts.append(self._second_opinion(settings, guests, clock))

    def _second_opinion(self, settings: cfg.ConfigOpts, guests: Guests, clock: Clock) -> Part:
        agent = self._agent
        second = SecondOpinion(
            agent.host, expected(settings), guests, settings, clock, agent.polled
        )
        task = PeriodicTask("expectation", second.pause_s, second.round, clock)

        def removed() -> None:
            if second.hurry():
                task.wake()

        agent.removed = removed
        return task

    def start(self) -> None:
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        for part in reversed(self._parts):
            part.stop()
        self._outbox.close()
        self._owned.close()


def own(outbox: str) -> IO[bytes]:
    """Lock the outbox for this agent, until the returned file is closed or the process ends.

    Two agents on one outbox would each report, and mark as reported, events of the other.
    """
    path = Path(f"{outbox}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise BadSetup(f"[agent] outbox: {path}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise BadSetup(
            f"[agent] outbox: another agent that runs has {outbox}: stop it, or give this one a"
            " outbox of its own"
        ) from error
    return file


def services(names: Sequence[str]) -> Sequence[Service]:
    return [Service(name, restart=("systemctl", "restart", name)) for name in names]


def watch_services(settings: cfg.ConfigOpts, outbox: Outbox, clock: Clock) -> ProcessWatch:
    """Build the service watch; restarts by the previous agent process count."""

    def keep(note: Mapping[str, Any]) -> None:
        outbox.put((), {SERVICES: note})

    file = ServicesFile(settings.services_file)
    watch = ProcessWatch(LinuxProcesses(), services(settings.services), file, keep)
    watch.recall(outbox.note(SERVICES), clock.monotonic())
    return watch


def reports(conf: cfg.ConfigOpts) -> Reports:
    """Return the client that sends reports to Holdfast with the host token."""
    try:
        client(conf.agent).close()
    except ClientError as error:
        raise BadSetup(f"[agent] {error}") from error
    return HoldfastReports(lambda: client(conf.agent), SystemClock().now)


def expected(settings: cfg.ConfigOpts) -> HoldfastExpected:
    """Return the client that reads the expected guests from Holdfast with the host token."""
    return HoldfastExpected(lambda: client(settings))


def centre(settings: cfg.ConfigOpts) -> HoldfastCentre:
    """Return the client for heartbeats and alarm rules, which uses the host token too."""
    return HoldfastCentre(lambda: client(settings))


def client(settings: cfg.ConfigOpts) -> Client:
    file = settings.token_file
    return Client(
        settings.api_url,
        agent=read_password(file) if file else None,
        timeout_s=settings.api_timeout_s,
        retries=0,
    )
