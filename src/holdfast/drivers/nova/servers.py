# SPDX-License-Identifier: Apache-2.0
"""The Servers and Moves ports on Nova: servers, images, evacuations, live migrations.

The status is Nova's `vm_state` under its public name. A server that is being rebuilt therefore
keeps its status and shows `rebuilding` as its task state, as in the simulated cloud. Locks stop
users, not Holdfast, because Holdfast is admin.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from openstack.exceptions import BadRequestException, NotFoundException

from holdfast.drivers.nova.directory import Directory, moment, services
from holdfast.drivers.nova.session import BASE, Edge, answer, failed, pages, supports
from holdfast.model.errors import Conflict, NotFound
from holdfast.nova.admission import is_preemptible
from holdfast.ports.cloud import Migration, Server

#: From this microversion on Nova can unshelve a server to a named host.
UNSHELVE_TO_HOST = "2.91"
#: Microversion for allocations of a provider; only consumers are read, which every version
#: returns.
PLACEMENT = "1.20"
LONGEST_REASON = 255
#: Properties of images that Holdfast made: the source server, which Nova itself records only if
#: the server's disk is not a volume; and the project that received the image.
MADE_FROM = "holdfast_from"
HANDED = "holdfast_for"

#: Nova's power state of a running guest.
POWERED = 1
STATUS = {
    "active": "ACTIVE",
    "building": "BUILD",
    "stopped": "SHUTOFF",
    "paused": "PAUSED",
    "suspended": "SUSPENDED",
    "rescued": "RESCUE",
    "resized": "VERIFY_RESIZE",
    "error": "ERROR",
    "shelved": "SHELVED",
    "shelved_offloaded": "SHELVED_OFFLOADED",
    "soft-delete": "SOFT_DELETED",
    "deleted": "DELETED",
}


class NovaServers:
    """The Servers port on Nova."""

    def __init__(self, edge: Edge, directory: Directory) -> None:
        self._edge = edge
        self._directory = directory

    def list(
        self, *, host: str | None = None, project_id: str | None = None, placed: bool = True
    ) -> Sequence[Server]:
        params: dict[str, Any] = {"all_tenants": "1"}
        if project_id is not None:
            params["project_id"] = project_id
        with self._edge.call("servers.list", host or "") as cloud:
            if host is None:
                return _listed(cloud, params)
            coming = self._consumers(cloud, host) if placed else set()
            own = self._directory.find(cloud, host).service_host
            servers = _listed(cloud, {**params, "host": own})
            by_id = {server.id: server for server in servers if server.host}
            for server_id in coming - by_id.keys():
                server = _on_its_way(cloud, server_id, own)
                if server is not None and project_id in (None, server.project_id):
                    by_id[server_id] = server
            return list(by_id.values())

    def show(self, server_id: str) -> Server:
        with self._edge.call("servers.show", server_id) as cloud:
            return show(cloud, server_id)

    def delete(self, server_id: str) -> None:
        """Delete the server at once, even if Nova is set up to reclaim deleted servers later.

        A second call does nothing, unless the host was found dead meanwhile: then the second call
        helps.
        """
        with self._edge.call("servers.delete", server_id) as cloud:
            try:
                act(cloud, server_id, "forceDelete")
            except NotFoundException:
                return

    def stop(self, server_id: str) -> None:
        self._act("servers.stop", server_id, "os-stop")

    def start(self, server_id: str) -> None:
        self._act("servers.start", server_id, "os-start")

    def suspend(self, server_id: str) -> None:
        self._act("servers.suspend", server_id, "suspend")

    def shelve(self, server_id: str) -> None:
        self._act("servers.shelve", server_id, "shelve")

    def unshelve(self, server_id: str, host: str | None = None) -> None:
        with self._edge.call("servers.unshelve", server_id) as cloud:
            if host is None:
                act(cloud, server_id, "unshelve")
                return
            if not supports(cloud.compute, UNSHELVE_TO_HOST):
                raise failed(
                    f"server {server_id}: this Nova cannot unshelve to a named host, only from"
                    f" microversion {UNSHELVE_TO_HOST} on; name none",
                    retryable=False,
                )
            own = self._directory.find(cloud, host).service_host
            act(cloud, server_id, "unshelve", {"host": own}, microversion=UNSHELVE_TO_HOST)

    def snapshot(self, server_id: str, name: str) -> str:
        """Create an image of the server and give it to the server's project; return the image id.

        The image exists at once in the status `queued`; its content follows. Nova makes Holdfast
        the owner, and the server's users would never see the image. An image that an earlier,
        interrupted call made is handed over now.
        """
        with self._edge.call("servers.snapshot", server_id) as cloud:
            owner = show(cloud, server_id).project_id
            made = [image["id"] for image in _images(cloud, server_id, name) if not _handed(image)]
            image_id = str(made[0]) if made else _new_image(cloud, server_id, name)
            _hand_over(cloud, image_id, owner)
            return image_id

    def images(self, server_id: str, name: str) -> Sequence[str]:
        """List the images of this name that the server's project owns."""
        with self._edge.call("servers.images", server_id) as cloud:
            return [image["id"] for image in _images(cloud, server_id, name) if _handed(image)]

    def image_properties(self, image_ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        properties = {}
        for image_id in image_ids:
            with self._edge.call("servers.image_properties", image_id) as cloud:
                try:
                    image = answer(cloud.image.get(f"/images/{quote(image_id, safe='')}"))
                except NotFoundException:
                    continue
                properties[image_id] = {
                    name: value for name, value in image.items() if isinstance(value, str)
                }
        return properties

    def lock(self, server_id: str, reason: str) -> None:
        details = {"locked_reason": reason[:LONGEST_REASON]} if reason else None
        self._act("servers.lock", server_id, "lock", details)

    def unlock(self, server_id: str) -> None:
        self._act("servers.unlock", server_id, "unlock")

    def reset(self, server_id: str, *, active: bool = False) -> None:
        wanted = {"state": "active" if active else "error"}
        self._act("servers.reset", server_id, "os-resetState", wanted)

    def _act(self, call_name: str, server_id: str, verb: str, details: Any = None) -> None:
        with self._edge.call(call_name, server_id) as cloud:
            act(cloud, server_id, verb, details)

    def _consumers(self, cloud: Any, host: str) -> set[str]:
        """Return the consumers of the host's resources in Placement.

        A server that the scheduler has placed is a consumer before Nova reports it on the host.
        """
        try:
            return _holders(cloud, self._directory.find(cloud, host).hypervisors)
        except NotFoundException:  # the host was recreated since its uuid was cached
            self._directory.forget(host)
        try:
            return _holders(cloud, self._directory.find(cloud, host).hypervisors)
        except NotFoundException:  # a compute that never reported has no provider, and no servers
            return set()


def act(
    cloud: Any, server_id: str, verb: str, details: Any = None, microversion: str = BASE
) -> Any:
    path = f"/servers/{server_id}/action"
    return answer(cloud.compute.post(path, json={verb: details}, microversion=microversion))


def _images(cloud: Any, server_id: str, name: str) -> list[dict[str, Any]]:
    """List images of this name that Holdfast made from the server.

    The name is compared here, because Glance would read a name that begins with `in:` as a list.
    """
    images = pages(cloud.image, "/images", "images", params={MADE_FROM: server_id})
    return [image for image in images if image["name"] == name]


def _new_image(cloud: Any, server_id: str, name: str) -> str:
    wanted = {"name": name, "metadata": {MADE_FROM: server_id}}
    return str(act(cloud, server_id, "createImage", wanted)["image_id"])


def _handed(image: Mapping[str, Any]) -> bool:
    """Return whether the server's project owns the image.

    The mark alone does not prove it: an image inherits the properties of the image that its server
    was made from.
    """
    return HANDED in image and image[HANDED] == image["owner"]


def _hand_over(cloud: Any, image_id: str, project_id: str) -> None:
    """Set owner and mark in a single write, so that the mark never exists without the owner."""
    wanted = [
        {"op": "replace", "path": "/owner", "value": project_id},
        {"op": "add", "path": f"/{HANDED}", "value": project_id},
    ]
    headers = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
    answer(cloud.image.patch(f"/images/{image_id}", json=wanted, headers=headers))


def show(cloud: Any, server_id: str) -> Server:
    body = answer(cloud.compute.get(f"/servers/{quote(server_id, safe='')}", microversion=BASE))
    if "server" not in body:  # `detail` and `..` are addresses of other things
        raise NotFound(f"there is no server {server_id}")
    return _server(body["server"])


def _listed(cloud: Any, params: Mapping[str, Any]) -> list[Server]:
    bodies = pages(cloud.compute, "/servers/detail", "servers", microversion=BASE, params=params)
    return [_server(body) for body in bodies]


def _holders(cloud: Any, providers: Sequence[str]) -> set[str]:
    consumers: set[str] = set()
    for provider in providers:
        path = f"/resource_providers/{provider}/allocations"
        consumers |= answer(cloud.placement.get(path, microversion=PLACEMENT))["allocations"].keys()
    return consumers


def _on_its_way(cloud: Any, server_id: str, host: str) -> Server | None:
    """Return a server that will come to the host, though Nova does not list it there yet.

    The server holds an allocation on the host. None if the server is gone (a stale allocation), if
    the consumer is a migration (it holds the source of a move), or if the server is on another
    host (evacuated from here, or still there). A server that has arrived since, waits on the host
    for its deletion, or has no host yet is returned.
    """
    try:
        server = show(cloud, server_id)
    except NotFoundException:
        return None
    if server.host is not None:
        return server if server.host == host else None
    return server if server.status == "BUILD" or server.task_state else None


def _server(body: Mapping[str, Any]) -> Server:
    if "flavor" not in body:  # Nova's short form while the cell's database is away
        raise failed(f"server {body['id']}: Nova cannot reach its cell", retryable=True)
    status = STATUS.get(body["OS-EXT-STS:vm_state"], str(body["status"]))
    task = body["OS-EXT-STS:task_state"]
    # Nova reports the server as offloaded a moment before it clears the host.
    nowhere = status == "SHELVED_OFFLOADED" and not task
    flavor = body["flavor"]
    return Server(
        id=body["id"],
        name=body["name"],
        project_id=body["tenant_id"],
        host=None if nowhere else body["OS-EXT-SRV-ATTR:host"] or None,
        status=status,
        vcpus=flavor["vcpus"],
        memory_mb=flavor["ram"],
        disk_gb=flavor["disk"],
        task_state=task,
        locked=body["locked"],
        locked_reason=body["locked_reason"] or "",
        flavor=flavor["original_name"],
        preemptible=is_preemptible(flavor.get("extra_specs") or {}),  # hidden from some roles
        metadata=dict(body["metadata"]),
        extra_specs=dict(flavor.get("extra_specs") or {}),
        image_id=(body.get("image") or {}).get("id", ""),  # "" for a server booted from a volume
        user_id=body["user_id"],
        created_at=datetime.fromisoformat(body["created"]),
        powered=body.get("OS-EXT-STS:power_state") == POWERED,
    )


#: From this microversion on an evacuated server ends stopped; before, it keeps its power state.
ENDS_STOPPED = "2.95"
#: Evacuation requests sent at once. With many at once, Nova's scheduler sends all servers to the
#: host that was emptiest before the first arrived. Measured with 20 servers and three hosts: one
#: host got 20 with eight requests at once, up to 17 with two, 7 to 15 with one.
AT_ONCE = 1
#: Evacuations in one page: more than leave a host between two polls, few enough to be cheap.
NEWEST = 100
#: By Nova's status; `completed` is a `done` whose source host has restarted since.
MIGRATION_STATUS = {
    "accepted": "accepted",
    "done": "done",
    "completed": "done",
    "failed": "failed",
    "error": "failed",
    "cancelled": "failed",
}


class NovaMoves:
    """The Moves port on Nova: evacuations, live migrations, and their migration records.

    Nova accepts an evacuation before it knows the destination: an evacuation that finds no room
    shows as a failed migration and a server in ERROR. A named host is a wish; the scheduler's
    filters decide. Nova reports the server as stopped a moment before it reports the new host:
    only the migration record with the status `done` proves both.
    """

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
        last_read: Server | None = None,
    ) -> None:
        """Evacuate the server.

        A Nova older than 2.95 restores the server's power state instead of leaving it stopped.
        """
        with self._edge.call("moves.evacuate", server_id) as cloud:
            # Nova itself would accept a second evacuation beside the first, and revive a
            # deleted server.
            task = (last_read or show(cloud, server_id)).task_state
            if task in ("rebuilding", "deleting"):
                raise Conflict(f"server {server_id}: cannot evacuate it while it is {task}")
            wish = {"host": self._directory.find(cloud, host).service_host} if host else {}
            stopped = not as_it_was and supports(cloud.compute, ENDS_STOPPED)
            version = ENDS_STOPPED if stopped else BASE
            try:
                with self._in_turn(host):
                    act(cloud, server_id, "evacuate", wish, microversion=version)
            except BadRequestException as refused:  # service up, or already on the target
                raise Conflict(f"server {server_id}: {refused.details}") from refused

    @contextlib.contextmanager
    def _in_turn(self, host: str | None) -> Iterator[None]:
        """Limit parallel requests to AT_ONCE if the scheduler chooses the host."""
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
        """Live-migrate the server; Nova also copies disks if the hosts share no storage."""
        with self._edge.call("moves.live_migrate", server_id) as cloud:
            server = show(cloud, server_id)
            wish = self._directory.find(cloud, host).service_host if host else None
            # Nova itself would find these reasons later, if at all.
            why = _stays(cloud, server, wish)
            if why:
                raise Conflict(f"server {server_id}: cannot live migrate it while {why}")
            wanted = {"host": wish, "block_migration": "auto"}
            try:
                act(cloud, server_id, "os-migrateLive", wanted)
            except BadRequestException as refused:  # its devices, shares or keys cannot move
                raise Conflict(f"server {server_id}: {refused.details}") from refused

    def migrations(
        self, *, source_host: str, kind: str = "evacuation", after: int = 0
    ) -> Sequence[Migration]:
        with self._edge.call("moves.migrations", source_host) as cloud:
            own = self._directory.find(cloud, source_host).service_host
            params = {"migration_type": kind, "source_compute": own}
            bodies = _newest_first(cloud, params, after)
            migrations = [_migration(body) for body in bodies if int(body["id"]) > after]
            return sorted(migrations, key=lambda move: int(move.id))


