# SPDX-License-Identifier: Apache-2.0
"""How far a recovery is, as the contract tells it: its steps by the names that clients know."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.api.instance_ha_v1.dates import spaced
from holdfast.model import operation
from holdfast.model.incident import GUEST, HOST, PROCESS, STEPS, WORK
from holdfast.store.notifications import Progress

#: Of each kind of incident what clients know its steps by; all others keep their names.
_NAMES: Mapping[str, Mapping[str, str]] = {
    HOST: {
        "tell": "DisableComputeServiceTask",
        "prepare": "PrepareHAEnabledInstancesTask",
        "move": "EvacuateInstancesTask",
    },
    GUEST: {
        "stop": "StopInstanceTask",
        "start": "StartInstanceTask",
        "confirm": "ConfirmInstanceActiveTask",
    },
    PROCESS: {
        "disable": "DisableComputeNodeTask",
        "confirm": "ConfirmComputeNodeDisabledTask",
    },
}
_KIND = {work: kind for kind, work in WORK.items()}
_STATES = {operation.DONE: "SUCCESS", operation.ERROR: "FAILURE"}


def details(progress: Progress | None, *, ended_well: bool = False) -> list[dict[str, Any]]:
    """The steps that are done, and the one that it is at or at which it ended. A guest that died
    with its host has the host's. `ended_well`: its report says so already, by the same commit as
    the sentence of the step that ended it; that this step is done is written down after."""
    if progress is None:
        return []
    kind = _KIND[progress.kind]
    names = _NAMES[kind]
    shown = [
        _item(
            names.get(row["name"], row["name"]),
            _STATES.get(row["status"], "RUNNING"),
            row["finished_at"],
            row["sentence"],
        )
        for row in progress.steps
    ]
    current = _current(STEPS[kind], [row["name"] for row in progress.steps])
    over = progress.status in (operation.DONE, operation.CANCELLED)
    ending = ended_well and progress.status in operation.OPEN
    if current and not over and (progress.sentence or not ending):
        state = "SUCCESS" if ending else _STATES.get(progress.status, "RUNNING")
        shown.append(_item(names.get(current, current), state, progress.at, progress.sentence))
    return shown


def _current(order: Sequence[str], done: Sequence[str]) -> str | None:
    """The first of our steps after all that are done."""
    reached = max((order.index(name) + 1 for name in done if name in order), default=0)
    return order[reached] if reached < len(order) else None


def _item(name: str, state: str, at: datetime | None, message: str) -> dict[str, Any]:
    progress = 1.0 if state == "SUCCESS" else 0.0
    said = {"timestamp": spaced(at), "progress": str(progress), "message": message}
    return {"name": name, "progress": progress, "state": state, "progress_details": [said]}
