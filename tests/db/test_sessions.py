# SPDX-License-Identifier: Apache-2.0
"""Sessions end by themselves, and marks of topics change with what they are of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import sqlalchemy as sa

from holdfast.db import Store, views
from holdfast.db.sessions import Session
from holdfast.db.tables import agents, monitors
from holdfast.db.views import (
    ALARMS,
    AUDIT,
    HOSTS,
    INCIDENTS,
    LEASES,
    NETWORKS,
    RULES,
    SWITCHES,
    TOPICS,
)
from tests.api.views import see, view_body

HOUR = timedelta(hours=1)


def test_a_session_is_there_until_it_is_removed_or_over(store: Store) -> None:
    store.sessions.add("a", "alice", "proof", HOUR)
    store.sessions.add("b", "bob", "proof", HOUR)
    assert store.sessions.get("a") == Session("alice", "proof")
    store.sessions.remove("a")
    assert store.sessions.get("a") is None
    store.sessions.add("c", "carol", "proof", -HOUR)
    assert store.sessions.get("c") is None
    assert store.sessions.get("b") == Session("bob", "proof")
    store.sessions.add("d", "dan", "proof", HOUR)  # and what is over goes
    store.sessions.add("c", "carol", "again", HOUR)
    assert store.sessions.get("c") == Session("carol", "again")


def test_a_topic_has_another_mark_once_something_changed_and_others_have_not(store: Store) -> None:
    before = store.changes.marks()
    assert set(before) == set(TOPICS)
    assert store.changes.marks() == before
    store.switches.pause("", "alice", "a drill", None)
    after = store.changes.marks()
    assert {name for name in TOPICS if after[name] != before[name]} == {SWITCHES, AUDIT}


def test_what_the_wall_shows_of_agents_segments_and_maintenance_windows_is_in_a_mark(
    store: Store,
) -> None:
    def changed(do: Callable[[], object]) -> set[str]:
        before = store.changes.marks()
        do()
        after = store.changes.marks()
        return {name for name in TOPICS if after[name] != before[name]}

    def beat(guests: int | None, **more: object) -> None:
        store.agents.beat("cmp-1", beaten(store, guests=guests, **more))

    def silence() -> None:
        begins = store.database.now() + HOUR
        said = {"author": "ann", "reason": "new memory", "matcher": {"host": "cmp-1"}}
        store.switches.add_window({**said, "starts_at": begins, "expires_at": begins + HOUR})

    beat(None)
    assert changed(lambda: beat(3)) == {HOSTS}
    assert changed(lambda: beat(3)) == set()
    assert changed(lambda: beat(3, deaf="no libvirt")) == {HOSTS}
    for odd in (0.0, 2**31, 2**63 - 1, 1e308, True, "x", [], {}):  # older versions stored any
        store.agents.beat("cmp-2", beaten(store, guests=1, firing=odd))
        assert changed(lambda: beat(3, firing=odd)) == {HOSTS}  # noqa: B023
    fields = {"name": "north", "recovery_method": "auto", "service_type": "COMPUTE"}
    segment = store.segments.create("5e600000-0000-4000-8000-000000000001", fields)
    assert changed(lambda: store.segments.change(segment.uuid, {"name": "south"})) >= {HOSTS}
    assert changed(silence) == {SWITCHES, AUDIT}


def beaten(store: Store, version: str = "", **details: object) -> dict[str, object]:
    """What an agent says."""
    rules = {"rules_version": version, "central_version": version}
    return {"started_at": store.database.now(), "heartbeat_s": 10.0, "details": details, **rules}


def hush(store: Store, table: sa.Table, *who: sa.ColumnElement[bool]) -> None:
    """They were last heard of an hour ago."""
    before = store.database.now() - HOUR
    with store.database.write() as conn:
        conn.execute(sa.update(table).where(*who).values(seen_at=before))


def test_who_falls_silent_and_who_goes_by_other_rules_is_in_a_mark(store: Store) -> None:
    def changed(do: Callable[[], object]) -> set[str]:
        before = store.changes.marks()
        do()
        after = store.changes.marks()
        return {name for name in TOPICS if after[name] != before[name]}

    for host in ("cmp-1", "cmp-2"):
        store.agents.beat(host, beaten(store, version="1-a"))
    second = agents.c.host == "cmp-2"
    assert changed(lambda: store.agents.beat("cmp-2", beaten(store, version="2-b"))) == {RULES}
    more = beaten(store, version="2-b", error="line 3")
    assert changed(lambda: store.agents.beat("cmp-2", more)) == {RULES}
    assert changed(lambda: store.agents.beat("cmp-2", more)) == set()
    assert changed(lambda: hush(store, agents, second)) == {HOSTS}
    assert changed(lambda: hush(store, agents, second)) == set()

    def other() -> None:
        hush(store, agents, ~second)
        store.agents.beat("cmp-2", more)

    assert changed(other) == {HOSTS}  # as many as before, but not the same
    seen = view_body((("up", "up", "up"), "none", ["cmp-1"]))
    see(store, seen)
    assert changed(lambda: hush(store, monitors)) == {NETWORKS}
    assert changed(lambda: hush(store, monitors)) == set()


def test_the_greatest_of_a_column_is_found_without_reading_all_rows(store: Store) -> None:
    if store.database.engine.dialect.name != "sqlite":
        return  # the others take their time to know that a table is large
    for query in views.MARKS[INCIDENTS] + views.MARKS[ALARMS] + views.MARKS[LEASES]:
        text = query.compile(store.database.engine, compile_kwargs={"literal_binds": True})
        with store.database.read() as conn:
            plan = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all()
        assert all("INDEX" in step[-1] or "SEARCH" in step[-1] for step in plan), (str(text), plan)
