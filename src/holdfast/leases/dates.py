# SPDX-License-Identifier: Apache-2.0
"""The date rules of leases, as pure functions: compute the dates of a request, or refuse it."""

from datetime import datetime, timedelta

from holdfast.model.errors import Conflict, InvalidInput
from holdfast.model.lease import BEFORE_END, END, START, Lease
from holdfast.ports.manager import LeaseChange, NewLease


def minute(when: datetime) -> datetime:
    return when.replace(second=0, microsecond=0)


def dates(
    wanted: NewLease, now: datetime, before_end_default: timedelta
) -> tuple[datetime, datetime, datetime | None]:
    """Return start, end and before-end of a new lease; "now" is the current minute."""
    start = minute(now) if wanted.start is None else wanted.start
    end = minute(now) if wanted.end is None else wanted.end
    if start < minute(now):
        raise InvalidInput("start_date: Start date must be later than current date")
    _ordered(start, end)
    return start, end, _before_end(wanted.before_end, start, end, before_end_default)


def changed_dates(
    lease: Lease, change: LeaseChange, now: datetime, before_end_default: timedelta
) -> tuple[datetime, datetime, datetime | None]:
    """Return the dates after an update; the lease's status limits which dates may change."""
    started = lease.status not in ("PENDING", "CREATING")
    start = _pick(change.start, change.start_now, now, lease.start)
    end = _pick(change.end, change.end_now, now, lease.end)
    if (start, end) != (lease.start, lease.end) or change.before_end:
        if started and start != lease.start:
            raise InvalidInput("start_date: Cannot modify the start date of a started lease")
        if not started and start != lease.start and start < minute(now):
            raise InvalidInput("start_date: Start date must be later than current date")
        if end < minute(now):
            raise InvalidInput("end_date: End date must be later than current date")
    if not (change.end_now and end == start):  # ended at the moment it began
        _ordered(start, end)
    if change.before_end is not None:
        return start, end, _before_end(change.before_end, start, end, before_end_default)
    return start, end, _kept_before_end(lease, start, end)


def events(start: datetime, end: datetime, before_end: datetime | None) -> dict[str, datetime]:
    """Return the due time of each operation of a lease."""
    due = {START: start, END: end}
    return due if before_end is None else {**due, BEFORE_END: before_end}


def check_updatable(lease: Lease, change: LeaseChange) -> None:
    """Refuse an update while an operation runs; after the end, only the name can change.

    An operation under way needs the lease to itself.
    """
    if lease.status in ("CREATING", "STARTING", "UPDATING", "TERMINATING", "DELETING"):
        raise Conflict(
            f"Invalid lease status: lease {lease.id} is {lease.status}; try again when that is done"
        )
    if lease.status in ("TERMINATED", "ERROR") and not _renames_only(lease, change):
        raise InvalidInput(f"Lease is {lease.status}: only its name can change")


def _renames_only(lease: Lease, change: LeaseChange) -> bool:
    """Whether the change only renames; dates are permitted if equal to the current dates."""
    same_dates = change.start in (None, lease.start) and change.end in (None, lease.end)
    now_said = change.start_now or change.end_now
    return same_dates and not (now_said or change.before_end or change.reservations)


def _pick(named: datetime | None, now_said: bool, now: datetime, old: datetime) -> datetime:
    if now_said:
        return now
    return old if named is None else named


def _ordered(start: datetime, end: datetime) -> None:
    if end <= start:
        raise InvalidInput("end_date: End date must be later than start date.")


def _before_end(
    named: datetime | None, start: datetime, end: datetime, default: timedelta
) -> datetime | None:
    if named is not None:
        if not start < named < end:
            raise InvalidInput("before_end_date: Datetime is out of lease limits")
        return named
    return max(start, end - default) if default else None


def _kept_before_end(lease: Lease, start: datetime, end: datetime) -> datetime | None:
    """Keep the distance between before-end and end, when the change names no before-end."""
    if lease.before_end is None:
        return None
    return max(start, end - (lease.end - lease.before_end))
