# SPDX-License-Identifier: Apache-2.0
"""Collects the evidence for and against the failure of a host.

Sources: the reporters, the heartbeats of the host's agent, Nova's report of its compute
service, the votes of the host monitors, and, in doubt, the power. The guards use this module,
so does the intake of old reports, and the fencing step once more before it cuts the power.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from holdfast.hostmonitor.matrix import DOWN
from holdfast.jobs.job import MARGIN_S, Run
from holdfast.model.errors import DriverError, NotFound
from holdfast.model.host import same
from holdfast.model.incident import Incident, entries
from holdfast.model.incident_progress import Entry, MonitorsReport, NovaReads
from holdfast.model.votes import FOR, Ballot, Count, combined, count, in_force
from holdfast.ports.cloud import Service
from holdfast.ports.fence import OFF
from holdfast.recovery import liveness
from holdfast.recovery.context import RecoveryContext
from holdfast.recovery.liveness import FailureReport, Judgement, LifeSign

LOG = logging.getLogger(__name__)
#: Source names: an operator's confirmation, and the combined votes of the host monitors.
OPERATOR, MONITORS = "an operator", "the host monitors"
#: Source name of Nova's report of a compute service.
NOVA = "Nova"
#: Seconds that Nova's report may come later than its interval.
NOVA_MARGIN_S = 2.0


def read_nova(
    earlier: NovaReads | None, service: Service | None, now: datetime
) -> NovaReads | None:
    """Add one read of the service to the known reads.

    None if Nova does not know the host or does not report `updated_at`, and there was no
    earlier read. A new `updated_at` is no sign of life if the service's settings changed too, or
    while the service is forced down: then a client may have written the row.
    """
    if service is None or service.updated_at is None:
        return earlier
    updated_at, settings = service.updated_at.isoformat(), _settings(service)
    if earlier is None:
        return NovaReads(updated_at, now, settings=settings)
    if updated_at <= earlier.updated_at:
        return replace(earlier, settings=settings)
    is_written = service.forced_down or settings != earlier.settings
    advanced_at = earlier.advanced_at if is_written else now
    return NovaReads(updated_at, earlier.first_at, advanced_at, settings)


def _settings(service: Service) -> str:
    """The parts of a service's row that clients of Nova write."""
    return f"{service.enabled} {service.forced_down} {service.disabled_reason}"


def service_of(services: Sequence[Service], host: str) -> Service | None:
    return next((service for service in services if same(service.host, host)), None)


def signs(
    context: RecoveryContext, host: str, service: Service | None, reads: NovaReads | None
) -> list[LifeSign]:
    """The signs of life of a host; the agent's comes first."""
    settings, life_signs = context.settings, []
    network = settings.heartbeat_network
    if (beat := context.incidents.agent(host)) is not None:
        life_sign = LifeSign("its agent", beat.seen_at, beat.interval_s, network)
        life_signs.append(
            replace(life_sign, tells_reboot=beat.has_boot_id, rebooted_at=beat.rebooted_at)
        )
    # State up in Nova proves nothing, because it lags; state down makes the wait unnecessary.
    if reads is not None and (reads.advanced_at or (service is not None and service.state == "up")):
        every = settings.nova_report_interval_s
        at, since = reads.advanced_at, reads.first_at
        life_signs.append(LifeSign(NOVA, at, every, network, NOVA_MARGIN_S, since))
    return life_signs


def lost_networks(ballot: Ballot) -> list[str] | None:
    """The networks on which most monitors see the host down; None: all networks."""
    ha_matrix, _others = in_force(ballot.fresh)
    states = combined(ballot.fresh, ballot.host, ha_matrix.networks) if ha_matrix else {}
    down = sorted(name for name, state in states.items() if state == DOWN)
    return None if len(down) == len(states) else down


def _scope(reported: Sequence[str] | None, ballot: Ballot, votes: Count) -> frozenset[str] | None:
    """The networks that the monitors' report covers.

    A network which the monitors see up by now no longer belongs to the report: the networks
    still down are reason enough to recover the host.
    """
    lost = lost_networks(ballot) if votes.is_enough else None
    both = set(reported or ()) & set(lost or ())
    return frozenset(both or lost or reported or ()) or None


