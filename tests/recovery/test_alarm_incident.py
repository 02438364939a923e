# SPDX-License-Identifier: Apache-2.0
"""The incident of an alarm: one of each, open as long as that stands, and nothing comes of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.alarms.central import ALARM_ACTION
from holdfast.db.incident_queries import Case, Wanted
from holdfast.db.tables import observations, operations
from holdfast.model.errors import Conflict, InvalidInput
from holdfast.model.incident import KINDS, WORK, Incident
from holdfast.model.incident_progress import plain
from holdfast.recovery.events import IncidentPublisher
from tests.recovery.house import HealHouse

NINE = datetime(2030, 1, 1, 9, 0, tzinfo=UTC)  # an hour before the house begins
ASKED = ["notify", "incident"]


def say(
    house: HealHouse,
    event: str,
    minute: int = 0,
    server: str = "4f2c",
    *,
    ask_cloud: bool = False,
    **more: Any,
) -> str:
    """What the agent of cmp-1 says of a server; the id of the observation."""
    at = NINE + timedelta(minutes=minute)
    key = f"{server}/pipe/{NINE.isoformat()}"
    said = {
        "rule": "pipe", "version": "3-abc", "entity": f"{server}/tap1", "project": "p",
        "severity": "critical", "value": 4.0, "threshold": 1.0, "first_at": NINE.isoformat(),
        "at": at.isoformat(), "actions": ASKED, "key": key, "host": "cmp-1", **more,
    }  # fmt: skip
    values = {
        "observer": "agent@cmp-1",
        "subject": f"server:{server}",
        "kind": "alarm",
        "state": event,
        "since": NINE,
        "observed_at": at,
        "key": f"{key}/{event}/{minute}",
        "evidence": said,
    }
    row, _ = house.m.store.observations.add(house.new_id(), values, ask_cloud=ask_cloud)
    return str(row["id"])


def found(house: HealHouse) -> list[Incident]:
    return [one.incident for one in house.m.store.incident_queries.list_all(Wanted(kind="alarm"))]


def only(house: HealHouse) -> Case:
    (incident,) = found(house)
    return house.m.store.incident_queries.case(incident.id)


def timeline(house: HealHouse) -> list[str]:
    return [one.sentence for one in only(house).timeline]


def work(house: HealHouse) -> list[str]:
    """Kinds of what there is to do, or was, of alarms and recoveries."""
    kinds = (ALARM_ACTION, *WORK.values())
    query = sa.select(operations.c.kind).where(operations.c.kind.in_(kinds))
    with house.m.store.database.read() as conn:
        return list(conn.execute(query).scalars())


def heard(house: HealHouse) -> list[str]:
    return [one.event_type for one in house.ear.heard]


def test_it_is_opened_once_and_closed_when_the_alarm_is_over(house: HealHouse) -> None:
    say(house, "raised")
    say(house, "raised")
    say(house, "again", 1, value=5.0)
    say(house, "raised", 2)
    case = only(house)
    assert (case.incident.status, case.incident.host) == ("open", "cmp-1")
    assert timeline(house) == [
        "opened: alarm pipe of server:4f2c on cmp-1",
        "evidence: rule pipe (rules 3-abc), host cmp-1, entity 4f2c/tap1: value 4, threshold 1,"
        " since 2030-01-01T09:00:00+00:00",
    ]
    say(house, "no_data", 3, value=None)
    assert only(house).incident.is_open
    assert "nothing is known of it" in only(house).incident.sentence
    say(house, "cleared", 4, reason="gone")
    over = only(house).incident
    assert (over.status, over.closed_at is not None) == ("recovered", True)
    assert timeline(house)[-1] == "recovered: alarm pipe of server:4f2c on cmp-1 is over: gone"
    say(house, "raised", 5)
    assert only(house).incident.status == "recovered"


def test_an_alarm_incident_has_no_recovery_although_its_server_runs(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    web = house.boot("web", "cmp-1")
    before = house.server(web)
    effects = len(house.sim.effects())
    say(house, "raised", server=web)
    house.run(minutes=2)
    assert (house.server(web), len(house.sim.effects()), work(house)) == (before, effects, [])
    assert heard(house) == ["alarm.raised", "incident.opened"]
    say(house, "cleared", 1, server=web)
    house.run(minutes=1)
    assert heard(house)[2:] == ["alarm.cleared", "incident.recovered"]
    assert (house.server(web), work(house)) == (before, [])


def test_only_an_unmuted_rule_with_the_incident_action_opens_an_incident(house: HealHouse) -> None:
    say(house, "raised", actions=["notify"])
    say(house, "cleared", 1, server="late")  # what was before that is not known
    say(house, "raised", 0, server="late")
    assert found(house) == []
    say(house, "raised", server="loud")
    alarm = only(house).incident.id
    house.m.store.alarms.mute(alarm, "ann", timedelta(hours=1))
    say(house, "cleared", 1, server="loud")
    assert only(house).incident.status == "recovered"  # a silence keeps nothing open
    say(house, "raised", 2, server="loud", key="loud/pipe/2")
    assert len(found(house)) == 1


def test_an_interrupted_alarm_is_rolled_back_and_ingested_at_its_next_report(
    house: HealHouse,
) -> None:
    class Dies(IncidentPublisher):
        def incident(self, *_: Any) -> Any:
            raise MemoryError("killed")

    store = house.m.store
    publisher = store.database.publisher
    for event, minute, status in (("raised", 0, "open"), ("cleared", 1, "recovered")):
        before = [one.status for one in found(house)]
        store.database.publisher = Dies()
        with pytest.raises(MemoryError):
            say(house, event, minute)
        assert [one.status for one in found(house)] == before
        store.database.publisher = publisher
        say(house, event, minute)
        assert only(house).incident.status == status


def test_many_equal_alarms_at_once_open_a_single_incident(house: HealHouse) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda minute: say(house, "raised", minute), range(8)))
    assert only(house).incident.is_open
    assert len([one for one in timeline(house) if one.startswith("opened")]) == 1


def test_a_host_that_dies_is_recovered_as_if_there_were_no_alarms(house: HealHouse) -> None:
    """Neither its guests' alarms nor dozens elsewhere are failures that a guard counts."""
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    web = house.boot("web", "cmp-1")
    for number in range(30):
        say(house, "raised", server=f"s{number}", host=f"cmp-{number % 4 + 1}")
    say(house, "raised", server=web)
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=2)
    assert house.incident(report).status == "recovered", house.incident(report)
    assert house.server(web)["host"] != "cmp-1"
    assert {one.status for one in found(house)} == {"open"}


