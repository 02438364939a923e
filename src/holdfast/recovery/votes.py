# SPDX-License-Identifier: Apache-2.0
"""Counts the votes of host monitors on several controllers about a host.

One row of durable work per host counts as long as any monitor reports a problem with it. The
payload of the row records the results, so that one failure is one episode, even if monitors
restart: the host status becomes down, an incident is opened or joined, and people are alerted,
once each. The episode ends when most of the seeing monitors report the host healthy.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.hostmonitor.matrix import DOWN as DOWN_THERE
from holdfast.hoststatus import status
from holdfast.hoststatus.status import StatusReport
from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.incident import (
    HOST,
    IGNORED,
    OPEN,
    RECOVER,
    Classification,
    Incident,
    ended_in_place,
)
from holdfast.model.incident_progress import HostProgress, MonitorsReport
from holdfast.model.operation import Operation
from holdfast.model.segment import SegmentHost
from holdfast.model.votes import (
    FOR,
    HOST_VOTES,
    SOURCE,
    Ballot,
    Count,
    combined,
    count,
    in_force,
    listed,
    without_network,
)
from holdfast.ports.recovery import Account
from holdfast.recovery import guards
from holdfast.recovery.context import RecoveryContext
from holdfast.recovery.host_liveness import lost_networks
from holdfast.recovery.intake import ingest

LOG = logging.getLogger(__name__)

ALERT = "host.alert"
LOOK_S, RARELY_S = 5.0, 30.0
#: Seconds until Holdfast stops counting for a host that no monitor knows any more.
QUIET_S = 600.0
#: Guards that may have closed an incident of the same failure and may have been lifted since.
LIFTED = (guards.maintenance_window, guards.segment, guards.maintenance)


@dataclass(frozen=True)
class Episode:
    """Results of a failure until now, stored in the payload of the work row."""

    host: str
    down_at: str | None = None
    incident: str | None = None
    alerted_at: str | None = None
    quiet_since: str | None = None

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


class HostVotes:
    """Work to count the votes about a host."""

    name = HOST_VOTES
    retry_forever = True

    def __init__(self, context: RecoveryContext) -> None:
        self._context = context

    def steps(self) -> Sequence[Step]:
        return (Step("count", self.count, recorded=False),)

    def count(self, run: Run) -> str:
        """Count the votes and act on changes; NotYet until the episode is over."""
        context, episode = self._context, Episode(**run.operation.payload)
        ballot = context.votes.ballot(episode.host)
        votes = count(ballot, context.settings.host_votes)
        if votes.is_enough:
            episode = self._stands_down(run, votes, episode, ballot.now)
            raise self._recover(run, ballot, votes, episode)
        if votes.is_over:
            return self._over(run, ballot, episode, f"most monitors see {episode.host} well")
        if votes.is_alert and not (episode.alerted_at or episode.down_at):
            episode = self._alert(run, votes, episode, ballot.now)
        if ballot.is_known:
            self._quiet(run, episode, None)
            if not ballot.is_concern and not episode.down_at:
                return f"no monitor reports {episode.host} as failed any more"
            raise NotYet(votes.sentence(), LOOK_S)
        since = self._quiet(run, episode, ballot.now)
        if ballot.now - since < timedelta(seconds=QUIET_S):
            raise NotYet(f"no monitor says anything of {episode.host}", LOOK_S)
        sentence = f"no monitor says anything of {episode.host} any more"
        return self._over(run, ballot, episode, sentence)

    # the host itself

    def _stands_down(self, run: Run, votes: Count, episode: Episode, now: datetime) -> Episode:
        """Set the host status to down, also if nothing is recovered, and begin the episode."""
        if episode.down_at:
            self._quiet(run, episode, None)
            return replace(episode, quiet_since=None)
        sentence = votes.sentence()
        self._report_status(episode.host, status.DOWN, sentence, now)
        begun = replace(episode, down_at=now.isoformat(), quiet_since=None)
        self._context.votes.remember(run.claim, begun.plain(), f"failed: {sentence}")
        LOG.warning("%s has failed: %s", episode.host, sentence)
        return begun

    def _over(self, run: Run, ballot: Ballot, episode: Episode, why: str) -> str:
        """End the episode; counting continues while a monitor still reports a problem.

        An outvoted monitor may still be right.
        """
        if episode.down_at:
            self._report_status(episode.host, status.UP, why, ballot.now)
            LOG.info("%s: %s", episode.host, why)
        if not ballot.is_concern:
            return why
        if episode != Episode(episode.host):
            self._context.votes.remember(run.claim, Episode(episode.host).plain(), "")
        raise NotYet(why, RARELY_S)

    def _report_status(self, host: str, verdict: str, reason: str, now: datetime) -> None:
        status_report = StatusReport(
            host=host,
            source=SOURCE,
            verdict=verdict,
            at=now,
            reason=reason,
            decisive=verdict == status.DOWN,
        )
        self._context.see([status_report])

    # the incident

    def _recover(self, run: Run, ballot: Ballot, votes: Count, episode: Episode) -> NotYet:
        """Make sure of an incident for this failure; return the reason to wait as NotYet."""
        host, before = episode.host, self._incident(episode)
        if before is not None and before.is_open:
            self._witness(run, votes, before)
            return NotYet(f"{host}: incident {before.id} is {before.status}", RARELY_S)
        is_over = before is not None and (before.status != IGNORED or before.progress.dry_run)
        if before is not None and is_over and not _died_again(before, ballot, votes):
            sentence = f"{host} is still down; incident {before.id} is {before.status}"
            return NotYet(sentence, RARELY_S)
        try:
            member = self._context.incidents.member(host)
        except Conflict as several:
            return NotYet(several.message, RARELY_S)
        if member is None:
            sentence = f"{host} is in no segment: its servers are not moved"
            return NotYet(sentence, LOOK_S if self._context.votes.is_known(host) else RARELY_S)
        account = self._account(ballot, votes, episode, member, before)
        if no := self._forbidden(account, votes, before):
            return NotYet(f"{host} is down; {no}", LOOK_S if before is None else RARELY_S)
        if why := without_network(ballot.fresh, self._context.settings.heartbeat_network):
            LOG.warning("%s", why)
        taken = ingest(self._context, account, run.claim, ballot.now)
        LOG.warning("%s: %s", host, taken.sentence)
        return NotYet(f"{host}: {taken.sentence}", LOOK_S)

    def _incident(self, episode: Episode) -> Incident | None:
        """The incident to which this failure led, or None."""
        if episode.incident is None:
            return None
        try:
            return self._context.incidents.incident(episode.incident)
        except NotFound:  # purged: after so long the recovery does not start again
            return Incident(episode.incident, "", HOST, "", "gone", datetime.min)

    def _account(
        self,
        ballot: Ballot,
        votes: Count,
        episode: Episode,
        member: SegmentHost,
        before: Incident | None,
    ) -> Account:
        """The failure as monitors report it.

        Signs of life since an earlier incident ended in place count against it: the monitors
        may not see a host that is back.
        """
        reports = [
            vote.report for vote in votes.votes if vote.vote == FOR and vote.report is not None
        ]
        sentence = votes.sentence()
        meaning = Classification(HOST, f"{HOST}:{member.key}", RECOVER, sentence)
        networks = lost_networks(ballot)
        ended = before.closed_at if before is not None and ended_in_place(before) else None
        lost = None if networks is None else tuple(networks)
        monitors = MonitorsReport(ended or ballot.now, lost, after_return=ended is not None)
        payload = {"event": "STOPPED", **_status(ballot)}
        details = HostProgress(seen=tuple(votes.plain()), monitors=monitors, payload=payload)
        return Account(
            meaning,
            member,
            at=ballot.now if ended else max(report.since for report in reports),
            details=details,
            observations=[monitor_report.id for monitor_report in reports],
            payload=episode.plain(),
        )

    def _forbidden(self, account: Account, votes: Count, before: Incident | None) -> str | None:
        """Why an operator excludes the host from recovery; None if an incident may be opened.

        An incident that a guard closed for this reason starts again once the reason is gone.
        """
        if before is None and not account.member.on_maintenance:
            return None
        context, member = self._context, account.member
        about = HostProgress(host=member.name, segment=member.segment.uuid)
        meaning = account.meaning
        draft = Incident("", meaning.subject, HOST, meaning.cause, OPEN, account.at, details=about)
        situation = context.incidents.situation(draft, context.incidents.now())
        view = guards.View(situation, context.settings, context.mass_failure)
        guards_to_ask = LIFTED if before is not None else (guards.maintenance,)
        no = guards.first_denial([guard(draft, view) for guard in guards_to_ask])
        return None if no is None else no.sentence

    def _witness(self, run: Run, votes: Count, incident: Incident) -> None:
        """Attach later votes for the same failure to its incident."""
        late = [vote.report for vote in votes.votes if vote.vote == FOR and vote.report is not None]
        ids = [monitor_report.id for monitor_report in late if monitor_report.incident_id is None]
        if ids:
            self._context.incidents.witness(incident.id, votes.plain(), ids, run.claim)

    # people

    def _alert(self, run: Run, votes: Count, episode: Episode, now: datetime) -> Episode:
        """Notify people once and change nothing."""
        context, host = self._context, episode.host
        sentence = f"{host}: {_concern(votes)}"
        subject, about = f"{HOST}:{host}", HostProgress(host=host)
        alert = Incident(
            context.new_id(),
            subject,
            HOST,
            sentence,
            "alert",
            now,
            sentence=sentence,
            details=about,
        )
        alerted = replace(episode, alerted_at=now.isoformat())
        then = context.announce(ALERT, alert, now)
        context.votes.remember(run.claim, alerted.plain(), f"alert: {sentence}", then)
        LOG.warning("alert: %s", sentence)
        context.wake()
        return alerted

    def _quiet(self, run: Run, episode: Episode, since: datetime | None) -> datetime:
        """Since when no monitor reports about the host; the begin and the end are recorded."""
        if since is not None and episode.quiet_since is not None:
            return datetime.fromisoformat(episode.quiet_since)
        if since is not None or episode.quiet_since is not None:
            now = replace(episode, quiet_since=since.isoformat() if since else None)
            self._context.votes.remember(run.claim, now.plain(), "")
        return since or datetime.min

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        """Do nothing: the worker retries this work forever."""


def _status(ballot: Ballot) -> Mapping[str, str]:
    """The host status as masakari-monitors would send it: a host seen anywhere is not off."""
    ha_matrix, _others = in_force(ballot.fresh)
    states = combined(ballot.fresh, ballot.host, ha_matrix.networks) if ha_matrix else {}
    off = bool(states) and set(states.values()) == {DOWN_THERE}
    return {"host_status": "NORMAL" if off else "UNKNOWN"}


def _died_again(before: Incident, ballot: Ballot, votes: Count) -> bool:
    """Whether enough monitors saw the host down after an incident that ended in place."""
    ended = before.closed_at
    if ended is None or not ended_in_place(before):
        return False
    seen = {view.observer for view in ballot.fresh if view.seen_at > ended}
    return len(seen.intersection(votes.observers(FOR))) >= votes.needed


def _concern(votes: Count) -> str:
    if failed := len(votes.observers(FOR)):
        return f"{votes.sentence()}: {failed} of the {votes.needed} votes that it takes"
    reports = [
        vote.report for vote in votes.votes if vote.report is not None and vote.report.is_concern
    ]
    rules = sorted({str(report.evidence.get("rule", "")) for report in reports} - {""})
    observers = listed([report.observer for report in reports])
    return f"{observers} alert{f' ({rules[0]})' if rules else ''}"


def kinds(context: RecoveryContext) -> dict[str, Kind]:
    return {HOST_VOTES: HostVotes(context)}
