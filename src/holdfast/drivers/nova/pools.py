# SPDX-License-Identifier: Apache-2.0
"""The Pools port on Nova: host aggregates, never with an availability zone.

Nova's database and the scheduler's memory may differ: `nova-api` writes the database first and
notifies the schedulers afterwards, and the notification is lost if the broker is away. So every
change here counts as made only after the driver has resynced the scheduler with the aggregate's
present state (see `Fanout`), even if the change was already in place. The cheapest call that
resyncs the scheduler is a metadata write without keys.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openstack.exceptions import BadRequestException, ConflictException, NotFoundException

from holdfast.drivers.nova.directory import Directory
from holdfast.drivers.nova.session import BASE, Edge, answer, failed
from holdfast.model.errors import Conflict, InvalidInput
from holdfast.ports.cloud import Pool


@dataclass
class _Round:
    """The state of the resyncs of a subject: how many have begun, and which has completed."""

    users: int = 0
    begun: int = 0
    done: int = 0
    running: bool = False
    turn: threading.Condition = field(default_factory=threading.Condition)


class Fanout:
    """Combines resyncs of the scheduler: many callers, few messages.

    A nova-scheduler learns of an aggregate's change by a message that holds the members as the API
    read them *before* the change, plus that change. Two changes at once each miss the other, and
    the later message wins: in the scheduler's memory a member is missing until it restarts. So
    every caller that changed an aggregate has its present state sent again, and concurrent callers
    share a resync. When `resync` returns True, a resync that began after the call has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rounds: dict[str, _Round] = {}

    def resync(self, subject: str, send: Callable[[], None], patience_s: float) -> bool:
        """Run `send`, or wait for another caller's later run; False if time runs out."""
        with self._round(subject) as shared:
            with shared.turn:
                mine = shared.begun + 1  # a running resync may have read before our change

                def ready() -> bool:
                    return shared.done >= mine or not shared.running

                if not shared.turn.wait_for(ready, max(0.0, patience_s)):
                    return False
                if shared.done >= mine:
                    return True
                shared.running = True
                shared.begun += 1
                number = shared.begun
            sent = False
            try:
                send()
                sent = True
            finally:
                with shared.turn:
                    shared.running = False
                    if sent:
                        shared.done = number
                    shared.turn.notify_all()
            return True

    @contextlib.contextmanager
    def _round(self, subject: str) -> Iterator[_Round]:
        with self._lock:
            shared = self._rounds.setdefault(subject, _Round())
            shared.users += 1
        try:
            yield shared
        finally:
            with self._lock:
                shared.users -= 1
                if not shared.users:
                    del self._rounds[subject]


ZONE = "availability_zone"


