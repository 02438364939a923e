# SPDX-License-Identifier: Apache-2.0
"""The guest monitor of the control plane: what Nova says about servers that nobody asked for.

A second or third opinion beside the agents of the hosts; off unless [monitors] enabled names it.
It only listens: a server that has been in error for weeks is no news.
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

# What one of Nova's messages says about a guest: did it fail, and did nobody ask for that?
#
# Nova names in each message who asked (`action_initiator_user`): a person, a service, Holdfast.
# It
# names nobody where nova-compute found out by itself: from libvirt's event, from its look round,
# at
# its own start.
#
#     instance.update           active -> error       nobody's, no task    it failed
#     instance.update           active -> error       somebody's task      an order failed: told
# only
#     instance.update           active -> error       somebody, no task    `server set --state
# error`
#     instance.power_off.start  active, is crashed    nobody's             it failed
#     instance.power_off.start  active, is shutdown   nobody's             it went off: why, Nova
# does
#                                                                          not know
#     instance.power_off.start  active, is running    nobody's             somebody's order,
# resumed
#                                                                          when nova-compute
# started


UPDATE: Final = "instance.update"
POWER_OFF: Final = "instance.power_off.start"
#: What happened.
ERROR, CRASHED, POWERED_OFF = "error", "crashed", "powered_off"
#: By which the cloud shows that it is still so: a status or a task, any of them.
STILL: Final = {
    ERROR: ("ERROR",),
    CRASHED: ("SHUTOFF", "powering-off", "ERROR"),
    POWERED_OFF: ("SHUTOFF", "powering-off", "ERROR"),
}
#: States (Nova's vm_state) of what ran and was to run; of what was there without that; all others
#: have never run, or are gone.
RAN: Final = frozenset({"active", "resized"})
RESTED: Final = frozenset({"paused", "suspended", "stopped", "rescued", "shelved"})
#: Tasks of what shall go away.
GOING: Final = frozenset({"deleting", "soft-deleting"})
#: That Nova gives itself when it finds a guest switched off.
ITS_OWN: Final = "powering-off"
_INITIATOR: Final = "action_initiator_user"


@dataclass(frozen=True)
class Classification:
    """`may_recover` is false where a new start could do harm, or is not wanted: it is told."""

    what: str
    may_recover: bool
    sentence: str

    @property
    def still(self) -> tuple[str, ...]:
        return STILL[self.what]


def classify(notice: ServerNotice) -> Classification | None:
    """None: nothing happened to a guest, or somebody asked for it."""
    if not notice.host or _INITIATOR not in notice.data:
        return None  # it is nowhere; or of a Nova that does not say who asked
    asked = bool(notice.data[_INITIATOR])
    if notice.event_type == UPDATE:
        return _error(notice, asked)
    if notice.event_type == POWER_OFF and not asked:
        return _off(notice)
    return None


def _error(notice: ServerNotice, asked: bool) -> Classification | None:
    change = notice.change
    if change is None or change.state != ERROR or change.old_state == ERROR:
        return None
    was, task = change.old_state, change.old_task_state or change.task_state
    if was not in RAN | RESTED or task in GOING:
        return None
    if asked:
        if task is None:
            return None
        return Classification(ERROR, False, f"an order failed ({task}), Nova shows it in error")
    if task not in (None, ITS_OWN):
        return Classification(
            ERROR, False, f"an order was cut short ({task}), Nova shows it in error"
        )
    if was in RESTED:
        return Classification(ERROR, False, f"it was {was}, Nova shows it in error")
    return Classification(ERROR, True, "Nova shows it in error, and nobody asked for anything")


def _off(notice: ServerNotice) -> Classification | None:
    if notice.state not in RAN | {"paused"}:
        return None  # Nova ends what it thinks is stopped and runs
    rests = f"it was {notice.state}, and " if notice.state == "paused" else ""
    if notice.power_state == "crashed":
        return Classification(
            CRASHED, not rests, f"{rests}it crashed, by what its hypervisor told Nova"
        )
    if notice.power_state == "shutdown":
        said = f"{rests}it is switched off, nobody asked Nova for that, and Nova does not know why"
        return Classification(POWERED_OFF, not rests, said)
    return None


OBSERVER = "nova"
#: What [monitors] guest_errors and guest_power_offs say.
RECOVER, REPORT, IGNORE = "recover", "report", "ignore"


class GuestMonitor:
    name = "guests"
    topics: Sequence[str] = ("versioned_notifications",)
    event_types: Sequence[str] = (UPDATE, POWER_OFF)
    only_hears = True

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """[monitors] is read anew each time."""
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
        return [_word(notice, meant, FAILED if failed else NOTED)]

    def states(self, cloud: Cloud, at: datetime) -> Sequence[StatusReport]:
        return []

    def _wish(self, meant: Classification) -> str:
        options: Any = self._conf.monitors
        said = options.guest_power_offs if meant.what == POWERED_OFF else options.guest_errors
        return str(said)


def _word(notice: ServerNotice, meant: Classification, state: str) -> GuestReport:
    change = notice.change
    told: dict[str, Any] = {
        "event": meant.what,
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
        evidence={name: value for name, value in told.items() if value},
    )


# What monitors say about guests is written down, by the same road as an agent's reports.
#
# A message is acknowledged after this; who dies before hears it again and writes it then, who
# dies
# after hears it again and finds it written.


LOG = logging.getLogger(__name__)


class GuestNews:
    """`ring`: there is something to do."""

    def __init__(
        self, observations: Observations, new_id: Callable[[], str], wake: Callable[[], None]
    ) -> None:
        self._observations = observations
        self._new_id = new_id
        self._wake = wake

    def write(self, words: Sequence[GuestReport]) -> None:
        """What it raises, the listener understands: it comes again."""
        for word in words:
            _row, new = self._observations.add(self._new_id(), word.values())
            if new:
                level = logging.WARNING if word.state == FAILED else logging.INFO
                LOG.log(level, "server %s on %s: %s", word.server_id, word.host, word.sentence)
        if any(word.state == FAILED for word in words):
            self._wake()