def reports(
    context: RecoveryContext, incident: Incident, ballot: Ballot, votes: Count
) -> list[FailureReport]:
    """All failure reports about the host of an incident."""
    member = context.incidents.member(incident.host)
    trusts = member is not None and member.segment.trust_host_status
    trusted = member is not None and member.segment.trust_notifications
    failure_reports = [
        replace(failure_report, waits=not trusts, trusted=trusted)
        for failure_report in context.incidents.failure_reports(incident)
    ]
    progress = incident.host_progress
    seen = progress.seen
    is_over = votes.is_over or _is_unregistered(seen, ballot)
    if report := progress.monitors or (MonitorsReport(incident.opened_at) if seen else None):
        failure_reports.append(
            FailureReport(
                source=MONITORS,
                received_at=report.received_at,
                networks=_scope(report.networks, ballot, votes),
                waits=False,
                withdrawn_at=ballot.now if is_over else None,
                doubt=votes.sentence() if votes.is_doubted else "",
            )
        )
    if confirmed_off := progress.confirmed_off:
        failure_reports.append(FailureReport(OPERATOR, confirmed_off.at, waits=False))
    return failure_reports or [FailureReport("the opener of the incident", incident.opened_at)]


def _is_unregistered(seen: Sequence[Entry], ballot: Ballot) -> bool:
    """Whether none of the monitors that reported the failure is registered any more."""
    observers = {str(vote["observer"]) for vote in entries(seen) if vote["vote"] == FOR}
    return bool(observers) and not observers.intersection(view.observer for view in ballot.views)


def is_reported_off(context: RecoveryContext, incident: Incident, now: datetime) -> bool:
    """Whether a report about the whole host is in force and no sign of life contradicts it."""
    ballot = context.votes.ballot(incident.host)
    votes = count(ballot, context.settings.host_votes)
    life_signs = signs(context, incident.host, None, incident.host_progress.nova)
    well = votes.sentence() if votes.is_over else ""
    judgements = [
        liveness.judge([report], life_signs, now, seen_well=well)
        for report in reports(context, incident, ballot, votes)
        if report.networks is None and report.source != OPERATOR
    ]
    return any(judgement.state == liveness.STANDS for judgement in judgements)


def judge(
    run: Run, context: RecoveryContext, incident: Incident, service: Service | None
) -> Judgement:
    """Judge all sources about the host of an incident; read the power only in doubt."""
    now = context.incidents.now()
    ballot = context.votes.ballot(incident.host)
    votes = count(ballot, context.settings.host_votes)
    failure_reports = reports(context, incident, ballot, votes)
    life_signs = signs(context, incident.host, service, incident.host_progress.nova)
    if (told := incident.host_progress.monitors) is not None and told.after_return:
        life_signs = [_since_return(sign, told.received_at) for sign in life_signs]
    well = votes.sentence() if votes.is_over else ""
    judgement = liveness.judge(failure_reports, life_signs, now, seen_well=well)
    doubted = judgement.state in (liveness.WAITS, liveness.CONTRADICTED)
    if doubted and is_off(run, context, incident.host):
        return liveness.judge(failure_reports, life_signs, now, is_off=True)
    return judgement


def _since_return(sign: LifeSign, returned_at: datetime) -> LifeSign:
    """The sign without a reboot for which an earlier incident started the servers."""
    if sign.rebooted_at is None or sign.rebooted_at > returned_at:
        return sign
    return replace(sign, rebooted_at=None)


def is_off(run: Run, context: RecoveryContext, host: str) -> bool:
    """Whether the power reads off; on, unreadable, or a host without a fence proves nothing."""
    if context.fence.how(host) is None or context.fence.accepts_risk(host):
        return False
    run.hold(context.fence.call_timeout_s + MARGIN_S)
    try:
        return context.fence.power(host) == OFF
    except (DriverError, NotFound) as error:
        LOG.info("the power of %s cannot be read: %s", host, error.message)
        return False
