# SPDX-License-Identifier: Apache-2.0
"""The end of an alarm's silence, as a manager comes to it: told and done once, by its own time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.alarms.central import ALARM_MUTE
from holdfast.db.alarms import Wanted
from holdfast.db.tables import operations
from tests.recovery.house import HealHouse
from tests.recovery.test_alarm_incident import found, heard, only, say

ASKED = ["notify", "incident", "migrate_away"]


def silenced(house: HealHouse, server: str) -> str:
    """An alarm that is raised while it is silent, for another hour; its id."""
    say(house, "raised", server=server, actions=["notify"])
    alarms = house.m.store.alarms
    (first,) = alarms.list_all(Wanted())
    alarms.mute(first["id"], "ann", timedelta(hours=1))
    say(house, "cleared", 1, server=server)
    say(house, "raised", 2, server=server, actions=ASKED, key=f"{server}/pipe/2")
    (alarm,) = alarms.list_all(Wanted())
    return str(alarm["id"])


@pytest.fixture
def web(house: HealHouse) -> str:
    house.segment("cmp-1", "cmp-2")
    return house.boot("web", "cmp-1")


def sentence(house: HealHouse, alarm_id: str) -> tuple[str, str]:
    o = operations.c
    query = sa.select(o.status, o.sentence).where(o.key == f"{ALARM_MUTE}/{alarm_id}")
    with house.m.store.database.read() as conn:
        row = conn.execute(query).one()
        return row.status, row.sentence


def test_a_firing_alarm_is_published_and_acted_on_at_the_end_of_its_mute(
    house: HealHouse, web: str
) -> None:
    alarm_id = silenced(house, web)
    house.run(minutes=59)
    assert (heard(house), found(house)) == (["alarm.raised"], [])
    assert house.server(web)["host"] == "cmp-1"
    house.run(minutes=3)
    assert heard(house)[1:] == ["alarm.raised", "incident.opened"]
    assert house.ear.heard[1].payload["id"] == alarm_id
    assert only(house).incident.is_open
    assert house.effects("moves.live_migrate") == [web]
    assert sentence(house, alarm_id)[0] == "done"
    house.run(minutes=120)
    assert len(heard(house)) == 3


def test_an_alarm_over_before_the_end_of_its_mute_is_not_published(
    house: HealHouse, web: str
) -> None:
    alarm_id = silenced(house, web)
    say(house, "cleared", 3, server=web, key=f"{web}/pipe/2")
    house.run(minutes=70)
    assert (heard(house), found(house)) == (["alarm.raised"], [])
    status, said = sentence(house, alarm_id)
    assert (status, said.endswith("is over: nothing is published")) == ("done", True)


def test_an_extended_mute_ends_later(house: HealHouse, web: str) -> None:
    alarm_id = silenced(house, web)
    house.run(minutes=30)
    house.m.store.alarms.mute(alarm_id, "ann", timedelta(hours=2))
    house.run(minutes=110)
    assert heard(house) == ["alarm.raised"]
    house.run(minutes=11)
    assert heard(house)[1:] == ["alarm.raised", "incident.opened"]


def test_a_manager_killed_after_the_publication_publishes_only_once(
    house: HealHouse, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarm_id = silenced(house, web)
    real = house.m.store.alarms.end_mute
    calls: list[str] = []

    def dies(one: str) -> str:
        said = real(one)
        calls.extend([said] if one == alarm_id else [])
        if calls == [said]:
            raise MemoryError("killed")
        return said

    monkeypatch.setattr(house.m.store.alarms, "end_mute", dies)
    house.run(minutes=62)
    assert len(calls) == 2 and "published already" in calls[1]
    assert heard(house)[1:] == ["alarm.raised", "incident.opened"]
    assert house.effects("moves.live_migrate") == [web]
    assert sentence(house, alarm_id) == ("done", calls[1])


def test_a_failed_publication_of_an_alarm_leaves_no_trace(house: HealHouse, web: str) -> None:
    """The transaction is whole or not there: deeds, incident and news."""
    silenced(house, web)
    database: Any = house.m.store.database
    publisher, database.publisher = database.publisher, None
    house.run(minutes=61)
    assert (heard(house), found(house)) == (["alarm.raised"], [])
    assert house.effects("moves.live_migrate") == []
    database.publisher = publisher
    house.run(minutes=2)
    assert heard(house)[1:] == ["alarm.raised", "incident.opened"]
    assert house.effects("moves.live_migrate") == [web]
