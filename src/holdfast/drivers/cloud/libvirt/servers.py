# SPDX-License-Identifier: Apache-2.0
"""The libvirt side of the Servers port: domains.

Stopped is switched off, at once. Shelved is off and on no host: its definition stays where it was
until it runs elsewhere. Nothing is deleted, saved or imaged here: recovery needs none of it, and a
guest of this cloud has nobody else to bring it back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.drivers.cloud.libvirt import guest, hands
from holdfast.drivers.cloud.libvirt.book import SHELVED, Known
from holdfast.drivers.cloud.libvirt.deeds import Deeds
from holdfast.drivers.cloud.libvirt.place import Rooms
from holdfast.drivers.cloud.libvirt.refusing import refused
from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Server

_HERE = frozenset({"ACTIVE", "SHUTOFF", "SUSPENDED", "PAUSED", "ERROR"})


class LibvirtServers:
    def __init__(self, deeds: Deeds, rooms: Rooms) -> None:
        self._deeds = deeds
        self._looks = deeds.looks
        self._book = deeds.book
        self._rooms = rooms

    def list(self, *, host: str | None = None, project_id: str | None = None) -> Sequence[Server]:
        self._deeds.settle()
        name = self._looks.name(host) if host is not None else None
        if name is None:
            self._looks.all()
        else:
            self._looks.host(name)
        found = [one for one in self._book.all() if name in (None, _place(one))]
        servers = [one.server() for one in found]
        return [one for one in servers if project_id in (None, one.project_id)]

    def show(self, server_id: str) -> Server:
        known, live = self._seen(server_id)
        return replace(known.server(), live=live)

    def delete(self, server_id: str) -> None:
        try:
            self._book.find(server_id)
        except NotFound:
            return
        refused("deletes no guests: virsh undefine")

    def stop(self, server_id: str) -> None:
        known = self._ready(server_id, "stop", _HERE - {"SHUTOFF"})
        host = _host(known)

        def act(doing: Known) -> None:
            self._deeds.ask(doing, host, "stop", hands.stop)
            self._book.end(doing, status="SHUTOFF")

        self._deeds.do(known, "powering-off", act, runs=False)

    def start(self, server_id: str) -> None:
        known = self._ready(server_id, "start", frozenset({"SHUTOFF", "SUSPENDED"}))
        host = _host(known)

        def act(doing: Known) -> None:
            self._deeds.runs_nowhere(doing)
            self._deeds.ask(doing, host, "start", hands.start)
            self._book.end(doing, status="ACTIVE")

        self._deeds.do(known, "powering-on", act, runs=True)

    def suspend(self, server_id: str) -> None:
        self._fresh(server_id)
        refused("suspends no guests, whose memory would be on one host: virsh managedsave")

    def shelve(self, server_id: str) -> None:
        known = self._ready(server_id, "shelve", _HERE)
        host = _host(known)
        if not known.persistent:
            raise Conflict(f"server {server_id}: it would be lost: virsh define it first")
        if why := self.why_stays(known):
            raise Conflict(f"server {server_id}: {why}")

        def act(doing: Known) -> None:
            self._deeds.ask(doing, host, "stop", hands.stop)
            self._book.end(doing, status=SHELVED, left_host=host)

        self._deeds.do(known, "shelving", act, runs=False)

    def unshelve(self, server_id: str, host: str | None = None) -> None:
        known = self._ready(server_id, "unshelve", frozenset({SHELVED}))
        left = known.left_host
        with self._rooms.choosing():
            dest = self._rooms.choose(known, host, self._looks.running(server_id), unwanted=left)
            if dest is None:
                return  # it stays shelved

            def act(doing: Known) -> None:
                self._deeds.bring_up(doing, dest)

            self._deeds.do(known, "unshelving", act, dest=dest, runs=True)

    def snapshot(self, server_id: str, name: str) -> str:
        self._fresh(server_id)
        refused("keeps no images: copy the guest's disks")

    def image_properties(self, image_ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        return {}

    def images(self, server_id: str, name: str) -> Sequence[str]:
        return []

    def lock(self, server_id: str, reason: str) -> None:
        self._book.lock(server_id, reason)

    def unlock(self, server_id: str) -> None:
        self._book.unlock(server_id)

    def reset(self, server_id: str, *, active: bool = False) -> None:
        self._book.reset(server_id, error=not active)

    def why_stays(self, known: Known) -> str:
        """Why it cannot leave its host; "" if it can."""
        shared = self._looks.settings.shared
        return guest.stays(guest.facts(known.xml), shared, autostart=known.autostart)

    def _fresh(self, server_id: str) -> Known:
        return self._seen(server_id)[0]

    def _seen(self, server_id: str) -> tuple[Known, bool]:
        """As it is known now, and whether its host has just said so."""
        self._deeds.settle()
        try:
            live = self._looks.guest(server_id)
            return self._book.find(server_id), live
        except NotFound:
            self._looks.all()  # it may be new, or have been moved
        return self._book.find(server_id), False

    def _ready(self, server_id: str, verb: str, allowed: frozenset[str]) -> Known:
        known = self._fresh(server_id)
        state = known.under_way or (known.shown if known.shown not in allowed else None)
        if state:
            raise Conflict(f"server {server_id}: cannot {verb} it while it is {state}")
        return known


def _host(known: Known) -> str:
    if known.host is None:
        raise Conflict(f"server {known.uuid}: it is on no host")
    return known.host


def _place(known: Known) -> str | None:
    """Where it is, or will be if it is nowhere yet."""
    return known.host or known.dest
