# SPDX-License-Identifier: Apache-2.0
"""Enforcement: site filters for leases, and quotas of projects.

Filters run before anything is written, outside every transaction, because they may call an
external service. Quotas are numbers that the booking transaction itself checks
(`db/booking.py`). A third party adds a filter with one class and one entry point, and the site
names it in `[enforcement] enabled_filters`:

    [project.entry-points."holdfast.enforcement"]
    night = "acme:NoNights"

    class NoNights(Lenient):
        name = "night"

        def check_create(self, caller, lease, hosts):
            if lease.start.hour < 6:
                raise EnforcementRefused("at night the machines rest: start at six")
"""

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from stevedore import driver

from holdfast.jobs.job import Kind, Run, Step
from holdfast.model import lease as lease_model
from holdfast.model.errors import DriverError, EnforcementRefused, Unavailable
from holdfast.model.host import Host
from holdfast.model.lease import Lease
from holdfast.model.operation import Operation
from holdfast.ports.ledger import Limits
from holdfast.ports.manager import Caller

ON_END = "enforce_on_end"
GROUP = "holdfast.enforcement"
_NAMES = uuid.UUID("f3f0c9a0-2d0c-4c57-9a2e-1f6e3a0f6b5d")


class Filter(Protocol):
    """A site rule, created once with the configuration; reads its options at every use.

    A check may run several times for one lease, and a lease that passed may still not be
    booked. A filter that cannot decide now raises a retryable DriverError, never a refusal.
    """

    name: str
    wants_end: bool  # whether `on_end` does anything
    longest_s: float  # the longest duration of one call

    def check_create(self, caller: Caller, lease: Lease, hosts: Mapping[int, Host]) -> None:
        """Raise EnforcementRefused unless the lease is allowed; `hosts` are the known hosts by
        id."""
        ...

    def check_update(
        self, caller: Caller, old: Lease, new: Lease, hosts: Mapping[int, Host]
    ) -> None:
        """Raise EnforcementRefused unless the old lease may become the new lease."""
        ...

    def on_end(self, lease: Lease, hosts: Mapping[int, Host], ended_at: datetime) -> None:
        """Handle the end of a lease, or its deletion before the end.

        The manager retries until the call succeeds; rarely it calls twice.
        """
        ...


class Lenient:
    """A filter without rules: a base class."""

    name = ""
    wants_end = False
    longest_s = 0.0

    def check_create(self, caller: Caller, lease: Lease, hosts: Mapping[int, Host]) -> None:
        return

    def check_update(
        self, caller: Caller, old: Lease, new: Lease, hosts: Mapping[int, Host]
    ) -> None:
        return

    def on_end(self, lease: Lease, hosts: Mapping[int, Host], ended_at: datetime) -> None:
        return


class Settings(Protocol):
    """The `[enforcement]` options, read anew at every use; numbers below zero mean no limit."""

    enabled_filters: Sequence[str]
    max_leases: int
    max_hosts: int
    max_host_hours: int
    quota_overrides: Sequence[tuple[str, Mapping[str, int]]]


class Nothing:
    """The settings of a site without enforcement."""

    enabled_filters: Sequence[str] = ()
    max_leases = max_hosts = max_host_hours = -1
    quota_overrides: Sequence[tuple[str, Mapping[str, int]]] = ()


class Enforcement:
    def __init__(
        self,
        settings: Settings | None = None,
        find: Callable[[str], Filter] | None = None,
        hosts: Callable[[], Mapping[int, Host]] = dict,
    ) -> None:
        self._settings: Settings = settings or Nothing()
        self._find = functools.cache(find or _missing)
        self.hosts = hosts

    def check_create(self, caller: Caller, lease: Lease) -> None:
        """Run all filters on a new lease; EnforcementRefused, or Unavailable if a filter cannot
        decide."""
        self._run_filters(lambda filter_, hosts: filter_.check_create(caller, lease, hosts))

    def check_update(self, caller: Caller, old: Lease, new: Lease) -> None:
        """Run all filters on a change; a new name or before-end time needs no check."""
        if _matter(old) != _matter(new):
            self._run_filters(lambda filter_, hosts: filter_.check_update(caller, old, new, hosts))

    def limits(self, project_id: str) -> Limits | None:
        """Return the quota of the project; None without limits."""
        own = self._settings
        quota = {"leases": own.max_leases, "hosts": own.max_hosts, "host_hours": own.max_host_hours}
        for project, numbers in own.quota_overrides:
            if project == project_id:
                quota.update(numbers)
        limits = {name: number for name, number in quota.items() if number >= 0}
        return Limits(**limits) if limits else None

    def end_work(self, lease: Lease, now: datetime) -> tuple[Operation, ...]:
        """Make the operation for the filters' `on_end`, for the write that ends or erases the
        lease.

        `lease` is its value before that write. Empty if it was over then: the filters know
        already.
        """
        if _is_over(lease) or not any(self._wants_end(name) for name in self._names()):
            return ()
        key = f"{ON_END}/{lease.id}"
        operation = Operation(
            id=str(uuid.uuid5(_NAMES, key)),
            kind=ON_END,
            subject=f"enforce:{lease.id}",
            key=key,
            due_at=now,
            next_try_at=now,
            payload={"lease": lease_model.to_plain(lease), "ended_at": now.isoformat()},
        )
        return (operation,)

    def kinds(self) -> dict[str, Kind]:
        return {ON_END: _OnEnd(self)}

    def check_setup(self) -> None:
        """Load all enabled filters; DriverError if a filter cannot be loaded."""
        for name in self._names():
            self._find(name)

    def enders(self) -> list[Filter]:
        filters = [self._find(name) for name in self._names()]
        return [filter_ for filter_ in filters if filter_.wants_end]

    def _names(self) -> list[str]:
        return list(dict.fromkeys(self._settings.enabled_filters))

    def _wants_end(self, name: str) -> bool:
        """Whether the filter handles ends; assumed for a filter not loaded.

        The operation informs it once it loads, so no lease end waits for a filter.
        """
        try:
            return self._find(name).wants_end
        except DriverError:
            return True

    def _run_filters(self, question: Callable[[Filter, Mapping[int, Host]], None]) -> None:
        names = self._names()
        hosts = self.hosts() if names else {}
        for name in names:
            try:
                question(self._find(name), hosts)
            except DriverError as away:
                raise Unavailable(
                    f"{away.message}; no decision about the lease is possible now: nothing was"
                    " changed, try again in a while"
                ) from away


