# SPDX-License-Identifier: Apache-2.0
"""The guest monitor of the control plane: failures of servers in Nova's notifications.

The monitor is a second or third opinion beside the agents of the hosts. It is off unless
[monitors] enabled names it. It only receives notifications: a server in error for weeks is no
news. `classify` decides what a notification means; `GuestReportWriter` writes the reports.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from oslo_config import cfg

from holdfast.hoststatus.status import StatusReport
from holdfast.model.nova_notification import Notice, ServerNotice
from holdfast.model.observation import FAILED, NOTED, GuestReport
from holdfast.ports.cloud import Cloud
from holdfast.ports.recovery import Observations

UPDATE: Final = "instance.update"
POWER_OFF: Final = "instance.power_off.start"
#: Kinds of events.
ERROR, CRASHED, POWERED_OFF = "error", "crashed", "powered_off"
#: Statuses or tasks by which Nova shows that the event still holds; any of them suffices.
STILL: Final = {
    ERROR: ("ERROR",),
    CRASHED: ("SHUTOFF", "powering-off", "ERROR"),
    POWERED_OFF: ("SHUTOFF", "powering-off", "ERROR"),
}
#: Values of Nova's vm_state: servers that ran and were meant to run, and servers that existed
#: without running. Servers in all other states never ran or are gone.
RAN: Final = frozenset({"active", "resized"})
RESTED: Final = frozenset({"paused", "suspended", "stopped", "rescued", "shelved"})
#: Tasks that delete a server.
GOING: Final = frozenset({"deleting", "soft-deleting"})
#: Task that Nova sets itself when it finds a guest switched off.
ITS_OWN: Final = "powering-off"
_INITIATOR: Final = "action_initiator_user"


@dataclass(frozen=True)
class Classification:
    """Meaning of a notification about a guest.

    `may_recover` is false if a restart could do harm or is not wanted; the event is only
    reported.
    """

    event: str
    may_recover: bool
    sentence: str

    @property
    def still(self) -> tuple[str, ...]:
        return STILL[self.event]


def classify(notice: ServerNotice) -> Classification | None:
    """Decide whether a notification shows a guest failure which no request caused; None if not.

    Each notification names the requester (`action_initiator_user`): a person, a service,
    Holdfast. The field is empty if nova-compute noticed the event itself: by libvirt's event,
    in its periodic task, or at its own start.

        notification              server               requester  task  meaning
        instance.update           active -> error      no         no    failure
        instance.update           active -> error      no         yes   interrupted request, noted
        instance.update           active -> error      yes        yes   failed request, noted only
        instance.update           active -> error      yes        no    `server set --state error`
        instance.power_off.start  active, is crashed   no         -     failure
        instance.power_off.start  active, is shutdown  no         -     off; Nova does not know why
        instance.power_off.start  active, is running   no         -     a user's request, resumed
                                                                        when nova-compute started
    """
    if not notice.host or _INITIATOR not in notice.data:
        return None  # on no host; or this Nova does not send the requester
    is_requested = bool(notice.data[_INITIATOR])
    if notice.event_type == UPDATE:
        return _error(notice, is_requested)
    if notice.event_type == POWER_OFF and not is_requested:
        return _off(notice)
    return None


def _error(notice: ServerNotice, is_requested: bool) -> Classification | None:
    change = notice.change
    if change is None or change.state != ERROR or change.old_state == ERROR:
        return None
    was, task = change.old_state, change.old_task_state or change.task_state
    if was not in RAN | RESTED or task in GOING:
        return None
    if is_requested:
        if task is None:
            return None
        return Classification(ERROR, False, f"an order failed ({task}), Nova shows it in error")
    if task not in (None, ITS_OWN):
        return Classification(
            ERROR, False, f"an order was cut short ({task}), Nova shows it in error"
        )
    if was in RESTED:
        return Classification(ERROR, False, f"it was {was}, Nova shows it in error")
    return Classification(ERROR, True, "Nova shows it in error, and no API request explains that")


def _off(notice: ServerNotice) -> Classification | None:
    if notice.state not in RAN | {"paused"}:
        return None  # Nova stops a running guest which it considers stopped
    rests = f"it was {notice.state}, and " if notice.state == "paused" else ""
    if notice.power_state == "crashed":
        return Classification(
            CRASHED, not rests, f"{rests}it crashed, by what its hypervisor told Nova"
        )
    if notice.power_state == "shutdown":
        sentence = f"{rests}it is switched off without an API request, and Nova does not know why"
        return Classification(POWERED_OFF, not rests, sentence)
    return None


OBSERVER = "nova"
#: Values of [monitors] guest_errors and guest_power_offs.
RECOVER, REPORT, IGNORE = "recover", "report", "ignore"


class GuestMonitor:
    """Monitor of guest failures in Nova's notifications."""

    name = "guests"
    topics: Sequence[str] = ("versioned_notifications",)
    event_types: Sequence[str] = (UPDATE, POWER_OFF)
    push_only = True

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Create the monitor; [monitors] is read again for each notification."""
        self._conf = conf

    def heard(self, notice: Notice) -> Sequence[GuestReport]:
        if not isinstance(notice, ServerNotice):
            return []
        meant = classify(notice)
        if meant is None:
            return []
        wish = self._wish(meant)
        if wish == IGNORE:
            return []
        failed = wish == RECOVER and meant.may_recover
        return [_report(notice, meant, FAILED if failed else NOTED)]

    def states(self, cloud: Cloud, at: datetime) -> Sequence[StatusReport]:
        return []

    def _wish(self, meant: Classification) -> str:
        options: Any = self._conf.monitors
        setting = options.guest_power_offs if meant.event == POWERED_OFF else options.guest_errors
        return str(setting)


def _report(notice: ServerNotice, meant: Classification, state: str) -> GuestReport:
    change = notice.change
    evidence: dict[str, Any] = {
        "event": meant.event,
        "name": notice.name,
        "project": notice.project_id,
        "old_state": change.old_state if change else notice.state,
        "task_state": (change.old_task_state if change else None) or notice.task_state,
        "power_state": notice.power_state,
        "still": list(meant.still),
        "event_type": notice.event_type,
        "message_id": notice.message_id,
        "publisher": notice.publisher,
    }
    return GuestReport(
        observer=OBSERVER,
        server_id=notice.server_id,
        host=notice.host or "",
        state=state,
        at=notice.at,
        key=f"{notice.event_type}/{notice.message_id}",
        sentence=meant.sentence,
        evidence={name: value for name, value in evidence.items() if value},
    )


LOG = logging.getLogger(__name__)


class GuestReportWriter:
    """Writes guest reports of monitors as observations, like reports of agents.

    The listener acknowledges a message after this write. A manager that dies before the write
    gets the message again and writes then; a manager that dies after the write gets the message
    again and finds it written. `wake` signals new work.
    """

    def __init__(
        self, observations: Observations, new_id: Callable[[], str], wake: Callable[[], None]
    ) -> None:
        self._observations = observations
        self._new_id = new_id
        self._wake = wake

    def write(self, reports: Sequence[GuestReport]) -> None:
        """Write the reports; after an error the listener delivers the message again."""
        for report in reports:
            _row, new = self._observations.add(self._new_id(), report.values())
            if new:
                level = logging.WARNING if report.state == FAILED else logging.INFO
                LOG.log(
                    level, "server %s on %s: %s", report.server_id, report.host, report.sentence
                )
        if any(report.state == FAILED for report in reports):
            self._wake()