class NovaPools:
    """The Pools port on Nova's host aggregates."""

    def __init__(self, edge: Edge, directory: Directory) -> None:
        self._edge = edge
        self._directory = directory
        self._fanout = Fanout()

    def list(self) -> Sequence[Pool]:
        with self._edge.call("pools.list") as cloud:
            return _all(cloud)

    def find(self, name: str) -> Pool | None:
        with self._edge.call("pools.find", name) as cloud:
            return next((pool for pool in _all(cloud) if pool.name == name), None)

    def create(self, name: str, metadata: Mapping[str, str]) -> Pool:
        """Create the aggregate and set its metadata, in two Nova calls.

        A process that dies between them leaves a pool without metadata.
        """
        _no_zone(metadata)
        with self._edge.call("pools.create", name) as cloud:
            body = {"aggregate": {"name": name}}
            made = answer(cloud.compute.post("/os-aggregates", json=body, microversion=BASE))
            pool_id = str(made["aggregate"]["id"])
            return _pool(_act(cloud, pool_id, "set_metadata", metadata=dict(metadata)))

    def set_metadata(self, pool_id: str, metadata: Mapping[str, str]) -> None:
        """Replace the metadata.

        Nova merges metadata, so the driver sends unwanted keys with None, which deletes them.
        """
        _no_zone(metadata)
        with self._edge.call("pools.set_metadata", pool_id) as cloud:
            old = _show(cloud, pool_id).metadata
            gone = {key: None for key in old if key not in metadata and key != ZONE}
            _act(cloud, pool_id, "set_metadata", metadata={**gone, **metadata})
            self._resend(cloud, pool_id)

    def resync(self, pool_id: str) -> None:
        with self._edge.call("pools.resync", pool_id) as cloud:
            self._resend(cloud, pool_id)

    def add_host(self, pool_id: str, host: str) -> None:
        with self._edge.call("pools.add_host", f"{pool_id}/{host}") as cloud:
            try:
                self._change(cloud, pool_id, "add_host", host)
            except ConflictException:
                own = self._directory.find(cloud, host).service_host
                if own not in _show(cloud, pool_id).hosts:
                    raise  # most likely the pool has an availability zone
            self._resend(cloud, pool_id)

    def remove_host(self, pool_id: str, host: str) -> None:
        with self._edge.call("pools.remove_host", f"{pool_id}/{host}") as cloud:
            try:
                self._change(cloud, pool_id, "remove_host", host)
            except NotFoundException:
                own = self._directory.find(cloud, host).service_host
                try:
                    left = own not in _show(cloud, pool_id).hosts
                except NotFoundException:
                    return  # the pool is gone, with all members
                if not left:
                    raise
            except ConflictException as busy:  # Placement's generation changed four times
                raise failed(
                    f"pool {pool_id}: {host} cannot leave now: {busy.details}", retryable=True
                ) from busy
            self._resend(cloud, pool_id)

    def rename(self, pool_id: str, name: str) -> None:
        body = {"aggregate": {"name": name}}
        with self._edge.call("pools.rename", pool_id) as cloud:
            answer(cloud.compute.put(_path(pool_id), json=body, microversion=BASE))
            self._resend(cloud, pool_id)

    def delete(self, pool_id: str) -> None:
        with self._edge.call("pools.delete", pool_id) as cloud:
            try:
                answer(cloud.compute.delete(_path(pool_id), microversion=BASE))
            except NotFoundException:
                return
            except BadRequestException as refused:
                sentence = f"pool {pool_id}: {refused.details} Take its hosts out first"
                raise Conflict(sentence) from refused

    def _change(self, cloud: Any, pool_id: str, verb: str, host: str) -> None:
        """Add or remove the host under the given name, or under Nova's name if that is unknown."""
        try:
            _act(cloud, pool_id, verb, host=host)
        except NotFoundException:
            own = self._directory.find(cloud, host).service_host
            if own == host:
                raise
            _act(cloud, pool_id, verb, host=own)

    def _resend(self, cloud: Any, pool_id: str) -> None:
        def again() -> None:
            _act(cloud, pool_id, "set_metadata", metadata={})

        if not self._fanout.resync(pool_id, again, self._edge.time_left()):
            raise failed(
                f"pool {pool_id}: changed, but the resync did not end in time", retryable=True
            )


def _path(pool_id: str) -> str:
    """Return the aggregate's URL path; id 0 for an invalid id, since Nova would answer 400."""
    valid = pool_id.isdecimal() and str(int(pool_id)) == pool_id
    return f"/os-aggregates/{pool_id if valid else 0}"


def _act(cloud: Any, pool_id: str, verb: str, **details: Any) -> dict[str, Any]:
    path = f"{_path(pool_id)}/action"
    made = answer(cloud.compute.post(path, json={verb: details}, microversion=BASE))
    return dict(made["aggregate"])


def _show(cloud: Any, pool_id: str) -> Pool:
    body = answer(cloud.compute.get(_path(pool_id), microversion=BASE))
    return _pool(body["aggregate"])


def _all(cloud: Any) -> list[Pool]:
    """List all pools; Nova's list has no pages and no filter."""
    body = answer(cloud.compute.get("/os-aggregates", microversion=BASE))
    return [_pool(aggregate) for aggregate in body["aggregates"]]


def _pool(aggregate: Mapping[str, Any]) -> Pool:
    return Pool(
        id=str(aggregate["id"]),
        name=aggregate["name"],
        hosts=tuple(sorted(aggregate["hosts"])),
        metadata=dict(aggregate["metadata"]),
    )


def _no_zone(metadata: Mapping[str, str]) -> None:
    if ZONE in metadata:
        raise InvalidInput(
            f"{ZONE} is no metadata of a pool: Nova would not let hosts with servers in or out"
        )
