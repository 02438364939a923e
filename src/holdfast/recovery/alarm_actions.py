# SPDX-License-Identifier: Apache-2.0
"""Recovery work requested by alarm rules: disable a host, live-migrate a server, repair ahead.

Each action is a row of durable work that exists once per alarm and action
(`alarms.central.action_of`). Actions of one family run one after the other on a host, in the
order in which rules requested them. An action reads the state of the alarm and of the cloud
before it acts, so a second manager can continue after the first was killed. An alarm that has
ended by then needs no action. A global pause of recovery holds all actions; `dry_run` only says
what would be done.

`EndOfMute` publishes and performs what a mute of an alarm held back.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.alarms.central import ALARM_ACTION, ALARM_MUTE, FIRING, OVER
from holdfast.hoststatus.status import DOWN, UP, StatusReport
from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import same
from holdfast.model.operation import Operation
from holdfast.ports.cloud import Server
from holdfast.ports.recovery import Alarms
from holdfast.recovery.context import RecoveryContext

LOG = logging.getLogger(__name__)


class EndOfMute:
    """Work at the end of an alarm's mute, once per alarm.

    The step compares the alarm's state with the last published state (`Alarms.end_mute`). The
    step can therefore run twice, in two managers, or too early without harm.
    """

    name = ALARM_MUTE
    retry_forever = True

    def __init__(self, context: RecoveryContext, alarms: Alarms) -> None:
        self._context = context
        self._alarms = alarms

    def steps(self) -> Sequence[Step]:
        return (Step("speak", self.speak, recorded=False),)

    def speak(self, run: Run) -> str:
        alarm_id = str(run.operation.payload["alarm"])
        try:
            until = self._alarms.show(alarm_id)["muted_until"]
            now = self._context.incidents.now()
            if until is not None and until > now:
                raise NotYet(
                    f"it is muted until {until.isoformat()}", (until - now).total_seconds()
                )
            outcome = self._alarms.end_mute(alarm_id)
        except NotFound:
            return "the alarm is long over: nothing is published"
        LOG.info("alarm %s: %s", alarm_id, outcome)
        self._context.wake()
        return outcome

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        """Do nothing: the worker retries this work forever."""


LOOK_S, BUSY_S, PAUSED_S = 2.0, 5.0, 15.0
GIVE_UP: Final = timedelta(hours=1)
MIGRATING: Final = "migrating"
ACTIVE, ERROR = "ACTIVE", "ERROR"
#: Source name of status reports about a host that is about to fail.
SOURCE: Final = "alarm"

Alarm = Mapping[str, Any]


class AlarmAction:
    """Work for an action of an alarm rule."""

    name = ALARM_ACTION
    retry_forever = False

    def __init__(self, context: RecoveryContext, alarms: Alarms) -> None:
        self._context = context
        self._alarms = alarms
        self._begin: Mapping[str, Callable[[Run, Alarm], str]] = {
            "disable_host": self._disable,
            "migrate_away": self._migrate,
            "repair_ahead": self._ahead,
            OVER: self._over,
        }

    def steps(self) -> Sequence[Step]:
        return (Step("begin", self.begin), Step("confirm", self.confirm))

    def begin(self, run: Run) -> str:
        action = str(run.operation.payload["action"])
        alarm = self._alarm(run)
        if alarm is None or (action != OVER and alarm["state"] != FIRING):
            return "the alarm is over: nothing is done"
        if action not in self._begin:
            raise Conflict(
                f"this manager cannot do {action}: it is older than who wrote that down, update it"
            )
        if action != OVER and (why := self._alarms.paused()):
            raise NotYet(f"recovery is paused: {why}", PAUSED_S)
        if self._context.settings.dry_run:
            return f"dry run: {action} for {alarm['subject']} on {alarm['host']} is left undone"
        outcome = self._begin[action](run, alarm)
        LOG.info("alarm %s of %s: %s", alarm["rule"], alarm["subject"], outcome)
        return outcome

    def confirm(self, run: Run) -> str:
        """Wait until a live migration has ended.

        All other actions are complete when their call returns.
        """
        alarm = self._alarm(run)
        if run.operation.payload["action"] != "migrate_away" or alarm is None:
            return "done"
        if self._context.settings.dry_run:
            return "dry run"
        server = self._server(run, alarm)
        if server is None or not same(server.host or "", alarm["host"]):
            return f"the server is on {server.host if server else 'no host'} now"
        if server.task_state == MIGRATING:
            raise NotYet(f"server {server.id} is on its way", LOOK_S)
        if alarm["state"] != FIRING:
            return "the alarm is over, and the server stayed where it is"
        if server.status not in (ACTIVE, ERROR):
            return f"server {server.id} is {server.status}: only one that runs is moved"
        raise Conflict(f"server {server.id} is still on {server.host}: no host took it")

    # actions

    def _disable(self, run: Run, alarm: Alarm) -> str:
        services, host = self._context.guarded_cloud(run).services, str(alarm["host"])
        for service in services.list():
            if same(service.host, host) and not service.enabled:
                return f"{host} takes no new servers already"
        services.disable(host, f"alarm {alarm['rule']} ({alarm['id']})")
        return f"{host} takes no new servers"

    def _migrate(self, run: Run, alarm: Alarm) -> str:
        """Live-migrate the server, at most one server per host at a time.

        Many alarms at once must not start many migrations at once. Migrations of Holdfast share
        one work subject and so run in order; the manager looks for migrations of others in
        Nova.
        """
        server = self._server(run, alarm)
        if server is None:
            return "the cloud does not know the server"
        if not same(server.host or "", alarm["host"]):
            return f"the server is on {server.host or 'no host'} already"
        if server.task_state == MIGRATING:
            return f"server {server.id} is on its way already"
        if server.status == ERROR:
            raise Conflict(f"server {server.id} is in {ERROR} on {server.host}: it is not moved")
        if server.status != ACTIVE:
            return f"server {server.id} is {server.status}: only one that runs is moved"
        cloud = self._context.guarded_cloud(run)
        for other in cloud.servers.list(host=alarm["host"]):
            if other.task_state == MIGRATING:
                raise NotYet(f"server {other.id} leaves {alarm['host']} first", BUSY_S)
        self._check_rest(server, alarm)
        self._alarms.moves(alarm["id"])
        cloud.moves.live_migrate(server.id)
        return f"server {server.id} is moved off {alarm['host']} while it runs"

    def _check_rest(self, server: Server, alarm: Alarm) -> None:
        """Raise Conflict if an alarm has moved this server within `migrate_away_rest_s`.

        Otherwise a server that is busy on every host would visit all hosts, because each host
        raises its own alarm.
        """
        rest = timedelta(seconds=self._context.settings.migrate_away_rest_s)
        before = self._alarms.moved(alarm["id"], self._context.incidents.now() - rest)
        if rest and before is not None:
            raise Conflict(
                f"server {server.id} was moved off {before.host} for alarm {before.rule} at"
                f" {before.at:%H:%M} UTC, and on {alarm['host']} it is no better: it is"
                f" not moved again before {before.at + rest:%H:%M} UTC, look at what it does"
                " ([recovery] migrate_away_rest_s)"
            )

    def _ahead(self, run: Run, alarm: Alarm) -> str:
        self._say(alarm, DOWN, f"alarm {alarm['rule']}: it is about to fail")
        return f"{alarm['host']} is not used any more: its reservations are repaired"

    def _over(self, run: Run, alarm: Alarm) -> str:
        if other := self._alarms.others_ahead(alarm["id"]):
            return f"{alarm['host']} stays out of use: alarm {other} of the same rule stands"
        self._say(alarm, UP, f"alarm {alarm['rule']} is over")
        return f"{alarm['host']} may be used again, as far as alarms go"

    def _say(self, alarm: Alarm, verdict: str, reason: str) -> None:
        now = self._context.incidents.now()
        source = f"{SOURCE}:{alarm['rule']}"[:64]
        status_report = StatusReport(
            host=str(alarm["host"]),
            source=source,
            verdict=verdict,
            at=now,
            reason=reason,
            decisive=verdict == DOWN,
        )
        self._context.see([status_report])
        self._context.wake()

    # reads

    def _alarm(self, run: Run) -> Alarm | None:
        try:
            return self._alarms.show(str(run.operation.payload["alarm"]))
        except NotFound:
            return None

    def _server(self, run: Run, alarm: Alarm) -> Server | None:
        try:
            return self._context.guarded_cloud(run).servers.show(
                alarm["subject"].removeprefix("server:")
            )
        except NotFound:
            return None

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + GIVE_UP

    def failed(self, run: Run, why: str) -> None:
        payload = run.operation.payload
        LOG.error("alarm %s: %s is not done: %s", payload["alarm"], payload["action"], why)


def kinds(context: RecoveryContext, alarms: Alarms) -> dict[str, Kind]:
    return {
        ALARM_ACTION: AlarmAction(context, alarms),
        ALARM_MUTE: EndOfMute(context, alarms),
    }