class _OnEnd:
    """Job kind: inform each filter of a lease's end; a recorded step each, so none is called
    again."""

    name = ON_END
    retry_forever = True

    def __init__(self, enforcement: Enforcement) -> None:
        self._enforcement = enforcement

    def steps(self) -> Sequence[Step]:
        return tuple(
            Step(ender.name, functools.partial(self._inform, ender))
            for ender in self._enforcement.enders()
        )

    def _inform(self, filter_: Filter, run: Run) -> str:
        payload = run.operation.payload
        lease = lease_model.from_plain(payload["lease"])
        run.hold(filter_.longest_s)
        hosts = self._enforcement.hosts()
        filter_.on_end(lease, hosts, datetime.fromisoformat(payload["ended_at"]))
        return f"{filter_.name} knows that lease {lease.name} is over"

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        """Do nothing: the runner retries until every filter is informed."""


def load(conf: Any, hosts: Callable[[], Mapping[int, Host]]) -> Enforcement:
    """Load the enforcement of `[enforcement]`; DriverError if a filter does not load.

    `hosts` returns the reservable hosts by id: filters see where a lease would be.
    """

    def find(name: str) -> Filter:
        try:
            manager: Any = driver.DriverManager(GROUP, name, invoke_on_load=False)
            made: Filter = manager.driver(conf)
        except Exception as error:  # stevedore raises any exception of the plugin's import
            why = f"[enforcement] enabled_filters: {name} cannot be loaded: {error}"
            raise DriverError("enforcement", why, retryable=True) from error
        return made

    enforcement = Enforcement(conf.enforcement, find, hosts)
    enforcement.check_setup()
    return enforcement


def _missing(name: str) -> Filter:
    raise DriverError("enforcement", f"there is no filter {name}", retryable=True)


def _matter(lease: Lease) -> Any:
    """Return the parts of a lease with a cost: dates and reservations."""
    held = [
        (reservation.resource_type, dict(reservation.spec), reservation.allocations)
        for reservation in lease.reservations
    ]
    return lease.start, lease.end, held


def _is_over(lease: Lease) -> bool:
    gone = [reservation.status == "deleted" for reservation in lease.reservations]
    return lease.status == "TERMINATED" or (bool(gone) and all(gone))


# The filter `duration`: no lease lasts longer than `[enforcement] max_lease_duration`.


class MaxDuration(Lenient):
    name = "duration"

    def __init__(self, conf: Any) -> None:
        self._conf = conf

    def check_create(self, caller: Caller, lease: Lease, hosts: Mapping[int, Host]) -> None:
        self._check(lease)

    def check_update(
        self, caller: Caller, old: Lease, new: Lease, hosts: Mapping[int, Host]
    ) -> None:
        """Check a longer lease only; a lease allowed under an earlier limit keeps its length."""
        if new.end - new.start > old.end - old.start:
            self._check(new)

    def _check(self, lease: Lease) -> None:
        own = self._conf.enforcement
        exempt = lease.project_id in own.max_lease_duration_exempt_project_ids
        if exempt or own.max_lease_duration < 0:
            return
        most = timedelta(seconds=own.max_lease_duration)
        if lease.end - lease.start > most:
            raise EnforcementRefused(
                f"lease {lease.name} would last {_duration(lease.end - lease.start)}, and"
                f" {_duration(most)} is the longest allowed: let it end by"
                f" {lease.start + most:%Y-%m-%d %H:%M} UTC"
            )


def _duration(span: timedelta) -> str:
    hours, minutes = divmod(int(span.total_seconds()) // 60, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or f"{span.seconds} s"
