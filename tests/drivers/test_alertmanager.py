# SPDX-License-Identifier: Apache-2.0
"""Alarms at a real Alertmanager, by way of the rows that are written with them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.conftest import serve
from tests.processes import free_port
from tests.servers.alertmanager import Alertmanager

from holdfast import conf as configuration
from holdfast.db import Store, migrations
from holdfast.db.alarms import Wanted
from holdfast.db.tables import operations
from holdfast.drivers import publishers
from holdfast.drivers.publishers.alertmanager import Alertmanager as AlertmanagerSink
from holdfast.jobs.outbox import notice
from holdfast.model.errors import DriverError
from holdfast.ports.publishers import ALARMS, ANNOUNCE, INSTANCE_HA, NEWS, LeaseNotice, sinks_for
from holdfast.recovery.events import IncidentPublisher
from holdfast.runtime.clock import SystemClock

BEGAN = datetime.now(UTC) - timedelta(minutes=10)
BOARD, CHAT = "board", "chat"


@pytest.fixture(scope="module")
def alertmanager() -> Iterator[Alertmanager]:
    yield from serve(Alertmanager())


Connect = Callable[..., AlertmanagerSink]


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    def make(url: str, authorization: str = "", **options: Any) -> AlertmanagerSink:
        conf = configuration.load([], [])
        if authorization:
            path = tmp_path / "authorization"
            path.write_text(authorization + "\n")
            options["authorization_file"] = str(path)
        for name, value in {"urls": [url], "timeout_s": 60.0, **options}.items():
            conf.set_override(f"alertmanager_{name}", value, group="publishers")
        (sink,) = publishers.connect(conf, SystemClock())
        assert isinstance(sink, AlertmanagerSink)
        return sink

    return make


@pytest.fixture
def sink(alertmanager: Alertmanager, connect: Connect) -> AlertmanagerSink:
    return connect(alertmanager.url, alertmanager.authorization)


class Agent:
    """What it says of one alarm of a guest of its own, and what that makes Holdfast tell."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.guest = str(uuid.uuid4())
        self._told: set[str] = set()

    def say(self, event: str, minute: int, began: int = 0, **more: Any) -> None:
        at, first = (BEGAN + timedelta(minutes=m) for m in (minute, began))
        key = f"{self.guest}/hot/{first.isoformat()}"
        said = {
            "rule": "hot", "version": "1-aa", "kind": "volume", "entity": f"{self.guest}/vda",
            "name": "wéb-1", "project": "blue", "severity": "critical", "value": 1.5,
            "threshold": 0.95, "first_at": first.isoformat(), "at": at.isoformat(), "key": key,
            **more,
        }  # fmt: skip
        values = {
            "observer": "agent@cmp-1", "subject": f"server:{self.guest}", "kind": "alarm",
            "state": event, "since": first, "observed_at": at, "key": f"{key}/{event}/{minute}",
            "evidence": {**said, "host": "cmp-1"},
        }  # fmt: skip
        self.store.observations.add(str(uuid.uuid4()), values)

    def told(self, to: str = BOARD) -> list[LeaseNotice]:
        """What was written for that sink since the last time, in order."""
        o = operations.c
        query = sa.select(o.id, o.payload).where(o.kind == ANNOUNCE).order_by(o.sequence)
        with self.store.database.read() as conn:
            rows = [row for row in conn.execute(query) if row.payload["sink"] == to]
        fresh = [row for row in rows if row.id not in self._told]
        self._told |= {row.id for row in fresh}
        return [notice(row.payload) for row in fresh]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with contextlib.closing(Store(f"sqlite:///{tmp_path / 'x.db'}", SystemClock())) as store:
        migrations.sync(store.database)
        store.database.publisher = IncidentPublisher(people=(CHAT,), boards=(BOARD,))
        yield Agent(store)


def standing(alertmanager: Alertmanager, agent: Agent) -> list[dict[str, Any]]:
    return [
        alert for alert in alertmanager.alerts() if alert["labels"].get("instance") == agent.guest
    ]


def test_an_alert_stays_active_until_the_alarm_is_resolved(
    alertmanager: Alertmanager, sink: AlertmanagerSink, agent: Agent
) -> None:
    agent.say("raised", 1)
    (raised,) = agent.told()
    sink.send(raised)
    sink.send(raised)  # told twice
    (alert,) = standing(alertmanager, agent)
    assert alert["labels"] == {
        "alertname": "hot",
        "severity": "critical",
        "host": "cmp-1",
        "kind": "volume",
        "entity": f"{agent.guest}/vda",
        "name": "wéb-1",
        "project": "blue",
        "instance": agent.guest,
        "alarm": raised.payload["id"],
    }
    assert alert["annotations"] == {
        "summary": "hot of wéb-1 on cmp-1",
        "state": "firing",
        "value": "1.5",
        "threshold": "0.95",
        "rules_version": "1-aa",
    }
    began = datetime.fromisoformat(alert["startsAt"])
    assert abs(began - BEGAN) < timedelta(milliseconds=1)
    ahead = datetime.fromisoformat(alert["endsAt"]) - datetime.now(UTC)
    assert ahead > timedelta(days=300)  # or it would be over by itself in five minutes
    agent.say("cleared", 2, name="")  # nobody knows any more what it was called
    (cleared,) = agent.told()
    sink.send(cleared)
    assert standing(alertmanager, agent) == []