def test_an_operator_can_abort_an_alarm_incident_and_cannot_retry(house: HealHouse) -> None:
    say(house, "raised")
    orders, own = house.m.store.incident_actions, only(house).incident.id
    with pytest.raises(Conflict, match="nothing is recovered for it"):
        orders.retry(own, "ann")
    with pytest.raises(Conflict, match="not about a host"):
        orders.confirm_off(own, "ann", "it is dark")
    assert orders.abort(own, "ann", "it is the backup").sentence == (
        "aborted by ann: it is the backup"
    )
    with pytest.raises(Conflict, match="nothing is recovered for it"):
        orders.retry(own, "ann")
    say(house, "raised", 1)
    say(house, "cleared", 2)
    assert only(house).incident.status == "aborted"
    with pytest.raises(Conflict, match="aborted already"):
        orders.abort(own, "ann", "again")


def test_an_open_alarm_incident_stays_and_is_purged_with_its_observations(house: HealHouse) -> None:
    seen = say(house, "raised")
    store = house.m.store
    with store.database.read() as conn:
        mine = sa.select(observations.c.incident_id).where(observations.c.id == seen)
        assert conn.execute(mine).scalar() == only(house).incident.id
    later = store.database.now() + timedelta(days=1)
    store.tidy.observations(later, 10)
    assert len(found(house)) == 1
    say(house, "cleared", 1)
    store.tidy.observations(later, 10)
    assert found(house) == []


@pytest.mark.parametrize("odd", ["high", True, 10**400, float("inf")])
def test_a_threshold_that_is_no_number_is_refused(house: HealHouse, odd: Any) -> None:
    with pytest.raises(InvalidInput, match="a number, or null"):
        say(house, "raised", threshold=odd, value=None)


def test_an_alarm_without_a_threshold_is_shown_as_unknown(house: HealHouse) -> None:
    say(house, "raised", threshold=None, value=None)
    assert "value unknown, threshold unknown" in timeline(house)[1]
    assert plain(only(house).incident.details)["threshold"] is None


def test_each_kind_but_that_of_alarms_has_work() -> None:
    assert set(KINDS) - set(WORK) == {"alarm"}


# by its token, an agent speaks for its host only


@pytest.mark.parametrize("where", ["cmp-1", "cmp-2", "nowhere", "another project"])
def test_an_agent_raises_alarms_about_servers_of_its_host_only(
    house: HealHouse, where: str
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = house.boot("web", "cmp-2" if where == "cmp-2" else "cmp-1")
    project = "p" if where == "another project" else house.m.cloud.servers.show(server).project_id
    if where == "nowhere":
        server = "00000000-0000-4000-8000-000000000000"
    for event, minute in (("raised", 0), ("again", 1)):
        say(house, event, minute, server, ask_cloud=True, project=project)
        assert heard(house) == []
    house.run(seconds=10)
    assert [one.status for one in found(house)] == (["open"] if where == "cmp-1" else [])
    assert ("alarm.raised" in heard(house)) == (where == "cmp-1")
    say(house, "cleared", 2, server, ask_cloud=True, project=project)
    house.run(seconds=10)
    assert [one.status for one in found(house)] == (["recovered"] if where == "cmp-1" else [])
    assert ("alarm.cleared" in heard(house)) == (where == "cmp-1")


def test_the_agent_ends_its_alarm_also_after_the_server_moved_away(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = house.boot("web", "cmp-1")
    project = house.m.cloud.servers.show(server).project_id
    say(house, "raised", 0, server, ask_cloud=True, project=project)
    house.run(seconds=5)
    house.m.cloud.moves.live_migrate(server, "cmp-2")
    house.run(seconds=5)
    assert house.sim.running(server) == ["cmp-2"]
    say(house, "cleared", 1, server, ask_cloud=True, project=project)
    assert [one.status for one in found(house)] == ["recovered"]


def test_an_alarm_about_a_server_waits_while_the_cloud_cannot_be_asked_and_keeps_its_order(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = house.boot("web", "cmp-1")
    project = house.m.cloud.servers.show(server).project_id
    house.sim.change(only_calls=["servers.show"], failure_rate=1.0)
    for event, minute in (("raised", 0), ("cleared", 1), ("raised", 2)):
        say(house, event, minute, server, ask_cloud=True, project=project)
    house.run(minutes=1)
    assert heard(house) == []
    house.sim.change(failure_rate=0.0)
    house.run(minutes=3)
    told = [one for one in heard(house) if one.startswith("alarm.")]
    assert told == ["alarm.raised", "alarm.cleared", "alarm.raised"]
