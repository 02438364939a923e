# SPDX-License-Identifier: Apache-2.0
"""The guest monitor of the control plane: what Nova says about servers that nobody asked for.

A second or third opinion beside the agents of the hosts; off unless [monitors] enabled names it.
It only listens: a server that has been in error for weeks is no news.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from oslo_config import cfg

from holdfast.model.guest_word import GuestWord
from holdfast.model.notice import Notice, ServerNotice
from holdfast.model.observed import FAILED, NOTED
from holdfast.model.standing import Sighting
from holdfast.ports.cloud import Cloud
from holdfast.watch.instance_meaning import POWER_OFF, POWERED_OFF, UPDATE, Meaning, meaning

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

    def heard(self, notice: Notice) -> Sequence[GuestWord]:
        if not isinstance(notice, ServerNotice):
            return []
        meant = meaning(notice)
        if meant is None:
            return []
        wish = self._wish(meant)
        if wish == IGNORE:
            return []
        failed = wish == RECOVER and meant.may_recover
        return [_word(notice, meant, FAILED if failed else NOTED)]

    def states(self, cloud: Cloud, at: datetime) -> Sequence[Sighting]:
        return []

    def _wish(self, meant: Meaning) -> str:
        options: Any = self._conf.monitors
        said = options.guest_power_offs if meant.what == POWERED_OFF else options.guest_errors
        return str(said)


def _word(notice: ServerNotice, meant: Meaning, state: str) -> GuestWord:
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
    return GuestWord(
        observer=OBSERVER,
        server_id=notice.server_id,
        host=notice.host or "",
        state=state,
        at=notice.at,
        key=f"{notice.event_type}/{notice.message_id}",
        sentence=meant.sentence,
        evidence={name: value for name, value in told.items() if value},
    )
