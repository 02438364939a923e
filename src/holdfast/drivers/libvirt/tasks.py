# SPDX-License-Identifier: Apache-2.0
"""What takes a while, and survives whoever began it.

A deed is written down before it touches anything, in a name of its own, and ends in that name: who
has lost it (it was reset, or its time is over) undoes what he did. He who asked waits a moment, and
then it counts as accepted. What nobody has ended in time is settled by the next who looks: where
is the guest now? Before it is said to be nowhere, its definition is taken away from where it might
still start.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import libvirt
from holdfast.drivers.libvirt.connection import Call
from holdfast.drivers.libvirt.host_connection import Silent
from holdfast.drivers.libvirt.registry import SHELVED, GuestRegistry, HostPoller, Known, lookup
from holdfast.model.errors import Conflict, DriverError, HoldfastError

# What is done to a domain on one host: small deeds, each of which may be repeated.


#: What goes with the definition of a guest that lives elsewhere now; its disks and firmware stay.
FORGET = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM
)


def find_domain(conn: Any, server_id: str) -> Any:
    """The domain, None if there is none."""
    try:
        return conn.lookupByUUIDString(server_id)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def define_domain(conn: Any, xml: str) -> None:
    """Without autostart, which it is given when it has come to stay."""
    conn.defineXML(xml).setAutostart(0)


def set_autostart(conn: Any, server_id: str) -> None:
    conn.lookupByUUIDString(server_id).setAutostart(1)


def start_domain(conn: Any, server_id: str) -> None:
    domain = conn.lookupByUUIDString(server_id)
    if not domain.isActive():
        domain.create()


def stop_domain(conn: Any, server_id: str) -> None:
    """As if its plug were pulled: recovery has no use for a guest's consent."""
    domain = find_domain(conn, server_id)
    if domain is None or not domain.isActive():
        return
    try:
        domain.destroy()
    except libvirt.libvirtError:
        if domain.isActive():  # it may have died meanwhile
            raise


def undefine_domain(conn: Any, server_id: str) -> bool:
    """Undefine it unless it runs; whether it does."""
    domain = find_domain(conn, server_id)
    if domain is None:
        return False
    if domain.isActive():
        return True
    if domain.isPersistent():
        domain.undefineFlags(FORGET)
    # A start that came in between has made it one that runs and is not defined.
    late = find_domain(conn, server_id)
    return late is not None and bool(late.isActive())


LOG = logging.getLogger(__name__)
#: How long who asks for something waits for its end.
ACCEPT_S = 2.0
#: When it is tried to take something back.
TRIES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class Lost(Exception):
    """It is not ours any more; what was done is undone."""


#: A deed: what is done with a guest that is under way.
Act = Callable[[Known], None]


