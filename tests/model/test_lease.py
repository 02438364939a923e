# SPDX-License-Identifier: Apache-2.0
"""The date rules, by themselves: what a request means and why it cannot be."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.model import lease as rules
from holdfast.model.errors import Conflict, InvalidInput
from holdfast.model.lease import BEFORE_END, END, START, Lease, LeaseChange, NewLease

NOW = datetime(2030, 1, 1, 10, 0, 42, 500000, tzinfo=UTC)
MINUTE = NOW.replace(second=0, microsecond=0)
HOUR = timedelta(hours=1)


def new(start: datetime | None, end: datetime | None, before: datetime | None = None) -> NewLease:
    return NewLease("id", "name", start, end, before)


def lease(status: str = "PENDING", **dates: datetime | None) -> Lease:
    spans: dict[str, datetime | None] = {
        "start": MINUTE + HOUR,
        "end": MINUTE + 3 * HOUR,
        "before_end": MINUTE + 2 * HOUR,
    }
    return Lease("id", "name", "user", "project", status=status, **{**spans, **dates})  # type: ignore[arg-type]


def changed(old: Lease, **change: object) -> tuple[datetime, datetime, datetime | None]:
    return rules.changed_dates(old, LeaseChange(**change), NOW, HOUR)  # type: ignore[arg-type]


# new leases


def test_now_is_the_minute_we_are_in() -> None:
    assert rules.requested_dates(new(None, MINUTE + HOUR), NOW, HOUR) == (
        MINUTE,
        MINUTE + HOUR,
        MINUTE,
    )


def test_a_start_earlier_in_this_minute_is_not_in_the_past() -> None:
    start, _, _ = rules.requested_dates(new(MINUTE, MINUTE + HOUR), NOW, HOUR)
    assert start == MINUTE


def test_a_start_before_this_minute_is_in_the_past() -> None:
    with pytest.raises(InvalidInput, match="Start date must be later than current date"):
        rules.requested_dates(new(MINUTE - timedelta(microseconds=1), MINUTE + HOUR), NOW, HOUR)


@pytest.mark.parametrize("length", [timedelta(0), -HOUR], ids=["no length", "backwards"])
def test_an_end_not_after_the_start_is_refused(length: timedelta) -> None:
    start = MINUTE + 5 * HOUR
    with pytest.raises(InvalidInput, match=r"End date must be later than start date\."):
        rules.requested_dates(new(start, start + length), NOW, HOUR)


def test_an_end_of_now_has_no_length() -> None:
    with pytest.raises(InvalidInput, match="End date"):
        rules.requested_dates(new(None, None), NOW, HOUR)


def test_the_warning_comes_the_default_time_before_the_end() -> None:
    *_, before = rules.requested_dates(new(MINUTE, MINUTE + 3 * HOUR), NOW, HOUR)
    assert before == MINUTE + 2 * HOUR


def test_the_warning_of_a_short_lease_comes_at_its_start() -> None:
    *_, before = rules.requested_dates(new(MINUTE, MINUTE + HOUR / 2), NOW, HOUR)
    assert before == MINUTE


def test_no_warning_if_the_default_says_so_unless_named() -> None:
    assert rules.requested_dates(new(MINUTE, MINUTE + HOUR), NOW, timedelta(0))[2] is None
    named = MINUTE + HOUR / 2
    assert rules.requested_dates(new(MINUTE, MINUTE + HOUR, named), NOW, timedelta(0))[2] == named


@pytest.mark.parametrize("hours", [-1, 0, 1, 2], ids=["before", "at start", "at end", "after"])
def test_a_named_warning_must_lie_inside_the_lease(hours: int) -> None:
    with pytest.raises(InvalidInput, match="Datetime is out of lease limits"):
        rules.requested_dates(new(MINUTE, MINUTE + HOUR, MINUTE + hours * HOUR), NOW, HOUR)


# changes


def test_nothing_named_changes_nothing() -> None:
    old = lease()
    assert changed(old) == (old.start, old.end, old.before_end)


def test_the_warning_keeps_its_distance_to_the_end() -> None:
    old = lease()
    assert changed(old, end=old.end + HOUR)[2] == old.before_end + HOUR  # type: ignore[operator]
    assert changed(old, end=old.end - HOUR / 2)[2] == old.before_end - HOUR / 2  # type: ignore[operator]


def test_the_warning_is_never_before_the_start() -> None:
    old = lease()
    start, end, before = changed(old, end=old.start + HOUR / 4)
    assert (start, before) == (old.start, old.start)
    assert end > start


def test_a_lease_without_warning_keeps_none() -> None:
    assert changed(lease(before_end=None), end=MINUTE + 9 * HOUR)[2] is None


def test_a_new_warning_must_lie_inside_the_new_dates() -> None:
    old = lease()
    assert changed(old, before_end=old.start + HOUR / 2)[2] == old.start + HOUR / 2
    with pytest.raises(InvalidInput, match="out of lease limits"):
        changed(old, end=old.end - HOUR, before_end=old.end - HOUR / 2)


def test_a_waiting_lease_may_start_sooner_or_later_but_not_in_the_past() -> None:
    old = lease()
    assert changed(old, start=MINUTE)[0] == MINUTE
    assert changed(old, start=old.start + HOUR)[0] == old.start + HOUR
    assert changed(old, start_now=True)[0] == MINUTE
    with pytest.raises(InvalidInput, match="Start date must be later than current date"):
        changed(old, start=MINUTE - timedelta(minutes=1))


def test_a_started_lease_keeps_its_start() -> None:
    old = lease("ACTIVE", start=MINUTE - HOUR)
    assert changed(old, start=old.start, end=old.end)[0] == old.start
    for change in ({"start": NOW}, {"start_now": True}):
        with pytest.raises(InvalidInput, match="Cannot modify the start date"):
            changed(old, **change)


def test_a_started_lease_may_be_sent_its_start_without_the_seconds() -> None:
    old = lease("ACTIVE", start=MINUTE - HOUR + timedelta(seconds=30))
    assert changed(old, start=MINUTE - HOUR, end=old.end + HOUR)[0] == old.start


def test_an_overdue_start_does_not_forbid_other_changes() -> None:
    """A manager was off: the lease waits though its start is past."""
    old = lease(start=MINUTE - HOUR)
    assert changed(old, end=old.end + HOUR)[1] == old.end + HOUR


def test_an_end_in_the_past_is_refused() -> None:
    with pytest.raises(InvalidInput, match="End date must be later than current date"):
        changed(lease("ACTIVE", start=MINUTE - HOUR), end=MINUTE - timedelta(minutes=1))


def test_end_now_is_this_very_moment() -> None:
    """Not the minute: a lease that started in it could not end."""
    old = lease("ACTIVE", start=MINUTE, before_end=None)
    assert changed(old, end_now=True) == (MINUTE, NOW, None)


def test_an_end_not_after_the_start_is_refused_in_changes_too() -> None:
    old = lease()
    for change in ({"end": old.start}, {"start": old.end}, {"end_now": True}):
        with pytest.raises(InvalidInput, match="End date must be later than start date"):
            changed(old, **change)


@pytest.mark.parametrize("status", ["CREATING", "STARTING", "UPDATING", "TERMINATING", "DELETING"])
def test_a_lease_under_work_cannot_be_updated(status: str) -> None:
    with pytest.raises(Conflict, match="Invalid lease status"):
        rules.check_updatable(lease(status), LeaseChange(name="x"))


@pytest.mark.parametrize("status", ["TERMINATED", "ERROR"])
def test_a_lease_that_is_over_can_only_be_renamed(status: str) -> None:
    old = lease(status)
    rules.check_updatable(old, LeaseChange(name="x"))
    rules.check_updatable(old, LeaseChange(name="x", start=old.start, end=old.end))
    for change in (
        LeaseChange(start=old.end),
        LeaseChange(end=old.start),
        LeaseChange(start_now=True),
        LeaseChange(end_now=True),
        LeaseChange(before_end=old.start),
        LeaseChange(reservations={"r": {}}),
    ):
        with pytest.raises(InvalidInput, match="only its name"):
            rules.check_updatable(old, change)


def test_each_date_is_an_event() -> None:
    assert rules.due_times(NOW, NOW + HOUR, None) == {START: NOW, END: NOW + HOUR}
    assert rules.due_times(NOW, NOW + HOUR, NOW)[BEFORE_END] == NOW
