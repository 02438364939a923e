# SPDX-License-Identifier: Apache-2.0
"""Sessions end by themselves, and marks of topics change with what they are of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from holdfast.store import Store, changes
from holdfast.store.changes import ALARMS, AUDIT, HOSTS, INCIDENTS, LEASES, SWITCHES, TOPICS
from holdfast.store.sessions import Session

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
    before = store.changes.look()
    assert set(before) == set(TOPICS)
    assert store.changes.look() == before
    store.switches.pause("", "alice", "a drill", None)
    after = store.changes.look()
    assert {name for name in TOPICS if after[name] != before[name]} == {SWITCHES, AUDIT}


def test_what_the_wall_shows_of_agents_segments_and_silences_is_in_a_mark(store: Store) -> None:
    def changed(do: Callable[[], object]) -> set[str]:
        before = store.changes.look()
        do()
        after = store.changes.look()
        return {name for name in TOPICS if after[name] != before[name]}

    def beat(guests: int | None) -> None:
        now = store.database.now()
        details = {"guests": guests}
        rules = {"rules_version": "", "central_version": ""}
        about = {"started_at": now, "heartbeat_s": 10.0, "details": details}
        store.agents.beat("cmp-1", {**rules, **about})

    def silence() -> None:
        begins = store.database.now() + HOUR
        said = {"author": "ann", "reason": "new memory", "matcher": {"host": "cmp-1"}}
        store.switches.silence({**said, "starts_at": begins, "expires_at": begins + HOUR})

    beat(None)
    assert changed(lambda: beat(3)) == {HOSTS}
    assert changed(lambda: beat(3)) == set()
    fields = {"name": "north", "recovery_method": "auto", "service_type": "COMPUTE"}
    segment = store.segments.create("5e600000-0000-4000-8000-000000000001", fields)
    assert changed(lambda: store.segments.change(segment.uuid, {"name": "south"})) >= {HOSTS}
    assert changed(silence) == {SWITCHES, AUDIT}


def test_the_greatest_of_a_column_is_found_without_reading_all_rows(store: Store) -> None:
    if store.database.engine.dialect.name != "sqlite":
        return  # the others take their time to know that a table is large
    for query in changes.MARKS[INCIDENTS] + changes.MARKS[ALARMS] + changes.MARKS[LEASES]:
        text = query.compile(store.database.engine, compile_kwargs={"literal_binds": True})
        with store.database.read() as conn:
            plan = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}").all()
        assert all("INDEX" in step[-1] or "SEARCH" in step[-1] for step in plan), (str(text), plan)
