# SPDX-License-Identifier: Apache-2.0
"""Looking at hosts: all at once, none longer than it may take, and what they say is written down.

Each look at a host reads the XML of all its guests, so that it is known when the host is dead.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import libvirt

from holdfast.drivers.cloud.libvirt import guest
from holdfast.drivers.cloud.libvirt.book import Book, Seen
from holdfast.drivers.cloud.libvirt.line import Line
from holdfast.drivers.cloud.libvirt.settings import Settings
from holdfast.drivers.guests import words
from holdfast.drivers.guests.calls import Call
from holdfast.model.errors import DriverError, NotFound
from holdfast.model.host import same

T = TypeVar("T")
#: How old an answer to who is there may be.
FRESH_S = 1.0
#: How long a host is waited for that did not answer the last time.
AGAIN_S = 0.3
#: As it will be at its next start, with its passwords, and so that other versions can read it.
AS_DEFINED = (
    libvirt.VIR_DOMAIN_XML_INACTIVE
    | libvirt.VIR_DOMAIN_XML_SECURE
    | libvirt.VIR_DOMAIN_XML_MIGRATABLE
)


class Looks:
    def __init__(self, settings: Settings, book: Book) -> None:
        self.settings = settings
        self.book = book
        self.lines: Mapping[str, Line] = {one.name: Line(one) for one in settings.hosts}
        self._last: tuple[float, Collection[str]] = (float("-inf"), ())

    def name(self, host: str) -> str:
        """The host's name as we spell it; NotFound."""
        found = [name for name in self.lines if same(name, host)]
        if not found:
            raise NotFound(f"there is no host {host} in [libvirt] hosts")
        return found[0]

    def line(self, host: str) -> Line:
        return self.lines[self.name(host)]

    def ask(self, host: str, what: str, do: Callable[[Any], T]) -> T:
        """One host, for as long as a look may take."""
        return self.line(host).ask(what, do, self.settings.look_timeout_s)

    def all(self) -> Collection[str]:
        """Look at every host and every guest; the hosts that answered."""
        when, answering = time.monotonic(), self._round(self.lines)
        self._last = when, answering
        return answering

    def reached(self) -> Collection[str]:
        """The hosts that answer; a look of a moment ago does."""
        when, answering = self._last
        return answering if time.monotonic() - when < FRESH_S else self.all()

    def host(self, host: str) -> bool:
        """Look at one; whether it answered."""
        return bool(self._round([self.name(host)]))

    def guest(self, server_id: str) -> bool:
        """Look at that one on its own host, if that answers; whether it was seen there."""
        known = self.book.find(server_id)
        if known.host is None:
            return False
        began = self.book.now()
        try:
            seen = self.ask(known.host, "domain", lambda conn: lookup(conn, server_id))
        except DriverError:
            return False
        self.book.take(known.host, [seen] if seen else [], began, of=server_id)
        return seen is not None

    def running(self, server_id: str) -> Mapping[str, bool]:
        """Of each host that answers, whether it runs it now."""
        calls = self._begin(self.lines, "running", lambda conn: _is_active(conn, server_id))
        return self._answers(calls, "running")

    def close(self) -> None:
        for line in self.lines.values():
            line.close()

    def _round(self, names: Collection[str]) -> Collection[str]:
        began = self.book.now()
        answers = self._answers(self._begin(names, "domains", _everything), "domains")
        for name, (size, seen) in answers.items():
            with self.book.file.transaction() as db:
                db.execute(
                    "UPDATE hosts SET seen_at = ?, size = ? WHERE name = ?",
                    (self.book.now(), json.dumps(size), name),
                )
            self.book.take(name, seen, began)
        return answers.keys()

    def _begin(
        self, names: Collection[str], what: str, do: Callable[[Any], T]
    ) -> dict[str, Call[T]]:
        calls = {}
        for name in names:
            try:
                calls[name] = self.lines[name].begin(what, do)
            except DriverError:  # it is silent, which its absence says
                continue
        return calls

    def _answers(self, calls: Mapping[str, Call[T]], what: str) -> dict[str, T]:
        found, until = {}, time.monotonic() + self.settings.look_timeout_s
        for name, call in calls.items():  # side by side: together they take no longer than one
            try:
                left = max(0.0, until - time.monotonic())
                if self.lines[name].is_late:  # nobody waits for it a second time
                    left = min(left, AGAIN_S)
                found[name] = self.lines[name].wait(call, what, left)
            except DriverError:
                continue
        return found


def lookup(conn: Any, server_id: str) -> Seen | None:
    try:
        return _seen(conn.lookupByUUIDString(server_id))
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def _is_active(conn: Any, server_id: str) -> bool:
    seen = lookup(conn, server_id)
    return seen is not None and seen.active


def _everything(conn: Any) -> tuple[dict[str, Any], list[Seen]]:
    info = conn.getInfo()
    size = {
        "vcpus": info[2],
        "memory_mb": info[1],
        "hypervisor_type": conn.getType(),
        "hypervisor_version": conn.getLibVersion(),  # that of QEMU takes a new daemon seconds
        "cpu_info": json.dumps({"arch": info[0]}),
    }
    found = (lookup(conn, one.UUIDString()) for one in conn.listAllDomains())
    return size, [seen for seen in found if seen is not None]


def _seen(domain: Any) -> Seen:
    status, passing = guest.status(*words.state(*domain.state()))
    return Seen(
        uuid=domain.UUIDString(),
        name=domain.name(),
        status=status,
        passing=passing,
        active=bool(domain.isActive()),
        persistent=bool(domain.isPersistent()),
        autostart=bool(domain.autostart()) if domain.isPersistent() else False,
        xml=domain.XMLDesc(AS_DEFINED),
    )
