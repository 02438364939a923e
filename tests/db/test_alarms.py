# SPDX-License-Identifier: Apache-2.0
"""Alarms on every database: one row each, however many say so at once, and each deed once."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.alarms.central import ALARM_ACTION
from holdfast.db import Store
from holdfast.db.alarms import Wanted
from holdfast.db.tables import alarms, operations
from holdfast.model.errors import NotFound
from holdfast.model.operation import DONE, Claim, Operation

NOON = datetime(2026, 11, 16, 12, 0, 0, 123456, tzinfo=UTC)
GUEST = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"


def say(store: Store, event: str, minute: int = 0, began: int = 0, **more: Any) -> None:
    at, first = NOON + timedelta(minutes=minute), NOON + timedelta(minutes=began)
    key = f"{GUEST}/hot/{first.isoformat()}"
    said = {
        "rule": "hot", "version": "1-aa", "entity": GUEST, "project": "p", "severity": "critical",
        "value": 1.5, "first_at": first.isoformat(), "at": at.isoformat(), "actions": [],
        "key": key, "host": "cmp-1", **more,
    }  # fmt: skip
    values = {
        "observer": "agent@cmp-1",
        "subject": f"server:{GUEST}",
        "kind": "alarm",
        "state": event,
        "since": first,
        "observed_at": at,
        "key": f"{key}/{event}/{minute}",
        "evidence": said,
    }
    store.observations.add(str(uuid.uuid4()), values)


def standing(store: Store, **wanted: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in store.alarms.list_all(Wanted(**wanted))]


def deeds(store: Store) -> list[str]:
    query = sa.select(operations.c.payload).where(operations.c.kind == ALARM_ACTION)
    with store.database.read() as conn:
        return sorted(row.payload["action"] for row in conn.execute(query))


def test_an_alarm_is_kept_from_its_beginning_to_its_end(store: Store) -> None:
    say(store, "raised")
    say(store, "no_data", 2, value=None)
    (row,) = standing(store)
    assert (row["state"], row["value"], row["fired_at"]) == ("no_data", None, NOON)
    say(store, "again", 1)  # older than what is known
    assert standing(store)[0]["state"] == "no_data"
    say(store, "cleared", 3)
    assert standing(store) == []
    (over,) = standing(store, active=False)
    assert over["resolved_at"] == NOON + timedelta(minutes=3)
    assert standing(store, active=False, project="q") == []
    assert standing(store, state="ok", host="cmp-1", rule="hot") == [over]


def test_a_report_dated_in_the_future_hides_no_later_report(store: Store) -> None:
    far = 60 * 24 * 365 * 100
    say(store, "raised", far)
    (row,) = standing(store)
    assert row["reported_at"] < NOON + timedelta(minutes=far)
    say(store, "no_data", far, value=None)
    assert standing(store)[0]["state"] == "no_data"


def test_what_is_asked_for_is_asked_for_once(store: Store) -> None:
    actions = ["notify", "migrate_away", "repair_ahead"]
    say(store, "raised", actions=actions)
    say(store, "no_data", 1, actions=actions)
    say(store, "raised", 2, actions=actions)
    assert deeds(store) == ["migrate_away", "repair_ahead"]
    say(store, "cleared", 3, actions=actions)
    assert deeds(store) == ["migrate_away", "repair_ahead", "repair_over"]


def claimed(store: Store) -> list[Operation]:
    found = store.operations.claim_due("m", 100, timedelta(minutes=1), {ALARM_ACTION})
    return sorted(found, key=lambda one: one.subject)


def end(store: Store, work: Operation) -> None:
    store.operations.finish(Claim(work.id, "m", work.epoch), DONE, "done")


def test_what_alarms_of_a_host_ask_for_is_done_one_after_the_other(store: Store) -> None:
    """However many say so at once: two that are next would be done at the same time."""

    def ask(number: int) -> None:
        server, host = f"s{number}", "cmp-1" if number < 6 else "cmp-2"
        say(store, "raised", number, key=f"{server}/hot", host=host, actions=["migrate_away"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(7)))
    for _ in range(6):
        here, *there = claimed(store)
        assert here.subject == "alarm_action:cmp-1:migrate"
        assert [one.subject for one in there] in ([], ["alarm_action:cmp-2:migrate"])
        assert claimed(store) == []
        for one in (here, *there):
            end(store, one)
    assert claimed(store) == []


def test_the_action_at_the_end_of_an_alarm_waits_for_the_action_at_its_start(store: Store) -> None:
    say(store, "raised", actions=["repair_ahead"])
    say(store, "cleared", 1, actions=["repair_ahead"])
    for action in ("repair_ahead", "repair_over"):
        (work,) = claimed(store)
        assert work.payload["action"] == action
        end(store, work)


def test_a_host_with_a_long_name_has_its_turn_too(store: Store) -> None:
    say(store, "raised", host="c" * 200, actions=["disable_host"])
    assert len(claimed(store)) == 1


def test_many_who_say_the_same_at_once_make_one_alarm(store: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: say(store, "again", n, actions=["notify"]), range(12)))
    (row,) = standing(store)
    assert row["reported_at"] == NOON + timedelta(minutes=11)


def test_a_mute_applies_to_the_next_alarm_and_withholds_its_actions(store: Store) -> None:
    say(store, "raised")
    (row,) = standing(store)
    store.alarms.mute(row["id"], "ann", timedelta(hours=1))
    say(store, "cleared", 1)
    say(store, "raised", 2, began=2, actions=["migrate_away"])
    (again,) = standing(store)
    assert (again["muted_by"], deeds(store)) == ("ann", [])
    assert store.alarms.mute(again["id"], "ann", timedelta())["muted_until"] is None


def test_a_mute_of_a_disk_does_not_apply_to_another_disk(store: Store) -> None:
    vda, vdb = f"{GUEST}/vda", f"{GUEST}/vdb"
    say(store, "raised", entity=vda, key="vda/1")
    (row,) = standing(store)
    store.alarms.mute(row["id"], "ann", timedelta(hours=1))
    say(store, "raised", 1, entity=vdb, key="vdb/1")
    say(store, "cleared", 2, entity=vda, key="vda/1")
    say(store, "raised", 3, entity=vda, key="vda/2")
    silent = {row["details"]["entity"]: row["muted_by"] for row in standing(store)}
    assert silent == {vda: "ann", vdb: None}


def test_an_alarm_ends_though_it_began_by_a_clock_that_was_ahead(store: Store) -> None:
    say(store, "raised", 60, began=60)
    say(store, "cleared", 10, began=60)
    assert standing(store) == []
    (over,) = standing(store, active=False)
    assert over["resolved_at"] == over["fired_at"] == NOON + timedelta(minutes=60)
    say(store, "again", 30, began=60)  # which was under way since before
    assert standing(store) == []


def test_who_takes_care_first_is_who_takes_care(store: Store) -> None:
    say(store, "raised")
    (row,) = standing(store)
    store.alarms.acknowledge(row["id"], "ann")
    assert store.alarms.acknowledge(row["id"], "bob")["acked_by"] == "ann"
    with pytest.raises(NotFound):
        store.alarms.acknowledge("nothing", "ann")


def test_what_is_long_over_is_forgotten_when_something_new_comes(store: Store) -> None:
    say(store, "raised")
    say(store, "cleared", 1)
    old = store.database.now() - timedelta(days=31)
    with store.database.write() as conn:
        conn.execute(sa.update(alarms).values(resolved_at=old))
    say(store, "raised", 2, began=2)
    assert len(standing(store, active=False)) == 1


def test_a_pause_everywhere_is_seen(store: Store) -> None:
    assert store.alarms.paused() == ""
    store.switches.pause("s-1", "ann", "there only", None)
    assert store.alarms.paused() == ""
    store.switches.pause("", "ann", "a storm", None)
    assert store.alarms.paused() == "a storm"
