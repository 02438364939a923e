# SPDX-License-Identifier: Apache-2.0
"""The ladder before every recovery: each rung says yes, or why not. All are asked, so that people
see all reasons at once; the first no decides. Values in, values out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.heal.desk import Settings
from holdfast.heal.ha_enabled import HaSettings
from holdfast.model import ladder, liveness, mass_failure
from holdfast.model.host import same
from holdfast.model.incident import GUEST, HELD, HOST, PROCESS, Incident, Verdict
from holdfast.model.liveness import Judgement
from holdfast.ports.cloud import Server
from holdfast.ports.recovery import Situation

#: Of what runs again before anything was done.
LEAVE_IT = "nobody needs to do anything"
#: The guard that asks whether what failed shows signs of life.
STILL_DOWN = "still_down"
#: How often the sources are asked about a host that is in doubt, in seconds: what Nova says counts
#: from when it was read.
ASK_AGAIN_S = 2.0
#: How long the extent of an outage is waited for: at most, and after the last report of its domain.
SETTLING_S, SETTLING_ALONE_S = 15.0, 1.0


@dataclass(frozen=True)
class View:
    """What the guards look at."""

    situation: Situation
    settings: Settings
    rule: mass_failure.Rule
    services: int = 1  # how many the cloud knows, and how many of them look up
    services_up: int = 1
    targets: int = 1  # other hosts that could take servers
    evidence: str = ""  # by what the host is, or will be, known to be off; empty: by nothing
    server: Server | None = None  # the guest
    gone: bool = False  # the guest exists no more
    ha_settings: HaSettings | None = None  # whether the guest is to be kept running
    well: str = ""  # who sees the guest run again
    liveness: Judgement | None = None  # of a host or a process: what its reports amount to

    @property
    def now(self) -> datetime:
        return self.situation.now


Guard = Callable[[Incident, View], Verdict]


def judge(incident: Incident, view: View) -> Sequence[Verdict]:
    rebooted = view.liveness is not None and view.liveness.state == liveness.REBOOTED
    return [guard(incident, view) for guard in (IN_PLACE if rebooted else LADDERS[incident.kind])]


def still_down(incident: Incident, view: View) -> Verdict:
    """A host that shows signs of life is left alone until they end or every report is withdrawn."""
    found = view.liveness
    if found is None or found.state in (liveness.STANDS, liveness.REBOOTED):
        said = found.sentence if found is not None else "nobody says that it is well again"
        return Verdict(STILL_DOWN, True, said)
    if found.state == liveness.WITHDRAWN:
        said = f"{incident.host} is well again before anything was done: {found.sentence}"
        return Verdict(STILL_DOWN, False, said, final=True)
    said = f"{incident.host}: {found.sentence}"
    waits = found.state == liveness.WAITS
    again_s = min(found.again_s or ASK_AGAIN_S, ASK_AGAIN_S)
    return Verdict(STILL_DOWN, False, said, again_s=again_s, brief=waits)


def settling(incident: Incident, view: View) -> Verdict:
    """The first host of a rack outage waits until the extent of the outage is known."""
    situation = view.situation
    if situation.domain_alive or not situation.domain_opened:
        said = "every other host of its failure domain has shown life since"
        return Verdict("settling", True, said)
    first, last = situation.domain_opened[0], situation.domain_opened[-1]
    known_at = min(
        first + timedelta(seconds=SETTLING_S), last + timedelta(seconds=SETTLING_ALONE_S)
    )
    wait_s = (known_at - view.now).total_seconds()
    count = len(situation.domain_opened)
    if wait_s > 0:
        said = f"{count} hosts of its failure domain were reported: more may follow"
        return Verdict("settling", False, said, again_s=wait_s, brief=True)
    return Verdict("settling", True, f"{count} hosts of its failure domain were reported")


def runs_again(incident: Incident, view: View) -> Verdict:
    """What was started by hand while nothing was done about it must not be stopped."""
    if view.well:
        return Verdict(STILL_DOWN, False, f"{view.well}: {LEAVE_IT}", final=True)
    return Verdict(STILL_DOWN, True, "nobody says that it runs again")


def paused(incident: Incident, view: View) -> Verdict:
    return ladder.paused(view.situation.pauses)


def silenced(incident: Incident, view: View) -> Verdict:
    return ladder.silenced(view.situation.silences)


def segment(incident: Incident, view: View) -> Verdict:
    member = view.situation.member
    if member is None:
        said = f"{incident.host} is in no segment any more"
        return Verdict("segment", False, said, final=True)
    return ladder.segment(member)


def maintenance(incident: Incident, view: View) -> Verdict:
    member = view.situation.member
    if member is not None and member.on_maintenance:
        ours = bool(incident.details.get("told_at")) or incident.kind == PROCESS
        if ours and incident.details.get("retried_at"):
            said = f"{incident.host} is on maintenance since it failed, and it is tried again"
            return Verdict("maintenance", True, said)
        if incident.kind == HOST and view.situation.lost_compute:
            said = f"{incident.host} is on maintenance only because its nova-compute died"
            return Verdict("maintenance", True, said)
        if incident.kind == GUEST and view.situation.lost_compute:
            said = f"{incident.host} cannot start it before its nova-compute is back"
            return Verdict("maintenance", False, said, again_s=10.0)
        return ladder.maintenance(incident.host, marked=True)
    return ladder.maintenance(incident.host, marked=False)


def inhibited(incident: Incident, view: View) -> Verdict:
    larger = view.situation.larger
    if larger is None:
        return Verdict("inhibited", True, "nothing larger explains it")
    said = f"incident {larger.id} explains it: {larger.cause}"
    return Verdict("inhibited", False, said, final=True)


def observer(incident: Incident, view: View) -> Verdict:
    """If every host looks dead, it is more likely that the cloud cannot see."""
    if view.services >= 2 and view.services_up == 0:
        said = f"the cloud sees none of its {view.services} hosts: can it see at all?"
        return Verdict("observer", False, said)
    return Verdict("observer", True, f"{view.services_up} of {view.services} hosts are seen up")


def mass(incident: Incident, view: View) -> Verdict:
    situation = view.situation
    found = mass_failure.judge(situation.fleet, view.rule).get(situation.domain)
    slow = (mass_failure.SLOW, mass_failure.SLOWER)
    if found is not None and found.what in slow and not situation.approved:
        return _slowly(found, view)
    return ladder.mass(found, situation.domain, situation.approved)


def _slowly(found: mass_failure.Verdict, view: View) -> Verdict:
    situation, settings = view.situation, view.settings
    slow = found.what == mass_failure.SLOW
    every = settings.slow_start_s if slow else settings.slower_start_s
    burst = settings.slow_burst if slow else 1
    wait = bucket(situation.starts, situation.now, every, burst)
    if wait <= 0:
        return Verdict("mass_failure", True, f"{found.sentence}: one at a time, its turn has come")
    said = f"{found.sentence}: one host per {every:g} s"
    return Verdict("mass_failure", False, said, again_s=wait)


def bucket(starts: Sequence[datetime], now: datetime, every_s: float, burst: int) -> float:
    """Seconds until the next may begin: `burst` at once, then one per `every_s`."""
    if every_s <= 0:
        return 0.0
    tokens, last = float(burst), None
    for start in sorted(starts):
        if last is not None:
            tokens = min(float(burst), tokens + (start - last).total_seconds() / every_s)
        tokens, last = max(0.0, tokens - 1), start
    if last is not None:
        tokens = min(float(burst), tokens + (now - last).total_seconds() / every_s)
    return 0.0 if tokens >= 1 - 1e-9 else (1 - tokens) * every_s


def budget(incident: Incident, view: View) -> Verdict:
    """Recoveries are counted, refusals are not. A guest's budget refills by one recovery per
    window / budget."""
    settings, now = view.settings, view.now
    guest = incident.kind == GUEST
    most = settings.guest_budget if guest else settings.host_budget
    window = settings.guest_window_s if guest else settings.host_window_s
    since = now - timedelta(seconds=window)
    times = sum(when > since for when in view.situation.before)
    what = f"server {incident.server_id}" if guest else incident.host
    said = f"{what} was recovered {times} times within {window:g} s"
    wait_s = bucket(view.situation.before, now, window / most, most) if guest and most else 0.0
    if wait_s > 0 or (times >= most and not (guest and most)):
        said += f", {most} are allowed: it keeps dying, somebody has to look"
        if wait_s > 0:
            said += f"; one more recovery is allowed in {wait_s:.0f} s"
        return Verdict("budget", False, said, final=True)
    return Verdict("budget", True, said)


def capacity(incident: Incident, view: View) -> Verdict:
    if view.targets == 0:
        return Verdict("capacity", False, "no other host is up and enabled")
    return Verdict("capacity", True, f"{view.targets} other hosts could take servers")


def evidence(incident: Incident, view: View) -> Verdict:
    if view.evidence:
        return Verdict("evidence", True, view.evidence)
    said = (
        f"nothing proves that {incident.host} is off: configure a fence for it, or, if you know it:"
        f" holdfast incident confirm-off {incident.id} --reason …"
    )
    return Verdict("evidence", False, said)


def wanted(incident: Incident, view: View) -> Verdict:
    """Whether the guest is one that is to be restarted."""
    server, settings = view.server, view.settings
    if view.gone or server is None:
        return Verdict("wanted", False, "the server does not exist any more", final=True)
    moved = bool(server.host) and not same(server.host or "", incident.host)
    if moved and (incident.status == HELD or server.status == "ACTIVE"):
        said = f"the server is on {server.host} by now"  # moved while nothing was done about it
        return Verdict("wanted", False, said, final=True)
    if server.status in ("PAUSED", "RESCUE", "RESCUED"):
        return Verdict("wanted", False, f"the server is {server.status}", final=True)
    ha_setting = (
        view.ha_settings.of(server) if view.ha_settings else HaSettings(settings.ha_key).of(server)
    )
    if ha_setting.enabled is False:
        said = f"the server is not to be kept running: {ha_setting.sentence(settings.ha_key)}"
        return Verdict("wanted", False, said, final=True)
    if settings.restart_all or ha_setting.enabled:
        return Verdict("wanted", True, "the server is to be kept running")
    said = f"the server's metadata do not say {settings.ha_key}, and [recovery] restart_all is off"
    return Verdict("wanted", False, said, final=True)


LADDERS: dict[str, Sequence[Guard]] = {
    HOST: (
        still_down,
        settling,
        paused,
        silenced,
        segment,
        maintenance,
        observer,
        mass,
        budget,
        capacity,
        evidence,
    ),
    GUEST: (runs_again, paused, silenced, segment, maintenance, inhibited, wanted, budget),
    PROCESS: (still_down, paused, silenced, segment, maintenance, inhibited),
}
#: Of a host that rebooted: it is not cut, and nothing leaves it.
IN_PLACE: Sequence[Guard] = (still_down, paused, silenced, segment, maintenance, budget)
