# SPDX-License-Identifier: Apache-2.0
"""The Nova side of the Moves port: evacuations, live migrations and their traces.

Nova accepts an evacuation before it knows where to: one that finds no room shows as a failed
migration and a server in ERROR. A host that is named is a wish; the scheduler's filters decide.
Nova says that the server is stopped a moment before it says that it is on the new host: only its
migration, when it is `done`, proves both.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openstack.exceptions import BadRequestException

from holdfast.drivers.cloud.nova.directory import Directory, services
from holdfast.drivers.cloud.nova.edge import BASE, Edge, failed, pages, supports
from holdfast.drivers.cloud.nova.servers import act, show
from holdfast.drivers.cloud.nova.services import moment
from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Migration, Server

#: From here on the evacuated server ends stopped; before, it ends as it was.
ENDS_STOPPED = "2.95"
#: Asked for many at once, Nova's scheduler sends them all to the host that looked emptiest before
#: the first had come: of 20 servers, one of three hosts got 20 with eight requests at once, up to
#: 17 with two, 7 to 15 with one.
AT_ONCE = 1
#: In Nova's words; `completed` is a `done` whose source has restarted since.
STATUS = {
    "accepted": "accepted",
    "done": "done",
    "completed": "done",
    "failed": "failed",
    "error": "failed",
    "cancelled": "failed",
}


class NovaMoves:
    def __init__(self, edge: Edge, directory: Directory) -> None:
        self._edge = edge
        self._directory = directory
        self._turn = threading.BoundedSemaphore(AT_ONCE)

    def evacuate(
        self,
        server_id: str,
        host: str | None = None,
        *,
        as_it_was: bool = False,
        seen: Server | None = None,
    ) -> None:
        """A Nova older than 2.95 brings the server back as it was, not stopped."""
        with self._edge.call("moves.evacuate", server_id) as cloud:
            # Nova itself would take a second evacuation beside the first, and revive the deleted.
            task = (seen or show(cloud, server_id)).task_state
            if task in ("rebuilding", "deleting"):
                raise Conflict(f"server {server_id}: cannot evacuate it while it is {task}")
            wish = {"host": self._directory.find(cloud, host).service_host} if host else {}
            stopped = not as_it_was and supports(cloud.compute, ENDS_STOPPED)
            version = ENDS_STOPPED if stopped else BASE
            try:
                with self._in_turn(host):
                    act(cloud, server_id, "evacuate", wish, microversion=version)
            except BadRequestException as refused:  # its service looks up, or it is there already
                raise Conflict(f"server {server_id}: {refused.details}") from refused

    @contextlib.contextmanager
    def _in_turn(self, host: str | None) -> Iterator[None]:
        """Few at a time where the scheduler is to choose."""
        if host is not None:
            yield
            return
        if not self._turn.acquire(timeout=max(0.0, self._edge.time_left())):
            raise failed("many evacuations are being asked for: not asked yet", retryable=True)
        try:
            yield
        finally:
            self._turn.release()

    def live_migrate(self, server_id: str, host: str | None = None) -> None:
        """Disks go along where hosts share none: Nova finds that out."""
        with self._edge.call("moves.live_migrate", server_id) as cloud:
            seen = show(cloud, server_id)
            wish = self._directory.find(cloud, host).service_host if host else None
            # All of this Nova itself would find out later, if at all.
            why = _stays(cloud, seen, wish)
            if why:
                raise Conflict(f"server {server_id}: cannot live migrate it while {why}")
            wanted = {"host": wish, "block_migration": "auto"}
            try:
                act(cloud, server_id, "os-migrateLive", wanted)
            except BadRequestException as refused:  # its devices, shares or keys cannot move
                raise Conflict(f"server {server_id}: {refused.details}") from refused

    def migrations(self, *, source_host: str, kind: str = "evacuation") -> Sequence[Migration]:
        with self._edge.call("moves.migrations", source_host) as cloud:
            own = self._directory.find(cloud, source_host).service_host
            asked = {"migration_type": kind, "source_compute": own}
            # Until a page is empty: Nova hides some after it cut the page.
            found = pages(
                cloud.compute,
                "/os-migrations",
                "migrations",
                microversion=BASE,
                params=asked,
                until_empty=True,
            )
            return sorted((_migration(one) for one in found), key=lambda move: int(move.id))


def _stays(cloud: Any, server: Server, wish: str | None) -> str | None:
    """Why the server cannot be moved while it runs."""
    if server.task_state or server.status != "ACTIVE" or server.host is None:
        return f"it is {server.task_state or server.status}"
    if wish == server.host:
        return f"it is on {wish} already"
    if any(one["state"] != "up" for one in services(cloud, server.host)):
        return f"the compute service of {server.host} is down; evacuate it"
    return None


def _migration(one: Mapping[str, Any]) -> Migration:
    created = moment(one["created_at"])
    assert created is not None
    return Migration(
        id=str(one["id"]),
        server_id=one["instance_uuid"],
        source_host=one["source_compute"],
        dest_host=one["dest_compute"],
        type=one["migration_type"],
        status=STATUS.get(one["status"], "running"),
        created_at=created,
    )