def _newest_first(cloud: Any, params: Mapping[str, str], after: int) -> Iterator[dict[str, Any]]:
    """Yield the host's migrations until a page reaches back to the number `after`.

    Nova sorts by the time of creation, and its API servers' clocks differ: a whole page is read.
    Nova filters out no evacuation after it has cut the page; of other kinds Nova filters out some,
    so that only an empty page is the last one.
    """
    evacuations = params["migration_type"] == "evacuation"
    limit = {"limit": str(NEWEST)} if evacuations else {}
    bodies = pages(
        cloud.compute,
        "/os-migrations",
        "migrations",
        microversion=BASE,
        params={**params, **limit},
        until_empty=not evacuations,
    )
    for count, body in enumerate(bodies, 1):
        yield body
        if count >= NEWEST and int(body["id"]) <= after:
            return


def _stays(cloud: Any, server: Server, wish: str | None) -> str | None:
    """Return why the server cannot be live-migrated; None if it can."""
    if server.task_state or server.status != "ACTIVE" or server.host is None:
        return f"it is {server.task_state or server.status}"
    if wish == server.host:
        return f"it is on {wish} already"
    if any(service["state"] != "up" for service in services(cloud, server.host)):
        return f"the compute service of {server.host} is down; evacuate it"
    return None


def _migration(body: Mapping[str, Any]) -> Migration:
    created = moment(body["created_at"])
    assert created is not None
    return Migration(
        id=str(body["id"]),
        server_id=body["instance_uuid"],
        source_host=body["source_compute"],
        dest_host=body["dest_compute"],
        type=body["migration_type"],
        status=MIGRATION_STATUS.get(body["status"], "running"),
        created_at=created,
    )
