# SPDX-License-Identifier: Apache-2.0
"""Proof that a host is off, before anything of it starts elsewhere.

What counts: our own fence read back as off; an operator's word; a watchdog's time that has passed;
and, only where a segment says so, a monitor's word. A fence that fails or lies stops the recovery:
it is asked again with pauses, and people are called.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.heal.desk import Desk, IncidentWork
from holdfast.model.errors import DriverError, NotFound
from holdfast.model.incident import Incident
from holdfast.model.segment import SegmentHost
from holdfast.ports.fence import OFF
from holdfast.work.guarded import MARGIN_S
from holdfast.work.kind import NotYet, Run

LOG = logging.getLogger(__name__)

#: Kinds of evidence.
FENCED, SAID, TRUSTED, WATCHDOG, ACCEPTED = "fenced", "said", "trusted", "watchdog", "accepted"
#: A device that was asked is read again so soon; asked again only so much later.
LOOK_S, RARELY_S, ASK_AGAIN_S = 0.3, 2.0, 10.0


def given(
    incident: Incident,
    member: SegmentHost | None,
    watchdog_s: float,
    now: datetime,
    *,
    can_fence: bool,
) -> Mapping[str, str] | None:
    """Evidence that is there without our doing anything. A monitor's word is none where a fence
    could give better."""
    details = incident.details
    if said := details.get("confirmed_off"):
        sentence = f"{said['author']} says that {incident.host} is off: {said['reason']}"
        return {"kind": SAID, "sentence": sentence}
    if details.get("retried_at"):  # what was heard then is old: it may have come back since
        return None
    trusts = member is not None and member.segment.trust_host_status
    if trusts and not can_fence and details.get("payload", {}).get("host_status") == "NORMAL":
        sentence = f"a monitor says that {incident.host} is off, and its segment trusts monitors"
        return {"kind": TRUSTED, "sentence": sentence}
    if watchdog_s and now >= safe_at(incident, watchdog_s):
        sentence = f"the watchdog of {incident.host} has reset it: {watchdog_s:g} s have passed"
        return {"kind": WATCHDOG, "sentence": sentence}
    return None


def safe_at(incident: Incident, watchdog_s: float) -> datetime:
    """When a watchdog is sure to have done its work: counted from when we heard of it, for the
    clock of who reported is not ours."""
    return incident.opened_at + timedelta(seconds=watchdog_s)


def foreseen(desk: Desk, incident: Incident, member: SegmentHost | None, now: datetime) -> str:
    """By what it is, or will be, known that the host is off; empty: by nothing."""
    settings = desk.settings
    how = desk.fence.how(incident.host)
    known = given(incident, member, settings.watchdog_s, now, can_fence=how is not None)
    if known is not None:
        return known["sentence"]
    if how is not None:
        return f"{incident.host} can be fenced by {how}"
    if settings.watchdog_s and not incident.details.get("retried_at"):
        return f"the watchdog of {incident.host} resets it within {settings.watchdog_s:g} s"
    return ""


class Fencing:
    """The step that sees to it that a host is off."""

    def __init__(self, desk: Desk, work: IncidentWork) -> None:
        self._desk = desk
        self._work = work

    def __call__(self, run: Run) -> str:
        incident = self._work.incident(run)
        if not incident.is_open:
            return "over"
        if told := incident.details.get("evidence"):
            return str(told["sentence"])
        desk, now = self._desk, self._desk.incidents.now()
        member = desk.incidents.member(incident.host)
        can_fence = desk.fence.how(incident.host) is not None
        known = given(incident, member, desk.settings.watchdog_s, now, can_fence=can_fence)
        evidence = known or self._fenced(run)
        stamped: dict[str, Any] = {**evidence, "at": now.isoformat()}
        self._work.note(run, evidence["sentence"], evidence=stamped)
        return evidence["sentence"]

    def _fenced(self, run: Run) -> Mapping[str, str]:
        """NotYet until the device reads off."""
        incident, desk = self._work.incident(run), self._desk
        host = incident.host
        try:
            if desk.fence.accepts_risk(host):
                said = f"nobody fences {host}, and that was accepted: it may run twice"
                LOG.warning("incident %s: %s", incident.id, said)
                return {"kind": ACCEPTED, "sentence": said}
            if self._power(run, host) != OFF:
                self._ask(run, incident, host)
                if self._power(run, host) != OFF:
                    raise NotYet(
                        f"{host} was asked to switch off and is not off yet", self._pause(run)
                    )
        except NotFound as none:
            if desk.settings.watchdog_s and not incident.details.get("retried_at"):
                raise NotYet(f"waiting for the watchdog of {host}", 1.0) from none
            raise NotYet(f"nothing can fence {host}: {none.message}", 5.0) from none
        except DriverError as error:
            self._failed(run, incident, error.message)
            raise
        return {"kind": FENCED, "sentence": f"{host} was fenced: its power reads off"}

    def _ask(self, run: Run, incident: Incident, host: str) -> None:
        """Switch it off; again only if it still reads on after a while."""
        now = self._desk.incidents.now()
        last = incident.details.get("fence_asked_at")
        asked = int(incident.details.get("fence_asked", 0))
        if last and now < datetime.fromisoformat(last) + timedelta(seconds=ASK_AGAIN_S):
            return
        if asked:
            self._failed(run, incident, f"{host} was asked {asked} times and reads on")
        self._work.note(run, None, fence_asked_at=now.isoformat(), fence_asked=asked + 1)
        run.hold(self._desk.fence.call_timeout_s + MARGIN_S)
        self._desk.fence.off(host)

    def _pause(self, run: Run) -> float:
        """A device that obeys does so within seconds; one that does not is looked at rarely."""
        asked = self._work.incident(run).details.get("fence_asked", 0)
        return LOOK_S if asked <= 1 else RARELY_S

    def _power(self, run: Run, host: str) -> str:
        run.hold(self._desk.fence.call_timeout_s + MARGIN_S)
        return self._desk.fence.power(host)

    def _failed(self, run: Run, incident: Incident, why: str) -> None:
        failures = int(incident.details.get("fence_failures", 0)) + 1
        most = self._desk.settings.fence_escalate_after
        said = f"fencing {incident.host} failed {failures} times: {why}"
        if failures >= most:
            said += "; people are needed: switch it off by hand, then"
            said += f" holdfast incident confirm-off {incident.id} --reason …"
            LOG.error("incident %s: %s", incident.id, said)
        if failures != most:
            self._work.note(run, said, fence_failures=failures)
            return
        now = self._desk.incidents.now()
        told = self._desk.announce("incident.escalated", replace(incident, sentence=said), now)
        self._work.note(run, said, told, fence_failures=failures, escalated_at=now.isoformat())


class StillOff:
    """Whether a host that was fenced is off still: read before each server leaves it, for a host
    that was switched on again may run its servers."""

    def __init__(self, desk: Desk, fresh_s: float = 2.0) -> None:
        self._desk = desk
        self._fresh = timedelta(seconds=fresh_s)
        self._read: dict[str, datetime] = {}

    def check(self, run: Run, incident: Incident) -> None:
        """NotYet while it is not off; it is asked to be so again."""
        if (incident.details.get("evidence") or {}).get("kind") != FENCED:
            return
        host, now = incident.host, self._desk.incidents.now()
        read = self._read.get(host)
        if read is not None and now - read < self._fresh:
            return
        fence = self._desk.fence
        run.hold(fence.call_timeout_s + MARGIN_S)
        try:
            power = fence.power(host)
        except (DriverError, NotFound) as error:
            # It was read as off; that nobody can read it now does not switch it on.
            LOG.warning("incident %s: %s", incident.id, error.message)
            power = OFF
        if power == OFF:
            self._read[host] = now
            return
        self._read.pop(host, None)
        run.hold(fence.call_timeout_s + MARGIN_S)
        fence.off(host)
        raise NotYet(f"{host} was switched on again before its servers had left: fenced anew", 1.0)
