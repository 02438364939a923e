# SPDX-License-Identifier: Apache-2.0
"""Alarms on every database: what follows at the end of a mute, and of an alarm itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.alarms.central import ALARM_MUTE, CENTRAL
from holdfast.db import Store
from holdfast.db.incident_queries import Wanted as Cases
from holdfast.db.tables import agents, alarms, observations, operations
from holdfast.model.operation import ERROR
from holdfast.ports.publishers import ANNOUNCE
from holdfast.recovery.events import IncidentPublisher
from tests.db.test_alarms import NOON, claimed, deeds, end, say, standing

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ALL = ["notify", "incident", "repair_ahead"]


@pytest.fixture(autouse=True)
def somebody_listens(store: Store) -> Iterator[None]:
    store.database.publisher = IncidentPublisher(people=("ear",), boards=("board",))
    yield


def told(store: Store, sink: str = "ear") -> list[str]:
    """Of alarms, in order."""
    o = operations.c
    query = sa.select(o.payload).where(o.kind == ANNOUNCE).order_by(o.created_at, o.sequence)
    with store.database.read() as conn:
        said = [row.payload for row in conn.execute(query)]
    mine = [one["event_type"] for one in said if one["sink"] == sink]
    return [one.removeprefix("alarm.") for one in mine if one.startswith("alarm.")]


def cases(store: Store) -> list[tuple[str, str]]:
    found = [one.incident for one in store.incident_queries.list_all(Cases(kind="alarm"))]
    return [(one.status, one.sentence) for one in found]


def due(store: Store, alarm_id: str) -> datetime | None:
    """When the end of its mute is."""
    o = operations.c
    with store.database.read() as conn:
        mine = o.key == f"{ALARM_MUTE}/{alarm_id}", o.is_open.is_(True)
        return conn.execute(sa.select(o.next_try_at).where(*mine)).scalar()


def only(store: Store) -> dict[str, Any]:
    (row,) = standing(store)
    return row


def raised_while_muted(store: Store, **more: Any) -> str:
    """The id of an alarm of which nobody has heard."""
    say(store, "raised")
    store.alarms.mute(only(store)["id"], "ann", HOUR)
    say(store, "cleared", 1)
    say(store, "raised", 2, began=2, actions=ALL, **more)
    assert (told(store), deeds(store), cases(store)) == (["raised"], [], [])
    return str(only(store)["id"])


def let_mute_pass(store: Store, alarm_id: str) -> str:
    """As if its time had come; what is said of that."""
    with store.database.write() as conn:
        now = store.database.now(conn)
        conn.execute(sa.update(alarms).values(muted_until=now - timedelta(seconds=1)))
    return store.alarms.end_mute(alarm_id)


# what was repaired ahead


def test_what_was_repaired_ahead_is_taken_back_though_the_rule_does_not_ask_any_more(
    store: Store,
) -> None:
    say(store, "raised", actions=["repair_ahead"])
    say(store, "again", 1, actions=["notify"])
    say(store, "cleared", 2, actions=["notify"])
    assert deeds(store) == ["repair_ahead", "repair_over"]


def test_nothing_is_taken_back_that_was_not_begun(store: Store) -> None:
    say(store, "raised", actions=["notify"])
    say(store, "cleared", 1, actions=["repair_ahead"])
    assert deeds(store) == []


def test_it_is_taken_back_though_the_work_of_it_is_long_forgotten(store: Store) -> None:
    say(store, "raised", actions=["repair_ahead"])
    with store.database.write() as conn:
        conn.execute(sa.delete(operations))
    say(store, "raised", 1, actions=["repair_ahead"])
    assert deeds(store) == []  # nor is it done twice
    say(store, "cleared", 2, actions=[])
    assert deeds(store) == ["repair_over"]


def test_an_alarm_that_an_older_version_wrote_down_is_taken_back_too(store: Store) -> None:
    say(store, "raised", actions=["repair_ahead"])
    row = only(store)
    old = {name: value for name, value in row["details"].items() if name != CENTRAL}
    with store.database.write() as conn:
        conn.execute(sa.update(alarms).values(details=old))
    say(store, "cleared", 1, actions=["notify"])
    assert deeds(store) == ["repair_ahead", "repair_over"]


def test_another_alarm_of_the_rule_that_stands_is_known(store: Store) -> None:
    """Of an agent that lost its memory: nobody says that the first one is over."""
    say(store, "raised", actions=["repair_ahead"])
    first = only(store)["id"]
    say(store, "raised", 5, began=5, actions=["repair_ahead"])
    (second,) = (one["id"] for one in standing(store) if one["id"] != first)
    assert store.alarms.others_ahead(first) == second
    store.alarms.end(second, "ann")
    assert store.alarms.others_ahead(first) == ""


# the end of a mute


def test_an_alarm_that_fires_at_the_end_of_its_mute_is_published_and_acted_on_once(
    store: Store,
) -> None:
    alarm_id = raised_while_muted(store)
    assert due(store, alarm_id) == only(store)["muted_until"]
    assert "is muted until" in store.alarms.end_mute(alarm_id)
    assert "withheld notifications" in let_mute_pass(store, alarm_id)
    assert told(store) == ["raised", "raised"]
    assert told(store, "board") == ["raised", "cleared", "raised"]
    assert deeds(store) == ["repair_ahead"]
    assert [status for status, _ in cases(store)] == ["open"]
    assert "published already" in store.alarms.end_mute(alarm_id)
    say(store, "raised", 3, began=2, actions=ALL)
    assert (deeds(store), len(cases(store))) == (["repair_ahead"], 1)
    say(store, "cleared", 4, began=2, actions=ALL)
    assert [status for status, _ in cases(store)] == ["recovered"]
    assert deeds(store) == ["repair_ahead", "repair_over"]


def test_simultaneous_ends_of_a_mute_publish_the_alarm_once(store: Store) -> None:
    alarm_id = raised_while_muted(store)
    with store.database.write() as conn:
        conn.execute(sa.update(alarms).values(muted_until=store.database.now(conn) - HOUR))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.alarms.end_mute(alarm_id), range(8)))
    assert told(store) == ["raised", "raised"]
    assert (deeds(store), len(cases(store))) == (["repair_ahead"], 1)


def test_a_mute_that_is_ended_early_keeps_nothing_back(store: Store) -> None:
    alarm_id = raised_while_muted(store)
    for _ in range(2):
        store.alarms.mute(alarm_id, "ann", timedelta())
    assert told(store) == ["raised", "raised"]
    assert (deeds(store), len(cases(store))) == (["repair_ahead"], 1)


def test_a_mute_that_is_ended_is_not_that_of_the_next_alarm(store: Store) -> None:
    alarm_id = raised_while_muted(store)
    store.alarms.mute(alarm_id, "ann", timedelta())
    say(store, "cleared", 3, began=2)
    say(store, "raised", 4, began=4)
    assert only(store)["muted_until"] is None
    assert told(store) == ["raised", "raised", "cleared", "raised"]


def test_another_length_of_a_mute_moves_its_end(store: Store) -> None:
    alarm_id = raised_while_muted(store)
    before = due(store, alarm_id)
    until = store.alarms.mute(alarm_id, "ann", 3 * HOUR)["muted_until"]
    assert before is not None and until > before + HOUR
    assert due(store, alarm_id) == until


def test_an_ended_or_known_alarm_is_not_published(store: Store) -> None:
    alarm_id = raised_while_muted(store)
    say(store, "cleared", 3, began=2)
    assert "is over" in let_mute_pass(store, alarm_id)
    say(store, "raised", 5, began=5)
    known = str(only(store)["id"])
    store.alarms.mute(known, "ann", HOUR)
    say(store, "no_data", 6, began=5)
    say(store, "raised", 7, began=5)
    before = told(store)
    assert "published already" in let_mute_pass(store, known)
    assert (told(store), deeds(store), cases(store)) == (before, [], [])


def test_an_action_added_during_the_mute_runs_without_a_second_publication(
    store: Store,
) -> None:
    say(store, "raised")
    alarm_id = str(only(store)["id"])
    store.alarms.mute(alarm_id, "ann", HOUR)
    say(store, "raised", 1, actions=ALL)  # as agents do when a rule asks for more
    assert (deeds(store), cases(store)) == ([], [])
    for _ in range(2):
        assert "published already" in let_mute_pass(store, alarm_id)
        assert (told(store), deeds(store)) == (["raised"], ["repair_ahead"])
        assert [status for status, _ in cases(store)] == ["open"]


def test_no_data_is_published_and_actions_wait(store: Store) -> None:
    alarm_id = raised_while_muted(store)
    say(store, "no_data", 3, began=2, actions=ALL)
    let_mute_pass(store, alarm_id)
    assert (told(store), deeds(store), cases(store)) == (["raised", "no_data"], [], [])
    say(store, "again", 4, began=2, actions=ALL, state="no_data")  # that nothing is known
    assert (only(store)["state"], told(store)[2:], deeds(store)) == ("no_data", ["again"], [])
    say(store, "raised", 5, began=2, actions=ALL)
    assert (told(store)[3:], deeds(store)) == (["raised"], ["repair_ahead"])
    assert len(cases(store)) == 1


def test_a_reminder_before_the_first_publication_is_published_as_raised(store: Store) -> None:
    alarm_id = raised_while_muted(store)
    with store.database.write() as conn:
        conn.execute(sa.update(alarms).values(muted_until=store.database.now(conn) - HOUR))
    say(store, "again", 3, began=2, actions=ALL)
    assert (told(store), deeds(store)) == (["raised", "raised"], ["repair_ahead"])
    assert "published already" in store.alarms.end_mute(alarm_id)
    say(store, "again", 4, began=2, actions=ALL)
    assert told(store)[2:] == ["again"]


def test_an_acknowledged_alarm_is_acted_on_and_not_published(store: Store) -> None:
    alarm_id = raised_while_muted(store)
    store.alarms.acknowledge(alarm_id, "ann")
    let_mute_pass(store, alarm_id)
    assert (told(store), deeds(store)) == (["raised"], ["repair_ahead"])
    assert len(cases(store)) == 1


def test_a_late_incident_has_the_earlier_reports(store: Store) -> None:
    alarm_id = raised_while_muted(store)
    let_mute_pass(store, alarm_id)
    b = observations.c
    with store.database.read() as conn:
        mine = conn.execute(sa.select(b.state, b.since).where(b.incident_id == alarm_id)).all()
    assert [tuple(row) for row in mine] == [("raised", NOON + timedelta(minutes=2))]


# the end of an alarm that no agent says


def test_somebody_ends_an_alarm_and_all_follows_as_if_its_agent_had(store: Store) -> None:
    say(store, "raised", actions=ALL)
    alarm_id = only(store)["id"]
    over = store.alarms.end(alarm_id, "ann")
    assert (over["state"], over["details"]["reason"]) == ("ok", "ended by ann")
    assert over["resolved_at"] is not None
    ((status, sentence),) = cases(store)
    assert (status, sentence.endswith("is over: ended by ann")) == ("recovered", True)
    assert deeds(store) == ["repair_ahead", "repair_over"]
    store.alarms.end(alarm_id, "bob")
    assert told(store) == ["raised", "cleared"]
    later = int((store.database.now() - NOON).total_seconds() / 60) + 5
    say(store, "again", later, actions=ALL)  # the agent insists
    assert (told(store)[2:], only(store)["id"]) == (["raised"], alarm_id)
    assert deeds(store) == ["repair_ahead", "repair_over"]


def silent_for(store: Store, days: float) -> datetime:
    """As if nobody had said anything of the alarms since; when that was."""
    since = (store.database.now() - days * DAY).replace(microsecond=0)
    with store.database.write() as conn:
        conn.execute(sa.update(alarms).values(created_at=since, updated_at=None))
    return since


def beat(store: Store, host: str, ago: timedelta = timedelta()) -> None:
    at = store.database.now()
    about = {"started_at": at, "heartbeat_s": 10.0, "rules_version": "", "central_version": ""}
    store.agents.beat(host, {**about, "details": {}})
    with store.database.write() as conn:
        mine = sa.update(agents).where(agents.c.host == host)
        conn.execute(mine.values(seen_at=at - ago))


def lost(store: Store) -> int:
    return store.tidy.alarms(store.database.now() - 7 * DAY, 100)


def test_alarms_of_an_agent_that_does_not_come_back_end_and_say_why(store: Store) -> None:
    say(store, "raised", actions=ALL)
    since = silent_for(store, 8)
    assert lost(store) == 1
    assert standing(store) == []
    why = f"its agent has not been heard of since {since:%Y-%m-%d %H:%M:%S} UTC"
    ((status, sentence),) = cases(store)
    assert (status, sentence.partition("is over: ")[2]) == ("recovered", why)
    assert (told(store), deeds(store)) == (["raised", "cleared"], ["repair_ahead", "repair_over"])
    assert lost(store) == 0


@pytest.mark.parametrize("agent", ["cmp-1", "cmp-1.example.org"])
def test_alarms_of_an_agent_that_lives_stand_however_long(store: Store, agent: str) -> None:
    say(store, "raised")
    silent_for(store, 60)
    beat(store, agent, timedelta(days=6))
    assert (lost(store), len(standing(store))) == (0, 1)
    beat(store, agent, timedelta(days=8))
    assert (lost(store), standing(store)) == (1, [])


def test_an_alarm_of_which_something_was_heard_stands_without_a_heartbeat(store: Store) -> None:
    say(store, "raised")
    silent_for(store, 6)
    assert (lost(store), len(standing(store))) == (0, 1)


# who has been moved


def test_that_a_server_was_moved_is_known_on_other_hosts_unless_it_failed(store: Store) -> None:
    say(store, "raised", actions=["migrate_away"])
    first = only(store)["id"]
    say(store, "raised", 1, host="cmp-2", rule="hotter", actions=["migrate_away"])
    (second,) = (one["id"] for one in standing(store) if one["id"] != first)
    ago = store.database.now() - HOUR
    assert store.alarms.moved(second, ago) is None  # it was asked for only
    store.alarms.moves(first)
    work = next(one for one in claimed(store) if "cmp-1" in one.subject)
    end(store, work)
    moved = store.alarms.moved(second, ago)
    assert moved is not None
    assert (moved.host, moved.rule) == ("cmp-1", "hot")
    assert store.alarms.moved(first, ago) is None  # its own move is none of another
    assert store.alarms.moved(second, store.database.now() + HOUR) is None
    say(store, "again", 2, actions=["migrate_away"])
    assert store.alarms.moved(second, ago) is not None  # what the agent says does not undo it
    with store.database.write() as conn:
        conn.execute(sa.update(operations).values(status=ERROR))
    assert store.alarms.moved(second, ago) is None