class DomainTasks:
    def __init__(self, looks: HostPoller) -> None:
        self.looks = looks
        self.book: GuestRegistry = looks.book
        self._settings = looks.settings

    def do(self, known: Known, task: str, act: Act, *, dest: str | None = None, runs: bool) -> None:
        """Begin it, and wait a moment for its end."""
        lasts_s = self._settings.action_timeout_s
        doing = self.book.begin(known, task, lasts_s, dest=dest, runs=runs)
        call = Call(task, lambda: self._run(doing, act))
        try:
            call.result(min(ACCEPT_S, self._settings.call_timeout_s / 4))
        except DriverError:
            if call.is_done:
                call.result(0)

    def _run(self, doing: Known, act: Act) -> None:
        """On a thread of its own."""
        try:
            act(doing)
        except Lost:
            LOG.warning("guest %s: %s was given up meanwhile", doing.name, doing.task)
        except HoldfastError as error:
            LOG.warning("guest %s: %s failed: %s", doing.name, doing.task, error.message)
            if isinstance(error, Silent) and error.sent:
                self.book.hand_over(doing)  # it may have happened: whoever looks next finds out
                return
            self.book.end(doing, failed=error.message, **_where(doing))
            if doing.task not in ("rebuilding", "unshelving"):  # of which nobody hears why
                raise
        except Exception:  # the top of the thread: who asked may not wait for it any more
            LOG.exception("guest %s: %s: unforeseen", doing.name, doing.task)
            raise

    # parts of deeds

    def ask(self, doing: Known, host: str, what: str, do: Callable[..., object]) -> None:
        """Do something to the guest on that host, if it is ours to do."""
        if not self.book.is_mine(doing):
            raise Lost
        left = (doing.until or 0.0) - self.book.now()
        line = self.looks.line(host)
        line.ask(what, lambda conn: do(conn, doing.uuid), max(left, 1.0))

    def runs_nowhere(self, known: Known) -> None:
        """Conflict if any host that answers runs it."""
        for host, active in self.looks.running(known.uuid).items():
            if active:
                raise Conflict(f"server {known.uuid}: it runs on {host}")

    def bring_up(self, doing: Known, host: str) -> None:
        """Define it on that host, and start it there if it is to run: from then on it belongs
        there. Conflict if it runs anywhere now."""
        self.runs_nowhere(doing)
        try:
            self.ask(doing, host, "define", lambda conn, _: define_domain(conn, doing.xml))
            if doing.runs:
                self.ask(doing, host, "start", start_domain)
            status = "ACTIVE" if doing.runs else "SHUTOFF"
            if not self.book.end(doing, host=host, status=status):
                raise Lost
        except Lost:
            self._take_back(doing, host, stop=True)
            raise
        except HoldfastError as error:
            if not isinstance(error, Silent):
                self._take_back(doing, host, stop=False)
            raise
        self.tidy(doing, host)

    def tidy(self, moved: Known, host: str) -> None:
        """A guest has come to that host: where it was, its definition goes, and here it has
        autostart if it had it there. Nothing of that is worth a failure."""
        try:
            if moved.autostart:
                self.looks.ask(host, "autostart", partial(set_autostart, server_id=moved.uuid))
            if moved.left_host and moved.left_host != host:
                forget = partial(undefine_domain, server_id=moved.uuid)
                self.looks.ask(moved.left_host, "undefine", forget)
        except HoldfastError as error:
            said = "guest %s is on %s; something is left to do by hand: %s"
            LOG.warning(said, moved.name, host, error.message)

    def _take_back(self, known: Known, host: str, *, stop: bool) -> None:
        """What we did there, unless it belongs there or somebody has sent it there since. Tried
        again for a while: a guest that is left running may run twice."""
        for pause in TRIES_S:
            self.book.pause(pause)
            if host == known.left_host or self.book.is_wanted_at(known, host):
                return
            try:
                if stop:
                    self.looks.ask(host, "stop", partial(stop_domain, server_id=known.uuid))
                forget = partial(undefine_domain, server_id=known.uuid)
                self.looks.ask(host, "undefine", forget)
                return
            except DriverError as error:
                said = "guest %s is still to be taken off %s: %s"
                LOG.log(logging.ERROR if stop else logging.INFO, said, known.name, host, error)

    # what nobody has ended

    def settle(self) -> None:
        for known in self.book.overdue():
            mine = self.book.hand_over(known, self._settings.call_timeout_s)
            if mine is None:
                continue
            try:
                self._settle(mine)
            except Silent as silent:
                LOG.info("guest %s is still %s: %s", known.name, known.task, silent.message)
                self.book.hand_over(mine)

    def _settle(self, known: Known) -> None:
        if known.dest is not None:
            self._settle_at(known, known.dest)
            return
        if known.host is None:
            self.book.end(known, **_where(known))
            return
        seen = self.looks.ask(known.host, "domain", lambda conn: lookup(conn, known.uuid))
        if known.task == "shelving" and seen is not None and not seen.active:
            self.book.end(known, status=SHELVED, left_host=known.host)
        else:
            self.book.end(known, status=seen.status if seen else "SHUTOFF")

    def _settle_at(self, known: Known, dest: str) -> None:
        """It was to come to that host."""
        seen = self.looks.ask(dest, "domain", lambda conn: lookup(conn, known.uuid))
        arrived = seen is not None and (seen.active or not known.runs)
        if not arrived and dest != known.left_host:
            arrived = self.looks.ask(
                dest, "undefine", partial(undefine_domain, server_id=known.uuid)
            )
        if not arrived:
            said = f"it did not arrive on {dest}, and nobody has seen why"
            self.book.end(known, failed=said, **_where(known))
        elif self.book.end(known, host=dest, status="ACTIVE" if known.runs else "SHUTOFF"):
            self.tidy(known, dest)


def _where(known: Known) -> dict[str, str]:
    """Where a guest is that was not moved."""
    return {"left_host": known.left_host} if known.left_host else {}
