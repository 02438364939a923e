# SPDX-License-Identifier: Apache-2.0
"""The simulated side of the Services port: the nova-compute of each host."""

import sqlite3
from collections.abc import Sequence

from holdfast.drivers.cloud.sim.wire import Wire
from holdfast.drivers.cloud.sim.world import World, moment
from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Service


class SimServices:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> Sequence[Service]:
        with self._wire.look("services.list") as world:
            rows = world.all("SELECT * FROM hosts ORDER BY name")
            return [_service(world, row) for row in rows]

    def disable(self, host: str, reason: str) -> None:
        with self._wire.call("services.disable", host) as world:
            row = world.host(host)
            world.subject = row["name"]
            world.run(
                "UPDATE hosts SET enabled = 0, disabled_reason = ?1, changed_at = ?2"
                " WHERE id = ?3 AND (enabled OR disabled_reason != ?1)",
                *(reason, world.now, row["id"]),
            )
            unheard = row["enabled"] and _unheard(world, row)
        if unheard:
            self._wire.time_out("services.disable")

    def enable(self, host: str) -> None:
        with self._wire.call("services.enable", host) as world:
            row = world.host(host)
            world.subject = row["name"]
            world.run(
                "UPDATE hosts SET enabled = 1, disabled_reason = '', changed_at = ?"
                " WHERE id = ? AND NOT enabled",
                *(world.now, row["id"]),
            )
            unheard = not row["enabled"] and _unheard(world, row)
        if unheard:
            self._wire.time_out("services.enable")

    def force_down(self, host: str) -> None:
        with self._wire.call("services.force_down", host) as world:
            row = world.host(host)
            world.subject = row["name"]
            world.run(
                "UPDATE hosts SET forced_down = 1, changed_at = ? WHERE id = ? AND NOT forced_down",
                *(world.now, row["id"]),
            )

    def unforce(self, host: str) -> None:
        with self._wire.call("services.unforce", host) as world:
            row = world.host(host)
            world.subject = row["name"]
            if not row["forced_down"]:
                return
            # A restart of the host cleans up after evacuations; before that, Nova says no.
            left = world.all(
                "SELECT id FROM migrations WHERE source_id = ? AND type = 'evacuation'"
                " AND status = 'done' AND NOT cleaned",
                row["id"],
            )
            if left:
                raise Conflict(
                    f"host {row['name']}: {len(left)} evacuations from it are recorded as"
                    " done and its service has not restarted since; restart it first"
                )
            world.run(
                "UPDATE hosts SET forced_down = 0, changed_at = ? WHERE id = ?",
                *(world.now, row["id"]),
            )


def _unheard(world: World, row: sqlite3.Row) -> bool:
    """Whether the cloud now waits in vain for the host to say that it has heard: it does not know
    that it is dead, or cut off."""
    return row["failed_at"] is not None and world.looks_up(row)


def _service(world: World, row: sqlite3.Row) -> Service:
    return Service(
        host=row["name"],
        state="up" if world.looks_up(row) else "down",
        enabled=bool(row["enabled"]),
        disabled_reason=row["disabled_reason"],
        forced_down=bool(row["forced_down"]),
        updated_at=moment(_updated_at(world, row)),
    )


def _updated_at(world: World, row: sqlite3.Row) -> float:
    """When the host reported last, or somebody changed its row since, as Nova's."""
    silent, every = row["failed_at"], world.settings.report_s
    heard: float = world.now if silent is None else silent
    if every:
        heard = max(heard - heard % every, row["restarted_at"] or 0.0)
    return heard if silent is None and not every else max(heard, row["changed_at"])
