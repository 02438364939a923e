# SPDX-License-Identifier: Apache-2.0
"""What a rule asks for is done, once, by the manager of a real house on the simulated cloud."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from holdfast.alarms.central import ALARM_ACTION
from holdfast.db.tables import operations, steps
from tests.api.house import OWN, House
from tests.api.rules import NOON, alarm_body, report
from tests.processes import eventually

LATER = NOON.replace("12:00", "12:05")


def deeds(house: House) -> list[tuple[str, str, str]]:
    """Of what was asked: what, how it stands, and the sentence."""
    o = operations.c
    query = sa.select(o.payload, o.status, o.sentence).where(o.kind == ALARM_ACTION)
    with house.core.store.database.read() as conn:
        rows = conn.execute(query.order_by(o.created_at)).all()
    return [(row.payload["action"], row.status, row.sentence) for row in rows]


def of_host(*actions: str, event: str = "raised", at: str = NOON, host: str = "cmp-1") -> Any:
    about: dict[str, Any] = {"kind": "host", "entity": host, "project": "", "host": host}
    key = f"{host}/temperature/{NOON}"
    body = alarm_body(event, at, **about, rule="temperature", key=key, actions=list(actions))
    return {**body, "observer": f"agent@{host}", "subject": f"host:{host}"}


def server(house: House) -> dict[str, Any]:
    (found,) = house.services.sim().world()["servers"]
    return dict(found)


def standing(house: House, name: str) -> dict[str, Any]:
    found = house.call("GET", f"{OWN}/hosts").json["hosts"]
    return next(one for one in found if name in (one.get("name"), one.get("host")))


def done(house: House, count: int = 1) -> list[tuple[str, str, str]]:
    def all_over() -> bool:
        found = deeds(house)
        return len(found) == count and all(one[1] in ("done", "error") for one in found)

    eventually(all_over)
    return deeds(house)


def test_a_host_takes_no_new_servers_once_its_alarm_asks_for_that(house: House) -> None:
    report(house, of_host("notify", "disable_host"))
    report(house, of_host("notify", "disable_host"))
    ((action, status, _),) = done(house)
    assert (action, status) == ("disable_host", "done")
    services = {one.host: one for one in house.manager.cloud.services.list()}
    assert not services["cmp-1"].enabled
    assert "alarm temperature" in services["cmp-1"].disabled_reason
    assert services["cmp-2"].enabled


def test_a_server_moves_away_while_it_runs(house: House) -> None:
    web = server(house)
    about = {"entity": web["id"], "host": "cmp-6", "actions": ["migrate_away"]}
    body = {**alarm_body(**about), "observer": "agent@cmp-6", "subject": f"server:{web['id']}"}
    report(house, body)
    ((action, status, sentence),) = done(house)
    assert (action, status) == ("migrate_away", "done"), sentence
    assert server(house)["host"] != "cmp-6"
    assert server(house)["status"] == "ACTIVE"


def test_what_was_done_and_not_written_down_is_not_done_again(house: House) -> None:
    """As after kill -9 between a call and the row that says so."""
    web = server(house)
    about = {"entity": web["id"], "host": "cmp-6", "actions": ["migrate_away"]}
    body = {**alarm_body(**about), "observer": "agent@cmp-6", "subject": f"server:{web['id']}"}
    report(house, body)
    done(house)
    there = server(house)["host"]
    store = house.core.store
    with store.database.write() as conn:
        conn.execute(sa.delete(steps))
        again = {"status": "waiting", "is_open": True, "next_try_at": store.database.now(conn)}
        mine = sa.update(operations).where(operations.c.kind == ALARM_ACTION)
        conn.execute(mine.values(**again))
    house.manager.loop.wake()
    ((_, status, _),) = done(house)
    assert (status, server(house)["host"]) == ("done", there)
    moves = house.manager.cloud.moves.migrations(source_host="cmp-6", kind="live-migration")
    assert len(moves) == 1


def test_an_incident_is_opened_and_shown_and_closes_by_itself(house: House) -> None:
    report(house, of_host("incident"))
    incidents = f"{OWN}/incidents"

    def listed(query: str) -> list[dict[str, Any]]:
        return list(house.call("GET", incidents, query_string=query).json["incidents"])

    (one,) = listed("kind=alarm&open=true&host=cmp-1")
    assert (one["kind"], one["status"], one["host"]) == ("alarm", "open", "cmp-1")
    assert listed("kind=host") == []
    shown = house.call("GET", f"{incidents}/{one['id']}").json["incident"]
    assert shown["subject"] == f"alarm:{one['id']}"
    assert "threshold 0.95" in shown["timeline"][1]["sentence"]
    assert (shown["work"], shown["steps"], shown["verdicts"]) == (None, [], [])
    told = house.call("GET", f"{incidents}/{one['id']}/explanation").json["explanation"]["text"]
    assert "about alarm temperature of host:cmp-1" in told
    assert "value 0.97" in told and "starts no recovery" in told
    again = house.call("POST", f"{incidents}/{one['id']}/retry", json={})
    assert again.status_code == 409
    assert "nothing is recovered for it" in again.json["errors"][0]["detail"]
    window = {"matcher": {"kind": "alarm"}, "reason": "quiet", "duration_s": 60}
    assert house.call("POST", f"{OWN}/maintenance-windows", json=window).status_code == 400
    report(house, of_host("incident", event="cleared", at=LATER))
    assert [x["status"] for x in listed("kind=alarm")] == ["recovered"]
    assert deeds(house) == []


def test_an_alarm_about_a_server_that_is_elsewhere_moves_nothing(house: House) -> None:
    web = server(house)
    about = {"entity": web["id"], "host": "cmp-1", "actions": ["migrate_away"]}
    report(house, {**alarm_body(**about), "subject": f"server:{web['id']}"})
    ((_, status, _),) = done(house)
    assert (status, server(house)["host"]) == ("done", "cmp-6")


def test_reservations_leave_a_host_before_it_fails_and_it_may_return(house: House) -> None:
    lease = house.lease()
    hosts = house.core.store.ledger
    (held,) = hosts.lease(lease["id"]).allocations()
    name = next(one.name for one in hosts.enrolled() if one.id == held.host_id)
    report(house, of_host("repair_ahead", host=name))
    done(house)

    def moved() -> bool:
        (now,) = hosts.lease(lease["id"]).allocations()
        return now.host_id != held.host_id

    eventually(moved)
    assert standing(house, name)["state"] == "down"
    assert "alarm temperature: it is about to fail" in str(standing(house, name))
    report(house, of_host("repair_ahead", event="cleared", at=LATER, host=name))
    assert [one[:2] for one in done(house, 2)] == [
        ("repair_ahead", "done"),
        ("repair_over", "done"),
    ]

    def well_again() -> bool:
        return standing(house, name)["state"] in ("returning", "up")

    eventually(well_again)


def test_a_host_may_return_though_its_rule_asks_for_nothing_any_more(house: House) -> None:
    """It was changed while the alarm stood, which keeps its alarms."""
    report(house, of_host("repair_ahead"))
    done(house)
    assert standing(house, "cmp-1")["state"] == "down"
    report(house, of_host("notify", event="cleared", at=LATER))
    assert [one[:2] for one in done(house, 2)][1] == ("repair_over", "done")
    eventually(lambda: standing(house, "cmp-1")["state"] in ("returning", "up"))


def test_a_host_may_return_when_somebody_ends_its_alarm(house: House) -> None:
    report(house, of_host("repair_ahead", "incident"))
    done(house)
    (alarm,) = house.call("GET", f"{OWN}/alarms").json["alarms"]
    ended = house.call("POST", f"{OWN}/alarms/{alarm['id']}/end")
    assert (ended.status_code, ended.json["alarm"]["state"]) == (200, "ok")
    eventually(lambda: standing(house, "cmp-1")["state"] in ("returning", "up"))
    (case,) = house.call("GET", f"{OWN}/incidents", query_string="kind=alarm").json["incidents"]
    assert case["status"] == "recovered"
    assert "is over: ended by" in case["sentence"]


def test_a_host_stays_out_of_use_while_another_alarm_of_the_rule_stands(house: House) -> None:
    """Of an agent that lost its memory and raised it anew: somebody ends what it left behind."""
    report(house, of_host("repair_ahead"))
    (left,) = house.call("GET", f"{OWN}/alarms").json["alarms"]
    anew = of_host("repair_ahead", at=LATER)
    anew["evidence"] |= {"key": "cmp-1/temperature/anew"}
    report(house, {**anew, "key": "anew"})
    done(house, 2)
    house.call("POST", f"{OWN}/alarms/{left['id']}/end")
    ended = [sentence for action, _, sentence in _steps(house) if action == "repair_over"]
    assert "stays out of use" in ended[0]
    assert standing(house, "cmp-1")["state"] == "down"


def _steps(house: House) -> list[tuple[str, str, str]]:
    """Of what is over: what was asked, which step, and its sentence."""
    done(house, 3)
    o, s = operations.c, steps.c
    both = sa.select(o.payload, s.name, s.sentence).join(steps, s.operation_id == o.id)
    with house.core.store.database.read() as conn:
        rows = conn.execute(both.where(s.name == "begin")).all()
    return [(row.payload["action"], row.name, row.sentence) for row in rows]


def test_a_pause_holds_what_alarms_ask_for_and_an_alarm_that_is_over_asks_for_nothing(
    house: House,
) -> None:
    paused = house.call("POST", f"{OWN}/pauses", json={"reason": "a storm"})
    assert paused.status_code == 201
    report(house, of_host("disable_host"))
    eventually(lambda: "paused" in deeds(house)[0][2])
    report(house, of_host("disable_host", event="cleared", at=LATER))
    assert house.call("DELETE", f"{OWN}/pauses").status_code == 204
    store = house.core.store
    with store.database.write() as conn:
        mine = sa.update(operations).where(operations.c.kind == ALARM_ACTION)
        conn.execute(mine.values(next_try_at=store.database.now(conn)))
    house.manager.loop.wake()
    ((_, status, sentence),) = done(house)
    assert status == "done"
    services = {one.host: one for one in house.manager.cloud.services.list()}
    assert services["cmp-1"].enabled, sentence
