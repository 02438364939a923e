# SPDX-License-Identifier: Apache-2.0
"""What one of Nova's messages says about a guest: did it fail, and did nobody ask for that?

Nova names in each message who asked (`action_initiator_user`): a person, a service, Holdfast. It
names nobody where nova-compute found out by itself: from libvirt's event, from its look round, at
its own start.

    instance.update           active -> error       nobody's, no task    it failed
    instance.update           active -> error       somebody's task      an order failed: told only
    instance.update           active -> error       somebody, no task    `server set --state error`
    instance.power_off.start  active, is crashed    nobody's             it failed
    instance.power_off.start  active, is shutdown   nobody's             it went off: why, Nova does
                                                                         not know
    instance.power_off.start  active, is running    nobody's             somebody's order, resumed
                                                                         when nova-compute started
"""

from dataclasses import dataclass
from typing import Final

from holdfast.model.notice import ServerNotice

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
class Meaning:
    """`may_recover` is false where a new start could do harm, or is not wanted: it is told."""

    what: str
    may_recover: bool
    sentence: str

    @property
    def still(self) -> tuple[str, ...]:
        return STILL[self.what]


def meaning(notice: ServerNotice) -> Meaning | None:
    """None: nothing happened to a guest, or somebody asked for it."""
    if not notice.host or _INITIATOR not in notice.data:
        return None  # it is nowhere; or of a Nova that does not say who asked
    asked = bool(notice.data[_INITIATOR])
    if notice.event_type == UPDATE:
        return _error(notice, asked)
    if notice.event_type == POWER_OFF and not asked:
        return _off(notice)
    return None


def _error(notice: ServerNotice, asked: bool) -> Meaning | None:
    change = notice.change
    if change is None or change.state != ERROR or change.old_state == ERROR:
        return None
    was, task = change.old_state, change.old_task_state or change.task_state
    if was not in RAN | RESTED or task in GOING:
        return None
    if asked:
        if task is None:
            return None
        return Meaning(ERROR, False, f"an order failed ({task}), Nova shows it in error")
    if task not in (None, ITS_OWN):
        return Meaning(ERROR, False, f"an order was cut short ({task}), Nova shows it in error")
    if was in RESTED:
        return Meaning(ERROR, False, f"it was {was}, Nova shows it in error")
    return Meaning(ERROR, True, "Nova shows it in error, and nobody asked for anything")


def _off(notice: ServerNotice) -> Meaning | None:
    if notice.state not in RAN | {"paused"}:
        return None  # Nova ends what it thinks is stopped and runs
    rests = f"it was {notice.state}, and " if notice.state == "paused" else ""
    if notice.power_state == "crashed":
        return Meaning(CRASHED, not rests, f"{rests}it crashed, by what its hypervisor told Nova")
    if notice.power_state == "shutdown":
        said = f"{rests}it is switched off, nobody asked Nova for that, and Nova does not know why"
        return Meaning(POWERED_OFF, not rests, said)
    return None
