# SPDX-License-Identifier: Apache-2.0
"""Proof that a host is off, before any of its servers starts elsewhere.

Accepted proof: the power read back as off after Holdfast fenced the host; an operator's
confirmation; the elapsed time of a watchdog; and, only if the segment allows it, the word of a
monitor. A fence that fails or reports wrongly stops the recovery: Holdfast retries it with
pauses and calls people.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.jobs.job import MARGIN_S, NotYet, Run
from holdfast.model.errors import DriverError, NotFound
from holdfast.model.incident import (
    DESPITE_POWER_ON,
    Incident,
    fence_asked,
    fence_failed,
    fence_refused,
    fenced_at,
    last_refusal,
)
from holdfast.model.incident_progress import (
    ACCEPTED,
    FENCED,
    POWER_OFF,
    READ_OFF,
    SAID,
    TRUSTED,
    WATCHDOG,
    HostProgress,
    OffEvidence,
)
from holdfast.model.segment import SegmentHost
from holdfast.ports.fence import OFF, ON, UNKNOWN
from holdfast.recovery import host_liveness, host_return
from holdfast.recovery.context import OVER, IncidentWork, RecoveryContext

LOG = logging.getLogger(__name__)

#: Seconds between two power reads after a request, and between two power-off requests.
LOOK_S, RARELY_S, ASK_AGAIN_S = 0.3, 2.0, 10.0


def existing_evidence(
    context: RecoveryContext, incident: Incident, member: SegmentHost | None, now: datetime
) -> OffEvidence | None:
    """Evidence that exists without an action of Holdfast, or None.

    The word of a monitor does not count if a fence could give better evidence, nor if the monitor
    has withdrawn the report or signs of life contradict it.
    """
    progress, watchdog_s = incident.host_progress, context.settings.watchdog_s
    if confirmed_off := progress.confirmed_off:
        though = DESPITE_POWER_ON if confirmed_off.reads_on else ""
        author, why = confirmed_off.author, confirmed_off.reason
        sentence = f"{author} says that {incident.host} is off{though}: {why}"
        return OffEvidence(SAID, sentence, now)
    if progress.retried_at:  # earlier reports are old: the host may have come back since
        return None
    trusts = member is not None and member.segment.trust_host_status
    can_fence = context.fence.how(incident.host) is not None
    if trusts and not can_fence and host_liveness.is_reported_off(context, incident, now):
        sentence = f"a monitor says that {incident.host} is off, and its segment trusts monitors"
        return OffEvidence(TRUSTED, sentence, now)
    last_sign = last_sign_of_life(context, incident)
    if watchdog_s and now >= safe_at(incident, watchdog_s, last_sign):
        sentence = f"the watchdog of {incident.host} has reset it: {watchdog_s:g} s have passed"
        return OffEvidence(WATCHDOG, sentence, now)
    return None


def safe_at(incident: Incident, watchdog_s: float, last_sign: datetime | None = None) -> datetime:
    """The time at which the watchdog has certainly reset the host.

    The time counts from when Holdfast opened the incident, because the reporter's clock may
    differ. A sign of life since then starts the time anew, whatever network carried the sign:
    a host that speaks feeds its watchdog.
    """
    since = incident.opened_at if last_sign is None else max(incident.opened_at, last_sign)
    return since + timedelta(seconds=watchdog_s)


def last_sign_of_life(context: RecoveryContext, incident: Incident) -> datetime | None:
    """When Holdfast last received a heartbeat of the host or saw a new report to Nova.

    The first read of Nova counts too: the row may have changed just before.
    """
    beat, nova = context.incidents.agent(incident.host), incident.host_progress.nova
    read = (nova.advanced_at or nova.first_at) if nova else None
    received = (beat.seen_at if beat else None, read)
    return max((at for at in received if at is not None), default=None)


def foreseen(
    context: RecoveryContext, incident: Incident, member: SegmentHost | None, now: datetime
) -> str:
    """Describe the present or expected evidence for power off; empty if there is none."""
    settings = context.settings
    how = context.fence.how(incident.host)
    off_evidence = existing_evidence(context, incident, member, now)
    if off_evidence is not None:
        return off_evidence.sentence
    if how is not None:
        return f"{incident.host} can be fenced by {how}"
    if settings.watchdog_s and not incident.progress.retried_at:
        return f"the watchdog of {incident.host} resets it within {settings.watchdog_s:g} s"
    return ""


class Fencing:
    """Recovery step which makes sure that a host is off.

    Holdfast calls `still_failed` immediately before it cuts the power, before it accepts any
    evidence other than a power read as off or an operator's word, and while it waits for
    evidence. `still_failed` raises NotYet if the host is no longer known to have failed.
    """

    def __init__(
        self,
        context: RecoveryContext,
        work: IncidentWork[HostProgress],
        still_failed: Callable[[Run], None] = lambda _run: None,
    ) -> None:
        self._context = context
        self._work = work
        self._still_failed = still_failed

    def __call__(self, run: Run) -> str:
        incident = self._work.incident(run)
        if not incident.is_open:
            return OVER
        if off_evidence := incident.host_progress.evidence:
            return off_evidence.sentence
        if host_return.resume_in_place(self._work, run):
            return f"{incident.host} is back: it is not fenced"
        evidence = self._evidence(run)
        if evidence.kind not in (SAID, *READ_OFF):
            self._still_failed(run)
            evidence = self._evidence(run)  # signs of life were read again
        self._work.note(
            run, evidence.sentence, lambda progress: replace(progress, evidence=evidence)
        )
        return evidence.sentence

    def _evidence(self, run: Run) -> OffEvidence:
        """The evidence that exists or that fencing gives; NotYet if there is none yet."""
        context, incident = self._context, self._work.incident(run)
        now, member = context.incidents.now(), context.incidents.member(incident.host)
        present = existing_evidence(context, incident, member, now)
        if present is not None and present.kind == SAID and self._is_contradicted(run, incident):
            present = None
        return present or self._fenced(run, now)

    def _is_contradicted(self, run: Run, incident: Incident) -> bool:
        """Whether the power reads on although an operator confirmed the host as off.

        The API may have been unable to read the power at the confirmation. A confirmation with
        `despite_power_on` is deliberate and stands.
        """
        host, confirmation = incident.host, incident.host_progress.confirmed_off
        if (
            confirmation is None
            or confirmation.despite_power_on
            or self._context.fence.how(host) is None
        ):
            return False
        try:
            if self._power(run, host) != ON:
                return False
        except (DriverError, NotFound):
            return False
        self._work.note(
            run, f"{confirmation.author} says that {host} is off, and its fence reads on"
        )
        return True

    def _fenced(self, run: Run, now: datetime) -> OffEvidence:
        """Fence the host and return the evidence; NotYet until the device reads off."""
        incident, context = self._work.incident(run), self._context
        host = incident.host
        try:
            if context.fence.accepts_risk(host):
                sentence = (
                    f"{host} has no fence, and the operator accepted that its servers may run twice"
                )
                LOG.warning("incident %s: %s", incident.id, sentence)
                return OffEvidence(ACCEPTED, sentence, now)
            if (power := self._power(run, host)) != OFF:
                self._request_off(run, incident, host, power)
                if self._power(run, host) != OFF:
                    raise NotYet(
                        f"{host} was asked to switch off and is not off yet", self._pause(run)
                    )
        except NotFound as none:
            self._still_failed(run)
            if context.settings.watchdog_s and not incident.progress.retried_at:
                raise NotYet(f"waiting for the watchdog of {host}", 1.0) from none
            raise NotYet(f"nothing can fence {host}: {none.message}", 5.0) from none
        except DriverError as error:
            self._failed(run, incident, error.message)
            self._still_failed(run)
            raise
        return _read_off(self._work.incident(run), now)

    def _request_off(self, run: Run, incident: Incident, host: str, power: str) -> None:
        """Request power off; repeat the request only after ASK_AGAIN_S seconds without effect."""
        now = self._context.incidents.now()
        last, requests_sent = (
            incident.host_progress.fence_asked_at,
            incident.host_progress.fence_asked,
        )
        if last and now < last + timedelta(seconds=ASK_AGAIN_S):
            return
        self._still_failed(run)
        if requests_sent:
            self._failed(run, incident, f"{host} was asked {requests_sent} times and reads {power}")
        requests = fence_asked(self._work.incident(run).host_progress.fence_requests, now)
        self._work.note(
            run,
            None,
            lambda progress: replace(
                progress, fence_asked_at=now, fence_asked=requests_sent + 1, fence_requests=requests
            ),
        )
        run.hold(self._context.fence.call_timeout_s + MARGIN_S)
        try:
            self._context.fence.off(host)
        except DriverError as error:
            refused = fence_refused(requests, error.message)
            self._work.note(run, None, lambda progress: replace(progress, fence_requests=refused))
            raise

    def _pause(self, run: Run) -> float:
        """Seconds until the next power read.

        A device that works switches off within seconds; after a second request it is read
        rarely.
        """
        requests_sent = self._work.incident(run).host_progress.fence_asked
        return LOOK_S if requests_sent <= 1 else RARELY_S

    def _power(self, run: Run, host: str) -> str:
        run.hold(self._context.fence.call_timeout_s + MARGIN_S)
        return self._context.fence.power(host)

    def _failed(self, run: Run, incident: Incident, why: str) -> None:
        now, progress = self._context.incidents.now(), self._work.incident(run).host_progress
        requests = fence_failed(progress.fence_requests, now, why)
        failures = incident.host_progress.fence_failures + 1
        most = self._context.settings.fence_escalate_after
        sentence = f"fencing {incident.host} failed {failures} times: {why}"
        if failures >= most:
            sentence += "; people are needed: switch it off by hand, then"
            sentence += f" holdfast incident confirm-off {incident.id} --reason …"
            LOG.error("incident %s: %s", incident.id, sentence)

        def failed(progress: HostProgress) -> HostProgress:
            return replace(progress, fence_failures=failures, fence_requests=requests)

        if failures != most:
            self._work.note(run, sentence, failed)
            return
        operations = self._context.announce(
            "incident.escalated", replace(incident, sentence=sentence), now
        )
        self._work.note(
            run, sentence, lambda progress: replace(failed(progress), escalated_at=now), operations
        )


def _read_off(incident: Incident, now: datetime) -> OffEvidence:
    """Evidence for a host whose power reads off.

    The host counts as fenced only if its device accepted a power-off request of Holdfast. After
    an error the cause of the power-off is unknown.
    """
    host, fenced = incident.host, fenced_at(incident.host_progress)
    if fenced is None and (answer := last_refusal(incident.host_progress)):
        sentence = (
            f"the power of {host} reads off; asked to switch it off, its fence answered: {answer}"
        )
        return OffEvidence(POWER_OFF, sentence, now)
    if fenced is None:
        sentence = f"{host} was not fenced: its power reads off already"
        return OffEvidence(POWER_OFF, sentence, now)
    at, is_now = fenced
    when = "" if is_now else f" at {at[:19].replace('T', ' ')} UTC, in an earlier attempt"
    return OffEvidence(FENCED, f"{host} was fenced{when}: its power reads off", now)


class StillOff:
    """Checks before each evacuation whether a fenced host is still off.

    A host that was switched on again may run its servers.
    """

    def __init__(self, context: RecoveryContext, fresh_s: float = 2.0) -> None:
        self._context = context
        self._fresh = timedelta(seconds=fresh_s)
        self._read: dict[str, datetime] = {}

    def check(self, run: Run, incident: Incident) -> None:
        """Raise NotYet if the power reads on: fence the host again, or start servers in place."""
        evidence = incident.host_progress.evidence
        if evidence is None or evidence.kind not in READ_OFF:
            return
        host, now = incident.host, self._context.incidents.now()
        read = self._read.get(host)
        if read is not None and now - read < self._fresh:
            return
        fence = self._context.fence
        run.hold(fence.call_timeout_s + MARGIN_S)
        try:
            power = fence.power(host)
        except (DriverError, NotFound) as error:
            LOG.warning("incident %s: %s", incident.id, error.message)
            power = UNKNOWN
        if power != ON:  # it read off before; a failed read does not mean that it is on
            self._read[host] = now
            return
        self._read.pop(host, None)
        host_return.keep_or_fence(self._context, run, incident)