def test_an_end_in_the_future_by_a_wrong_clock_ends_the_alert(
    alertmanager: Alertmanager, sink: AlertmanagerSink, agent: Agent
) -> None:
    agent.say("raised", 1)
    agent.say("cleared", 60)
    raised, cleared = agent.told()
    sink.send(raised)
    assert standing(alertmanager, agent)
    sink.send(cleared)
    assert standing(alertmanager, agent) == []


def test_an_alert_has_a_single_severity_at_a_time(
    alertmanager: Alertmanager, sink: AlertmanagerSink, agent: Agent
) -> None:
    seen = []
    agent.say("raised", 1)
    agent.say("no_data", 2, severity="info", value=None)
    agent.say("raised", 3)
    agent.say("cleared", 4, severity="warning")
    for each in agent.told():
        sink.send(each)
        seen.append(
            [
                (one["labels"]["severity"], one["annotations"]["state"])
                for one in standing(alertmanager, agent)
            ]
        )
    assert seen == [[("critical", "firing")], [("info", "no_data")], [("critical", "firing")], []]


def test_a_late_end_of_an_alarm_does_not_end_the_next_alarm(
    alertmanager: Alertmanager, sink: AlertmanagerSink, agent: Agent
) -> None:
    agent.say("raised", 1)
    agent.say("cleared", 2)
    agent.say("raised", 4, began=3)
    first, over, second = sorted(agent.told(), key=lambda one: one.payload["reported_at"])
    for each in (first, second, over):
        sink.send(each)
    (alert,) = standing(alertmanager, agent)
    assert alert["labels"]["alarm"] == second.payload["id"]


def test_the_end_of_a_muted_alarm_is_sent_to_alertmanager_only(
    alertmanager: Alertmanager, sink: AlertmanagerSink, agent: Agent
) -> None:
    agent.say("raised", 1)
    (raised,) = agent.told()
    assert len(agent.told(CHAT)) == 1
    sink.send(raised)
    (row,) = agent.store.alarms.list_all(Wanted())
    agent.store.alarms.mute(row["id"], "ann", timedelta(hours=1))
    agent.say("again", 2)
    agent.say("cleared", 3)
    (cleared,) = agent.told()
    sink.send(cleared)
    assert standing(alertmanager, agent) == []
    assert agent.told(CHAT) == []


def test_alertmanager_gets_alarms_only(connect: Connect) -> None:
    sink = connect("http://10.0.0.1:9093")
    heard = [sinks_for([sink], what) for what in (NEWS, INSTANCE_HA, ALARMS)]
    assert heard == [(), (), (sink.name,)]


def refusal(sink: AlertmanagerSink, agent: Agent) -> DriverError:
    agent.say("raised", 1)
    (raised,) = agent.told()
    with pytest.raises(DriverError) as caught:
        sink.send(raised)
    return caught.value


def test_an_alert_refused_by_alertmanager_is_parked(
    alertmanager: Alertmanager, connect: Connect, agent: Agent
) -> None:
    error = refusal(connect(alertmanager.url, "Basic bm90OnlvdQ=="), agent)
    assert (error.retryable, "401" in error.message) == (False, True)


def test_an_unreachable_or_frozen_alertmanager_is_left_in_time_and_retried(
    alertmanager: Alertmanager, connect: Connect, agent: Agent
) -> None:
    assert refusal(connect(f"http://127.0.0.1:{free_port()}"), agent).retryable
    sink = connect(alertmanager.url, alertmanager.authorization, timeout_s=0.3)
    with alertmanager.paused():
        agent.say("again", 2)
        (again,) = agent.told()
        with pytest.raises(DriverError, match=r"no answer|timed out") as caught:
            sink.send(again)
    assert caught.value.retryable
    connect(alertmanager.url, alertmanager.authorization).send(again)
    assert len(standing(alertmanager, agent)) == 1


@pytest.mark.parametrize(
    ("url", "options", "hint"),
    [
        ("controller:9093", {}, "alertmanager_urls: controller:9093 must be https://host"),
        ("https://ann:pass@alert.example", {}, "without user name"),
        ("https://alert.example", {"cafile": "/nonexistent"}, "alertmanager_cafile"),
        ("https://alert.example", {"authorization_file": "/nonexistent"}, "cannot be read"),
    ],
)
def test_an_unusable_alertmanager_setting_is_refused_at_the_start(
    connect: Connect, url: str, options: dict[str, Any], hint: str
) -> None:
    with pytest.raises(DriverError, match=hint):
        connect(url, **options)
