# SPDX-License-Identifier: Apache-2.0
"""Read what contradicts or confirms that a host failed: who reported it, its agent's heartbeats,
Nova's report of its service, the monitors' votes, and, in doubt, its power.

Asked by the guards, by the intake of old reports, and once more before the power is cut.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from holdfast.hostmonitor.matrix import DOWN
from holdfast.jobs.job import MARGIN_S, Run
from holdfast.model.errors import DriverError, NotFound
from holdfast.model.host import same
from holdfast.model.incident import Incident
from holdfast.model.votes import Ballot, Count, combined, count, in_force
from holdfast.ports.cloud import Service
from holdfast.ports.fence import OFF
from holdfast.recovery import liveness
from holdfast.recovery.context import RecoveryContext
from holdfast.recovery.liveness import FailureReport, Judgement, LifeSign

LOG = logging.getLogger(__name__)
#: Who says what an operator confirmed, and what monitors count together.
OPERATOR, MONITORS = "an operator", "the host monitors"
#: Nova's report may come so much later than its interval.
NOVA_MARGIN_S = 2.0


@dataclass(frozen=True)
class NovaReads:
    """What two or more reads of a host's service in Nova say: only that `updated_at` changed
    between them counts, for it is a time of another machine's clock."""

    updated_at: str
    first_at: datetime
    advanced_at: datetime | None = None

    @classmethod
    def of(cls, plain: Mapping[str, Any] | None) -> "NovaReads | None":
        if not plain:
            return None
        advanced = plain.get("advanced_at")
        return cls(
            plain["updated_at"],
            datetime.fromisoformat(plain["first_at"]),
            datetime.fromisoformat(advanced) if advanced else None,
        )

    def plain(self) -> dict[str, Any]:
        advanced = self.advanced_at.isoformat() if self.advanced_at else None
        first = self.first_at.isoformat()
        return {"updated_at": self.updated_at, "first_at": first, "advanced_at": advanced}


def read_nova(known: NovaReads | None, service: Service | None, now: datetime) -> NovaReads | None:
    """One more read of the service; None: Nova does not know the host, or does not say when it
    heard of it."""
    if service is None or service.updated_at is None:
        return known
    said = service.updated_at.isoformat()
    if known is None:
        return NovaReads(said, now)
    if said <= known.updated_at:
        return known
    return replace(known, updated_at=said, advanced_at=now)


def service_of(services: Sequence[Service], host: str) -> Service | None:
    return next((one for one in services if same(one.host, host)), None)


def signs(
    context: RecoveryContext, host: str, service: Service | None, reads: NovaReads | None
) -> list[LifeSign]:
    """The signs of life that a host gives, its agent's first."""
    settings, found = context.settings, []
    network = settings.heartbeat_network
    if (beat := context.incidents.agent(host)) is not None:
        said = LifeSign("its agent", beat.seen_at, beat.interval_s, network)
        found.append(replace(said, tells_reboot=beat.has_boot_id, rebooted_at=beat.rebooted_at))
    # That Nova calls a service up proves nothing, it lags; that it calls it down spares the wait.
    if reads is not None and (reads.advanced_at or (service is not None and service.state == "up")):
        every = settings.nova_report_interval_s
        at, since = reads.advanced_at, reads.first_at
        found.append(LifeSign("Nova", at, every, network, NOVA_MARGIN_S, since))
    return found


def lost_networks(ballot: Ballot) -> list[str] | None:
    """The networks on which most monitors see the host down; None: on all of them."""
    strategy, _others = in_force(ballot.fresh)
    states = combined(ballot.fresh, ballot.host, strategy.networks) if strategy else {}
    down = sorted(name for name, state in states.items() if state == DOWN)
    return None if len(down) == len(states) else down


def _scope(told: Sequence[str] | None, ballot: Ballot, votes: Count) -> frozenset[str] | None:
    """The networks that the monitors' report is about. A network that they see up by now belongs to
    it no more: what they still see down is reason enough to recover the host."""
    seen = lost_networks(ballot) if votes.is_enough else None
    both = set(told or ()) & set(seen or ())
    return frozenset(both or seen or told or ()) or None


def reports(
    context: RecoveryContext, incident: Incident, ballot: Ballot, votes: Count
) -> list[FailureReport]:
    """Everybody who says that the host of an incident failed."""
    member = context.incidents.member(incident.host)
    trusts = member is not None and member.segment.trust_host_status
    trusted = member is not None and member.segment.trust_notifications
    found = [
        replace(one, waits=not trusts, trusted=trusted)
        for one in context.incidents.failure_reports(incident)
    ]
    opened = {"received_at": incident.opened_at.isoformat()}
    if seen := incident.details.get("monitors") or (incident.details.get("seen") and opened):
        found.append(
            FailureReport(
                source=MONITORS,
                received_at=datetime.fromisoformat(seen["received_at"]),
                networks=_scope(seen.get("networks"), ballot, votes),
                waits=False,
                withdrawn_at=ballot.now if votes.is_over else None,
            )
        )
    if said := incident.details.get("confirmed_off"):
        at = datetime.fromisoformat(said["at"])
        found.append(FailureReport(OPERATOR, at, waits=False))
    return found or [FailureReport("whoever opened the incident", incident.opened_at)]


def judge(
    run: Run, context: RecoveryContext, incident: Incident, service: Service | None
) -> Judgement:
    """What all sources say of the host of an incident together. Its power is read in doubt only."""
    now = context.incidents.now()
    ballot = context.votes.ballot(incident.host)
    votes = count(ballot, context.settings.host_votes)
    told = reports(context, incident, ballot, votes)
    reads = NovaReads.of(incident.details.get("nova"))
    seen = signs(context, incident.host, service, reads)
    well = votes.sentence() if votes.is_over else ""
    found = liveness.judge(told, seen, now, seen_well=well)
    doubted = found.state in (liveness.WAITS, liveness.CONTRADICTED)
    if doubted and is_off(run, context, incident.host):
        return liveness.judge(told, seen, now, is_off=True)
    return found


def is_off(run: Run, context: RecoveryContext, host: str) -> bool:
    """Whether its power reads off. On, unreadable or without a fence proves nothing."""
    if context.fence.how(host) is None or context.fence.accepts_risk(host):
        return False
    run.hold(context.fence.call_timeout_s + MARGIN_S)
    try:
        return context.fence.power(host) == OFF
    except (DriverError, NotFound) as error:
        LOG.info("the power of %s cannot be read: %s", host, error.message)
        return False
