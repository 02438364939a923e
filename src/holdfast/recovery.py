# SPDX-License-Identifier: Apache-2.0
"""Puts the recovery of a manager together: what `service.py` is to a process."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stevedore import extension

from holdfast.daemon import BadSetup
from holdfast.drivers.fence import connect as connect_fence
from holdfast.heal import alarms, back, guest, host, intake, moves, observed, process, votes
from holdfast.heal.desk import Announce, Desk, OwnStep
from holdfast.model.errors import HoldfastError
from holdfast.ports.cloud import Cloud
from holdfast.ports.fence import Fence
from holdfast.watch.hosts import HostWatch
from holdfast.work.kind import Kind

if TYPE_CHECKING:
    from holdfast.service import Core

STEPS = "holdfast.recovery_steps"


class Recovering:
    """The kinds of work of recovery, and what they have at hand."""

    def __init__(
        self,
        core: "Core",
        cloud: Cloud,
        watch: HostWatch,
        *,
        new_id: Callable[[], str],
        ring: Callable[[], None],
        announce: Announce,
    ) -> None:
        conf = core.conf
        reservation = conf.reservation
        self.fence = fence(core)
        self.desk = Desk(
            incidents=core.store.incidents,
            moves=core.store.vmoves,
            votes=core.store.votes,
            cloud=cloud,
            fence=self.fence,
            settings=conf.recovery,
            new_id=new_id,
            see=watch.see,
            clock=core.clock,
            own_steps=own_steps(),
            ring=ring,
            announce=announce,
            freepool=conf.cloud.freepool,
            repairs=lambda: bool(reservation.repair),
            mass_failure=lambda: (
                reservation.mass_failure_few,
                reservation.mass_failure_some,
                reservation.mass_failure_many,
            ),
        )
        self.kinds = {**kinds(self.desk), **alarms.kinds(self.desk, core.store.alarms)}


def kinds(desk: Desk) -> dict[str, Kind]:
    return {
        name: kind
        for room in (intake, observed, votes, host, guest, process, moves, back)
        for name, kind in room.kinds(desk).items()
    }


def fence(core: "Core") -> Fence:
    try:
        return connect_fence(core.conf, core.clock)
    except HoldfastError as error:
        raise BadSetup(error.message) from error


def own_steps() -> Mapping[str, OwnStep]:
    """Steps that a site has installed; one that does not load is an error, not a log line."""

    def failed(_manager: Any, entry: Any, error: BaseException) -> None:
        raise BadSetup(f"recovery step {entry.name} cannot be loaded: {error}") from error

    found: Any = extension.ExtensionManager(STEPS, on_load_failure_callback=failed)
    return {item.name: item.plugin for item in found}
