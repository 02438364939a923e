# SPDX-License-Identifier: Apache-2.0
"""Long-running tasks on guests that survive the process that began them.

A task is recorded in the guest registry, with a token of its own, before it touches a host, and
ends under this token. A process that has lost the task (it was reset, or its deadline has passed)
undoes its work. The caller waits up to ACCEPT_S, then the task counts as accepted. `settle` ends
an overdue task by finding out where the guest is now. Before the guest is recorded as not arrived,
its definition is removed from the host on which it might still start.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import libvirt
from holdfast.drivers.libvirt.connection import Call
from holdfast.drivers.libvirt.host_connection import Silent
from holdfast.drivers.libvirt.registry import (
    SHELVED,
    GuestRecord,
    GuestRegistry,
    HostPoller,
    lookup,
)
from holdfast.model.errors import Conflict, DriverError, HoldfastError

# Actions on a domain of a host; each may be repeated.


#: Flags for undefining a guest that lives elsewhere now; its disks and firmware (NVRAM) stay.
FORGET = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM
)


def find_domain(conn: Any, server_id: str) -> Any:
    """Return the domain; None if absent."""
    try:
        return conn.lookupByUUIDString(server_id)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def define_domain(conn: Any, xml: str) -> None:
    """Define the domain without autostart, which is set only when the guest has come to stay."""
    conn.defineXML(xml).setAutostart(0)


def set_autostart(conn: Any, server_id: str) -> None:
    conn.lookupByUUIDString(server_id).setAutostart(1)


def start_domain(conn: Any, server_id: str) -> None:
    domain = conn.lookupByUUIDString(server_id)
    if not domain.isActive():
        domain.create()


def stop_domain(conn: Any, server_id: str) -> None:
    """Switch the guest off hard, as by pulling the plug.

    Recovery does not need the guest's consent.
    """
    domain = find_domain(conn, server_id)
    if domain is None or not domain.isActive():
        return
    try:
        domain.destroy()
    except libvirt.libvirtError:
        if domain.isActive():  # else the guest has died meanwhile
            raise


def undefine_domain(conn: Any, server_id: str) -> bool:
    """Undefine the domain unless it runs; return whether it runs."""
    domain = find_domain(conn, server_id)
    if domain is None:
        return False
    if domain.isActive():
        return True
    if domain.isPersistent():
        domain.undefineFlags(FORGET)
    # A start between the two calls leaves a domain that runs and is not defined.
    late = find_domain(conn, server_id)
    return late is not None and bool(late.isActive())


LOG = logging.getLogger(__name__)
#: How long a caller waits for the end of its task.
ACCEPT_S = 2.0
#: Pauses in seconds between attempts to undo a task.
TRIES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class Lost(Exception):
    """Another process has taken over the task; the work of this process is undone."""


#: The body of a task; the argument is the guest with the task's token.
Act = Callable[[GuestRecord], None]


class DomainTasks:
    """Runs tasks on guests and settles overdue tasks; see the module docstring."""

    def __init__(self, poller: HostPoller) -> None:
        self.poller = poller
        self.registry: GuestRegistry = poller.registry
        self._settings = poller.settings

    def do(
        self, guest: GuestRecord, task: str, act: Act, *, dest: str | None = None, runs: bool
    ) -> None:
        """Begin a task and wait up to ACCEPT_S seconds."""
        lasts_s = self._settings.action_timeout_s
        doing = self.registry.begin(guest, task, lasts_s, dest=dest, runs=runs)
        call = Call(task, lambda: self._run(doing, act))
        try:
            call.result(min(ACCEPT_S, self._settings.call_timeout_s / 4))
        except DriverError:
            if call.is_done:
                call.result(0)

    def _run(self, doing: GuestRecord, act: Act) -> None:
        """Run the task on the thread of the call."""
        try:
            act(doing)
        except Lost:
            LOG.warning("guest %s: %s was given up meanwhile", doing.name, doing.task)
        except HoldfastError as error:
            LOG.warning("guest %s: %s failed: %s", doing.name, doing.task, error.message)
            if isinstance(error, Silent) and error.sent:
                self.registry.hand_over(doing)  # perhaps done: `settle` checks
                return
            self.registry.end(doing, failed=error.message, **_where(doing))
            # no caller waits for the outcome of these two
            if doing.task not in ("rebuilding", "unshelving"):
                raise
        except Exception:  # the top of the thread: the caller may no longer wait
            LOG.exception("guest %s: %s: unforeseen", doing.name, doing.task)
            raise

    # Parts of tasks

    def call(
        self, doing: GuestRecord, host: str, call_name: str, do: Callable[..., object]
    ) -> None:
        """Run an action on the guest at a host. Raises Lost if the task is no longer ours."""
        if not self.registry.is_mine(doing):
            raise Lost
        left = (doing.until or 0.0) - self.registry.now()
        self.poller.connection(host).call(
            call_name, lambda conn: do(conn, doing.uuid), max(left, 1.0)
        )

    def runs_nowhere(self, guest: GuestRecord) -> None:
        """Raise Conflict if any host that answers runs the guest."""
        for host, active in self.poller.running(guest.uuid).items():
            if active:
                raise Conflict(f"server {guest.uuid}: it runs on {host}")

    def bring_up(self, doing: GuestRecord, host: str) -> None:
        """Define the guest on the host, start it if it is to run, and record it there.

        Raises Conflict if the guest runs anywhere now.
        """
        self.runs_nowhere(doing)
        try:
            self.call(doing, host, "define", lambda conn, _: define_domain(conn, doing.xml))
            if doing.runs:
                self.call(doing, host, "start", start_domain)
            status = "ACTIVE" if doing.runs else "SHUTOFF"
            if not self.registry.end(doing, host=host, status=status):
                raise Lost
        except Lost:
            self._take_back(doing, host, stop=True)
            raise
        except HoldfastError as error:
            if not isinstance(error, Silent):
                self._take_back(doing, host, stop=False)
            raise
        self.tidy(doing, host)

    def tidy(self, moved: GuestRecord, host: str) -> None:
        """Set autostart on the new host and undefine the guest on the old host.

        A failure is only logged, because the guest has already arrived.
        """
        try:
            if moved.autostart:
                self.poller.call(host, "autostart", partial(set_autostart, server_id=moved.uuid))
            if moved.left_host and moved.left_host != host:
                forget = partial(undefine_domain, server_id=moved.uuid)
                self.poller.call(moved.left_host, "undefine", forget)
        except HoldfastError as error:
            warning = "guest %s is on %s; something is left to do by hand: %s"
            LOG.warning(warning, moved.name, host, error.message)

    def _take_back(self, guest: GuestRecord, host: str, *, stop: bool) -> None:
        """Undo the task's work on the host, unless the guest belongs there.

        Nothing is undone either if another task sends the guest there. The driver retries for
        about a minute: a guest that is left running may run twice.
        """
        for pause in TRIES_S:
            self.registry.pause(pause)
            if host == guest.left_host or self.registry.is_wanted_at(guest, host):
                return
            try:
                if stop:
                    self.poller.call(host, "stop", partial(stop_domain, server_id=guest.uuid))
                forget = partial(undefine_domain, server_id=guest.uuid)
                self.poller.call(host, "undefine", forget)
                return
            except DriverError as error:
                warning = "guest %s is still to be taken off %s: %s"
                LOG.log(logging.ERROR if stop else logging.INFO, warning, guest.name, host, error)

    # Overdue tasks

    def settle(self) -> None:
        for guest in self.registry.overdue():
            mine = self.registry.hand_over(guest, self._settings.call_timeout_s)
            if mine is None:
                continue
            try:
                self._settle(mine)
            except Silent as silent:
                LOG.info("guest %s is still %s: %s", guest.name, guest.task, silent.message)
                self.registry.hand_over(mine)

    def _settle(self, guest: GuestRecord) -> None:
        if guest.dest is not None:
            self._settle_at(guest, guest.dest)
            return
        if guest.host is None:
            self.registry.end(guest, **_where(guest))
            return
        domain = self.poller.call(guest.host, "domain", lambda conn: lookup(conn, guest.uuid))
        if guest.task == "shelving" and domain is not None and not domain.active:
            self.registry.end(guest, status=SHELVED, left_host=guest.host)
        else:
            self.registry.end(guest, status=domain.status if domain else "SHUTOFF")

    def _settle_at(self, guest: GuestRecord, dest: str) -> None:
        """Settle a task that was to bring the guest to the host `dest`."""
        domain = self.poller.call(dest, "domain", lambda conn: lookup(conn, guest.uuid))
        arrived = domain is not None and (domain.active or not guest.runs)
        if not arrived and dest != guest.left_host:
            arrived = self.poller.call(
                dest, "undefine", partial(undefine_domain, server_id=guest.uuid)
            )
        if not arrived:
            reason = f"it did not arrive on {dest}, and the reason is unknown"
            self.registry.end(guest, failed=reason, **_where(guest))
        elif self.registry.end(guest, host=dest, status="ACTIVE" if guest.runs else "SHUTOFF"):
            self.tidy(guest, dest)


def _where(guest: GuestRecord) -> dict[str, str]:
    """Return the location of a guest that was not moved, as arguments of `GuestRegistry.end`."""
    return {"left_host": guest.left_host} if guest.left_host else {}
