# SPDX-License-Identifier: Apache-2.0
"""Who is on a host, by what is read and heard of them, in any order."""

from __future__ import annotations

from holdfast.drivers.libvirt.metrics import MOST_LEFT, GuestRoster
from holdfast.ports.metrics import Facts

A = Facts("a", "instance-a", vcpus=2, memory_kib=1024, balloon_kib=1024)


def read(*running: str) -> GuestRoster:
    """All of these were read, and there are no others."""
    book = GuestRoster()
    for number, uuid in enumerate(running, 3):
        book.read(uuid, number, A, "running", "booted")
    book.only(set(running))
    return book


def test_no_guest_is_listed_before_all_were_read_once() -> None:
    book = GuestRoster()
    assert not book.roster().whole
    book.read("a", 3, A, "running", "booted")
    assert (book.roster().guests, book.roster().whole) == ({}, False)
    book.read("b", 4, A, "running", "booted")
    book.only({"a", "b"})
    assert (list(book.roster().guests), book.roster().whole) == (["a", "b"], True)
    book.read("c", 5, A, "running", "booted")  # from then on one by one
    assert len(book.roster().guests) == 3


def test_running_guests_are_listed_and_stopped_guests_are_only_defined() -> None:
    book = read("a")
    assert book.knows("a", 3)
    assert not book.knows("a", 4)
    book.stopped("a", "shutdown")
    book.read("a", -1, A, "shutoff", "shutdown")
    roster = book.roster()
    assert (list(roster.guests), list(roster.defined)) == ([], ["a"])
    assert roster.left == {"a": "shutdown"}
    assert book.knows("a", -1)


def test_the_roster_is_the_same_until_something_happens() -> None:
    book = read("a")
    first = book.roster()
    book.stands("a", "running", "booted")
    assert book.roster() is first
    book.stands("a", "paused", "user")
    assert book.roster().guests["a"].state == "paused"
    assert first.guests["a"].state == "running"


def test_an_incoming_guest_is_listed_when_running_and_marked_as_migrated() -> None:
    book = read()
    book.read("a", 3, A, "paused", "migration")
    assert not book.roster().guests
    book.started("a", "migrated")
    book.read("a", 3, A, "running", "migrated")
    assert book.roster().guests["a"].came == "migrated"


def test_a_guest_that_migrates_away_is_paused_and_then_gone_by_migration() -> None:
    book = read("a")
    book.read("a", 3, A, "paused", "migration")
    assert book.roster().guests["a"].reason == "migration"
    book.stopped("a", "migrated")
    book.only(set())
    roster = book.roster()
    assert (roster.left, roster.guests, roster.defined) == ({"a": "migrated"}, {}, {})


def test_a_restarted_guest_is_no_longer_listed_as_left() -> None:
    book = read("a")
    book.stopped("a", "destroyed")
    book.read("a", 4, A, "running", "booted")
    assert book.roster().left == {}
    assert book.roster().guests["a"].came == ""


def test_a_balloon_change_event_updates_the_guest_without_a_query() -> None:
    book = read()
    book.balloon("a", 5)
    book.read("a", 3, A, "running", "booted")
    book.balloon("a", 512)
    assert book.roster().guests["a"].facts.balloon_kib == 512


def test_only_the_latest_departed_guests_are_remembered() -> None:
    book = read()
    for number in range(MOST_LEFT + 10):
        book.read(str(number), number, A, "running", "booted")
        book.stopped(str(number), "destroyed")
    assert len(book.roster().left) == MOST_LEFT
    assert "0" not in book.roster().left
