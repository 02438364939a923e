# SPDX-License-Identifier: Apache-2.0
"""The ladder before every recovery: each rung says yes, or why not. All are asked, so that people
see all reasons at once; the first no decides. Values in, values out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.heal.desk import Settings
from holdfast.model import ladder, mass_failure
from holdfast.model.host import same
from holdfast.model.incident import GUEST, HELD, HOST, PROCESS, Incident, Verdict
from holdfast.ports.cloud import Server
from holdfast.ports.recovery import Situation

#: Of what runs again before anything was done.
LEAVE_IT = "nobody needs to do anything"
#: Words in a server's metadata that mean yes.
YES = frozenset({"true", "yes", "on", "1", "t", "y"})


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
    well: str = ""  # who sees it well again: the host if nobody else said that it died, the guest

    @property
    def now(self) -> datetime:
        return self.situation.now


Guard = Callable[[Incident, View], Verdict]


def judge(incident: Incident, view: View) -> Sequence[Verdict]:
    return [guard(incident, view) for guard in LADDERS[incident.kind]]


def still_down(incident: Incident, view: View) -> Verdict:
    """What was held while a switch was away must not begin when all see again."""
    if view.well:
        said = f"{incident.host} is well again before anything was done: {view.well}"
        return Verdict("still_down", False, said, final=True)
    return Verdict("still_down", True, "most monitors do not say that it is well again")


def runs_again(incident: Incident, view: View) -> Verdict:
    """What was started by hand while nothing was done about it must not be stopped."""
    if view.well:
        return Verdict("still_down", False, f"{view.well}: {LEAVE_IT}", final=True)
    return Verdict("still_down", True, "nobody says that it runs again")


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
    settings, now = view.settings, view.now
    guest = incident.kind == GUEST
    most = settings.guest_budget if guest else settings.host_budget
    window = settings.guest_window_s if guest else settings.host_window_s
    since = now - timedelta(seconds=window)
    times = sum(when > since for when in view.situation.before)
    what = f"server {incident.server_id}" if guest else incident.host
    said = f"{what} was recovered {times} times within {window:g} s"
    if times >= most:
        said += f", {most} are allowed: it keeps dying, somebody has to look"
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
    if incident.status == HELD and server.host and not same(server.host, incident.host):
        said = f"the server is on {server.host} by now"  # moved while nothing was done about it
        return Verdict("wanted", False, said, final=True)
    if server.status in ("PAUSED", "RESCUE", "RESCUED"):
        return Verdict("wanted", False, f"the server is {server.status}", final=True)
    if settings.restart_all or is_ha(server, settings):
        return Verdict("wanted", True, "the server is to be kept running")
    said = f"the server's metadata do not say {settings.ha_key}, and [recovery] restart_all is off"
    return Verdict("wanted", False, said, final=True)


def is_ha(server: Server, settings: Settings) -> bool:
    return str(server.metadata.get(settings.ha_key, "")).strip().lower() in YES


LADDERS: dict[str, Sequence[Guard]] = {
    HOST: (
        still_down,
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
    PROCESS: (paused, silenced, segment, maintenance, inhibited),
}
