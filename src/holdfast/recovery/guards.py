# SPDX-License-Identifier: Apache-2.0
"""Guards of a recovery: each guard allows the recovery or says why not.

Holdfast evaluates all guards, so that people see all reasons at once; the first denial decides.
The functions `*_verdict` need only database values and also serve the console's preview.
`HaSettings` resolves whether a server is to be kept running ([recovery] ha_key). Apart from
`read`, pure functions without I/O.

    paused_verdict(pauses)    # Verdict("paused", False, "recovery is paused by ann: storm", …)
"""

import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

from holdfast.model.errors import DriverError
from holdfast.model.host import same
from holdfast.model.incident import GUEST, HELD, HOST, PROCESS, STILL_DOWN, Incident, Verdict
from holdfast.model.segment import SegmentHost
from holdfast.ports.cloud import Cloud, Pool, Server
from holdfast.ports.recovery import Situation
from holdfast.recovery import liveness, mass_failure
from holdfast.recovery.liveness import Judgement


class Switch(Protocol):
    """A pause or a maintenance window in force."""

    @property
    def author(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def expires_at(self) -> datetime | None: ...


def paused_verdict(pauses: Sequence[Switch]) -> Verdict:
    if not pauses:
        return Verdict("paused", True, "recovery is not paused")
    return Verdict("paused", False, f"recovery is paused {_by(pauses[0])}", again_s=10.0)


def maintenance_window_verdict(windows: Sequence[Switch]) -> Verdict:
    if not windows:
        return Verdict("maintenance_window", True, "no maintenance window covers it")
    return Verdict("maintenance_window", False, f"maintenance window {_by(windows[0])}", final=True)


def _by(switch: Switch) -> str:
    until = f" until {switch.expires_at:%Y-%m-%d %H:%M} UTC" if switch.expires_at else ""
    return f"by {switch.author}{until}: {switch.reason}"


def segment_verdict(member: SegmentHost) -> Verdict:
    if not member.segment.enabled:
        sentence = f"segment {member.segment.name} is disabled"
        return Verdict("segment", False, sentence, final=True)
    return Verdict("segment", True, f"segment {member.segment.name} is enabled")


def maintenance_verdict(host: str, marked: bool) -> Verdict:
    if marked:
        return Verdict("maintenance", False, f"{host} is on maintenance", final=True)
    return Verdict("maintenance", True, f"{host} is not on maintenance")


def mass_failure_verdict(
    mass_verdict: mass_failure.Verdict | None, domain: str, approved: bool
) -> Verdict:
    """Whether the mass-failure guard allows recovery; `mass` adds the limit of slow recovery."""
    if mass_verdict is None or mass_verdict.mode == mass_failure.GO:
        return Verdict(
            "mass_failure", True, mass_verdict.sentence if mass_verdict else "few hosts are down"
        )
    if approved:
        return Verdict("mass_failure", True, f"{mass_verdict.sentence}; approved by an operator")
    if mass_verdict.mode in (mass_failure.HOLD, mass_failure.STOP):
        where = f" --domain {shlex.quote(domain)}" if domain else ""
        sentence = (
            f"{mass_verdict.sentence}; if it is so: holdfast recovery approve{where} --reason …"
        )
        return Verdict("mass_failure", False, sentence, again_s=10.0)
    return Verdict("mass_failure", True, f"{mass_verdict.sentence}: one host after the other")


def first_denial(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The first verdict against the recovery, or None."""
    return next((verdict for verdict in verdicts if not verdict.passed), None)


LOG = logging.getLogger(__name__)
YES: Final = frozenset({"true", "yes", "on", "1", "t", "y"})
NO: Final = frozenset({"false", "no", "off", "0", "f", "n"})


@dataclass(frozen=True)
class HaSetting:
    """Whether a server is to be kept running: `enabled` is None if no level sets the key.

    `source` names the level that decides.
    """

    enabled: bool | None = None
    source: str = ""

    def sentence(self, key: str) -> str:
        return f"{key} is {self.enabled} on its {self.source}"


@dataclass(frozen=True)
class HaSettings:
    """HA settings by level: server metadata, image properties, flavor extra specs, aggregates.

    The first level that says yes or no decides; a level without the key, or with another value,
    passes the decision on. If no level decides, the caller's option decides. The server object
    already contains its metadata and its flavor's extra specs.
    """

    key: str
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # properties by image id
    pools: Sequence[Pool] = ()

    def of(self, server: Server) -> HaSetting:
        for source, metadata in self._levels(server):
            enabled = _read(metadata, self.key)
            if enabled is not None:
                return HaSetting(enabled, source)
        return HaSetting()

    def _levels(self, server: Server) -> Iterator[tuple[str, Mapping[str, str]]]:
        yield "metadata", server.metadata
        yield "image", self.images.get(server.image_id, {})
        yield "flavor", server.extra_specs
        # if aggregates contradict each other, the aggregate that keeps the server running wins
        ours = [pool for pool in self.pools if any(same(server.host or "", h) for h in pool.hosts)]
        for pool in sorted(ours, key=lambda pool_: _read(pool_.metadata, self.key) is not True):
            yield f"aggregate {pool.name}", pool.metadata


def read(
    cloud: Cloud, servers: Iterable[Server], key: str, pools: Sequence[Pool] | None = None
) -> HaSettings:
    """Read images and aggregates of the servers whose own metadata do not decide.

    An image that cannot be read counts as without the key: a Glance outage must not leave a
    server dead.
    """
    undecided = [server for server in servers if _read(server.metadata, key) is None]
    images: Mapping[str, Mapping[str, str]] = {}
    if ids := {server.image_id for server in undecided if server.image_id}:
        try:
            images = cloud.servers.image_properties(sorted(ids))
        except DriverError as error:
            LOG.warning("%s of %d images cannot be read: %s", key, len(ids), error)
    ha_settings = HaSettings(key, images)
    if all(ha_settings.of(server).enabled is not None for server in undecided):
        return ha_settings
    return HaSettings(key, images, cloud.pools.list() if pools is None else pools)


def _read(metadata: Mapping[str, str], key: str) -> bool | None:
    setting = next((value for name, value in metadata.items() if name.lower() == key.lower()), "")
    text = str(setting).strip().lower()
    return text in YES if text in YES | NO else None


#: Ends the sentence about a guest that runs again before Holdfast acted.
LEAVE_IT = "no action is needed"
#: Seconds between two checks of a host in doubt; Nova's answer counts from its read.
ASK_AGAIN_S = 2.0
#: Seconds to wait for the extent of an outage after the domain's last report.
SETTLING_ALONE_S = 1.0


class Settings(Protocol):
    """The options of [recovery], read again at every access."""

    dry_run: bool
    give_up_s: float
    duplicate_interval_s: float
    evacuate_all: bool
    restart_all: bool
    ha_key: str
    priority_key: str
    group_key: str
    leave_names: Sequence[str]
    ignore_error_state: bool
    parallel_moves: int
    parallel_per_target: int
    move_timeout_s: float
    move_give_up_s: float
    move_pause_s: float
    migrate_away_rest_s: float
    stop_timeout_s: float
    start_timeout_s: float
    repair_wait_s: float
    host_votes: int
    heartbeat_network: str
    nova_report_interval_s: float
    report_max_age_s: float
    guest_max_recoveries: int
    guest_window_s: float
    guest_restarts_in_place: int
    host_max_recoveries: int
    host_window_s: float
    throttle_interval_s: float
    throttle_burst: int
    heavy_throttle_interval_s: float
    watchdog_s: float
    fence_escalate_after: int
    disable_reason: str
    bring_back: bool
    bring_back_after_s: float
    move_back: bool
    power_on_after: Mapping[str, str]
    add_spare_to_aggregates: bool
    steps_before: Mapping[str, str]
    steps_after: Mapping[str, str]
    steps_instead: Mapping[str, str]


@dataclass(frozen=True)
class View:
    """Input of the guards."""

    situation: Situation
    settings: Settings
    limits: mass_failure.MassFailureLimits
    services: int = 1  # compute services in Nova, and how many are up
    services_up: int = 1
    targets: int = 1  # number of other hosts that could take servers
    evidence: str = ""  # proof, present or expected, that the host is off; or empty
    server: Server | None = None  # the guest
    gone: bool = False  # the guest does not exist any more
    ha_settings: HaSettings | None = None  # whether the guest is to be kept running
    well: str = ""  # the source which sees the guest run again
    liveness: Judgement | None = None  # host or process: the judgement of its reports

    @property
    def now(self) -> datetime:
        return self.situation.now


Guard = Callable[[Incident, View], Verdict]


def judge(incident: Incident, view: View) -> Sequence[Verdict]:
    rebooted = view.liveness is not None and view.liveness.state == liveness.REBOOTED
    return [guard(incident, view) for guard in (IN_PLACE if rebooted else LADDERS[incident.kind])]


def still_down(incident: Incident, view: View) -> Verdict:
    """Deny while the host shows signs of life, until their end or the last withdrawal."""
    judgement = view.liveness
    if judgement is None or judgement.state in (liveness.STANDS, liveness.REBOOTED):
        sentence = (
            judgement.sentence if judgement is not None else "no source reports it healthy again"
        )
        return Verdict(STILL_DOWN, True, sentence)
    if judgement.state == liveness.WITHDRAWN:
        sentence = f"{incident.host} is well again before anything was done: {judgement.sentence}"
        return Verdict(STILL_DOWN, False, sentence, final=True)
    sentence = f"{incident.host}: {judgement.sentence}"
    waits = judgement.state == liveness.WAITS
    again_s = min(judgement.again_s or ASK_AGAIN_S, ASK_AGAIN_S)
    return Verdict(STILL_DOWN, False, sentence, again_s=again_s, brief=waits)


def settling(incident: Incident, view: View) -> Verdict:
    """Let the first host of a rack outage wait until the extent of the outage is known."""
    situation = view.situation
    if situation.domain_alive or not situation.domain_opened:
        sentence = "every other host of its failure domain has shown life since"
        return Verdict("settling", True, sentence)
    first, last = situation.domain_opened[0], situation.domain_opened[-1]
    known_at = min(
        first + timedelta(seconds=liveness.SETTLING_S), last + timedelta(seconds=SETTLING_ALONE_S)
    )
    wait_s = (known_at - view.now).total_seconds()
    count = len(situation.domain_opened)
    reported = f"{count} host{' ' if count == 1 else 's '}of its failure domain "
    reported += "was" if count == 1 else "were"
    if wait_s > 0:
        sentence = f"{reported} reported: more may follow"
        return Verdict("settling", False, sentence, again_s=wait_s, brief=True)
    return Verdict("settling", True, f"{reported} reported")


def runs_again(incident: Incident, view: View) -> Verdict:
    """Deny if the guest runs again: a guest started by hand meanwhile must not be stopped."""
    if view.well:
        return Verdict(STILL_DOWN, False, f"{view.well}: {LEAVE_IT}", final=True)
    return Verdict(STILL_DOWN, True, "no source reports that it runs again")


def paused(incident: Incident, view: View) -> Verdict:
    return paused_verdict(view.situation.pauses)


def maintenance_window(incident: Incident, view: View) -> Verdict:
    return maintenance_window_verdict(view.situation.maintenance_windows)


def segment(incident: Incident, view: View) -> Verdict:
    member = view.situation.member
    if member is None:
        sentence = f"{incident.host} is in no segment any more"
        return Verdict("segment", False, sentence, final=True)
    return segment_verdict(member)


def maintenance(incident: Incident, view: View) -> Verdict:
    member = view.situation.member
    if member is not None and member.on_maintenance:
        ours = bool(incident.host_progress.forced_down_at) or incident.kind == PROCESS
        if ours and incident.progress.retried_at:
            sentence = f"{incident.host} is on maintenance since it failed, and it is tried again"
            return Verdict("maintenance", True, sentence)
        if incident.kind == HOST and view.situation.lost_compute:
            sentence = f"{incident.host} is on maintenance only because its nova-compute died"
            return Verdict("maintenance", True, sentence)
        larger = view.situation.larger  # its servers start in place, or leave
        if incident.kind == GUEST and (view.situation.lost_compute or larger is not None):
            sentence = f"{incident.host} cannot start it before its nova-compute is back"
            if larger is not None:
                sentence = f"the recovery of {incident.host} comes first: incident {larger.id}"
            return Verdict("maintenance", False, sentence, again_s=10.0)
        return maintenance_verdict(incident.host, marked=True)
    return maintenance_verdict(incident.host, marked=False)


def inhibited(incident: Incident, view: View) -> Verdict:
    """Deny if the recovery of the host explains the failure; wait until it begins or ends."""
    larger = view.situation.larger
    if larger is None or larger.is_contradicted:
        return Verdict("inhibited", True, "nothing larger explains it")
    if larger.takes_guests:
        sentence = f"incident {larger.id} explains it: {larger.cause}"
        return Verdict("inhibited", False, sentence, final=True)
    sentence = f"incident {larger.id} may explain it: {larger.cause}"
    return Verdict("inhibited", False, sentence, again_s=ASK_AGAIN_S, brief=True)


def observer(incident: Incident, view: View) -> Verdict:
    """Deny if every host looks dead: more likely the cloud itself cannot see any host."""
    if view.services >= 2 and view.services_up == 0:
        sentence = f"the cloud sees none of its {view.services} hosts: can it see at all?"
        return Verdict("observer", False, sentence)
    return Verdict("observer", True, f"{view.services_up} of {view.services} hosts are seen up")


def mass(incident: Incident, view: View) -> Verdict:
    situation = view.situation
    verdict = mass_failure.judge(situation.fleet, view.limits).get(situation.domain)
    slow = (mass_failure.SLOW, mass_failure.SLOWER)
    if verdict is not None and verdict.mode in slow and not situation.approved:
        return _slowly(verdict, view)
    return mass_failure_verdict(verdict, situation.domain, situation.approved)


def _slowly(verdict: mass_failure.Verdict, view: View) -> Verdict:
    situation, settings = view.situation, view.settings
    slow = verdict.mode == mass_failure.SLOW
    every = settings.throttle_interval_s if slow else settings.heavy_throttle_interval_s
    burst = settings.throttle_burst if slow else 1
    wait = bucket(situation.starts, situation.now, every, burst)
    if wait <= 0:
        return Verdict(
            "mass_failure", True, f"{verdict.sentence}: one at a time, its turn has come"
        )
    sentence = f"{verdict.sentence}: one host per {every:g} s"
    return Verdict("mass_failure", False, sentence, again_s=wait)


def bucket(starts: Sequence[datetime], now: datetime, interval_s: float, burst: int) -> float:
    """Seconds until the next start is allowed: `burst` at once, then a start per `interval_s`."""
    if interval_s <= 0:
        return 0.0
    tokens, last = float(burst), None
    for start in sorted(starts):
        if last is not None:
            tokens = min(float(burst), tokens + (start - last).total_seconds() / interval_s)
        tokens, last = max(0.0, tokens - 1), start
    if last is not None:
        tokens = min(float(burst), tokens + (now - last).total_seconds() / interval_s)
    return 0.0 if tokens >= 1 - 1e-9 else (1 - tokens) * interval_s


def budget(incident: Incident, view: View) -> Verdict:
    """Deny after too many recoveries of the same host or guest; refused recoveries do not count.

    A guest's budget refills by one recovery per window / budget seconds.
    """
    settings, now = view.settings, view.now
    guest = incident.kind == GUEST
    most = settings.guest_max_recoveries if guest else settings.host_max_recoveries
    window = settings.guest_window_s if guest else settings.host_window_s
    since = now - timedelta(seconds=window)
    times = sum(when > since for when in view.situation.before)
    subject = f"server {incident.server_id}" if guest else incident.host
    sentence = f"{subject} was recovered {times} times within {window:g} s"
    wait_s = bucket(view.situation.before, now, window / most, most) if guest and most else 0.0
    if wait_s > 0 or (times >= most and not (guest and most)):
        sentence += f", {most} are allowed: it keeps dying, an operator must look"
        if wait_s > 0:
            sentence += f"; one more recovery is allowed in {wait_s:.0f} s"
        return Verdict("budget", False, sentence, final=True)
    return Verdict("budget", True, sentence)


def capacity(incident: Incident, view: View) -> Verdict:
    if view.targets == 0:
        return Verdict("capacity", False, "no other host is up and enabled")
    return Verdict("capacity", True, f"{view.targets} other hosts could take servers")


def evidence(incident: Incident, view: View) -> Verdict:
    if view.evidence:
        return Verdict("evidence", True, view.evidence)
    sentence = (
        f"nothing proves that {incident.host} is off: configure a fence for it, or, if you know it:"
        f" holdfast incident confirm-off {incident.id} --reason …"
    )
    return Verdict("evidence", False, sentence)


def wanted(incident: Incident, view: View) -> Verdict:
    """Whether the guest still exists on this host and is to be restarted."""
    server, settings = view.server, view.settings
    if view.gone or server is None:
        return Verdict("wanted", False, "the server does not exist any more", final=True)
    moved = bool(server.host) and not same(server.host or "", incident.host)
    if moved and (incident.status == HELD or server.status == "ACTIVE"):
        sentence = f"the server is on {server.host} by now"  # moved before Holdfast acted
        return Verdict("wanted", False, sentence, final=True)
    if server.status in ("PAUSED", "RESCUE", "RESCUED"):
        return Verdict("wanted", False, f"the server is {server.status}", final=True)
    ha_setting = (
        view.ha_settings.of(server) if view.ha_settings else HaSettings(settings.ha_key).of(server)
    )
    if ha_setting.enabled is False:
        sentence = f"the server is not to be kept running: {ha_setting.sentence(settings.ha_key)}"
        return Verdict("wanted", False, sentence, final=True)
    if settings.restart_all or ha_setting.enabled:
        return Verdict("wanted", True, "the server is to be kept running")
    sentence = (
        f"the server's metadata do not say {settings.ha_key}, and [recovery] restart_all is off"
    )
    return Verdict("wanted", False, sentence, final=True)


LADDERS: dict[str, Sequence[Guard]] = {
    HOST: (
        still_down,
        settling,
        paused,
        maintenance_window,
        segment,
        maintenance,
        observer,
        mass,
        budget,
        capacity,
        evidence,
    ),
    GUEST: (
        runs_again,
        paused,
        maintenance_window,
        segment,
        maintenance,
        inhibited,
        wanted,
        budget,
    ),
    PROCESS: (still_down, paused, maintenance_window, segment, maintenance, inhibited),
}
#: Guards for a host that rebooted: it is not fenced, and no server leaves it.
IN_PLACE: Sequence[Guard] = (still_down, paused, maintenance_window, segment, maintenance, budget)
