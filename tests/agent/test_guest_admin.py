# SPDX-License-Identifier: Apache-2.0
"""What an agent answers about its guests: the list, what happens now, what would be told if."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.processes import eventually

from holdfast.agent import guest_filters, guest_store
from holdfast.agent.agent import MOST_WATCHERS, HostAgent, Tap, TappedReports
from holdfast.agent.guest_admin import GuestCommands
from holdfast.agent.guest_filters import FilterFile
from holdfast.agent.guest_store import Reading
from holdfast.agent.linux_processes import LinuxProcesses
from holdfast.agent.outbox import Outbox
from holdfast.agent.processes import ProcessWatch
from holdfast.cli import guest
from holdfast.drivers.sim.guests import SimGuests
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.errors import Conflict, DriverError, InvalidInput, NotFound, Unavailable
from holdfast.ports.guests import Event, Guest
from holdfast.runtime.clock import SystemClock

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
WEB = "11111111-1111-4111-8111-111111111111"
DB = "22222222-2222-4222-8222-222222222222"
ABOUT = {"project": "p-1", "flavor": "large", "ha": "yes"}
GUESTS = Reading(
    (
        Guest(WEB, "web-1", "running", "booted", metadata=ABOUT),
        Guest(DB, "db-1", "running", "booted", metadata={"heartbeat": "yes"}),
    ),
    NOON,
)
DIED = {"kind": "lifecycle", "detail": "stopped", "reason": "failed"}
PAUSED = {"kind": "lifecycle", "detail": "suspended", "reason": "ioerror"}


class House:
    """An agent whose thread is only started where a test wants it."""

    def __init__(self, folder: Path, tap: Tap) -> None:
        self.filters = folder / "filters.yaml"
        self.filters.write_text("rules: [{event: reboot, do: ignore}]\n")
        clock = SystemClock()
        if not (folder / "sim.db").exists():
            with contextlib.closing(Simulator(str(folder / "sim.db"), clock)) as sim:
                sim.add_host("cmp-1")
        self.tap = tap
        self.outbox = Outbox(str(folder / "outbox"))
        self.agent = HostAgent(
            "cmp-1",
            SimGuests("cmp-1", str(folder / "sim.db"), clock),
            ProcessWatch(LinuxProcesses(), []),
            FilterFile(str(self.filters)),
            self.outbox,
            SimpleNamespace(services_interval_s=60.0),
            clock,
            report_stored=lambda: None,
            tap=tap,
        )
        self.ask = GuestCommands(self.agent, self.outbox, tap, clock, {"pid": 7})
        self.at = NOON

    def hear(self, name: str, said: Mapping[str, str]) -> Event:
        self.at += timedelta(seconds=1)
        event = Event({"web-1": WEB, "db-1": DB}[name], name, at=self.at, **said)
        self.agent.turn([event])
        return event

    def rows(self) -> dict[str, Any]:
        return {one["name"]: one for one in self.ask.list_all({})["guests"]}

    def bodies(self) -> list[Mapping[str, Any]]:
        return [item.body for item in self.outbox.heads()]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path, Tap())
    made.agent.turn([GUESTS])
    yield made
    made.agent.stop()
    made.outbox.close()


# list and status


def test_the_status_says_what_is_lost_of_what_is_measured(house: House) -> None:
    said = {"troubles": {"alarms": "the disk is full"}, "alarms_lost": 3}
    about = (house.agent, house.outbox, house.tap, SystemClock())
    asked = GuestCommands(*about, {}, metrics=lambda: said)
    status = asked.status({})
    assert list(guest.losses(status)) == [
        "alarms of the agent of cmp-1 does not work: the disk is full",
        "3 alarms could not be written down and are lost",
    ]
    assert list(guest.losses(house.ask.status({}))) == []


def test_every_guest_is_listed_with_what_is_known_of_it(house: House) -> None:
    rows = house.rows()
    assert list(rows) == ["db-1", "web-1"]
    web = rows["web-1"]
    assert (web["life"], web["reason"], web["since"]) == ("running", "booted", NOON.isoformat())
    assert (web["project"], web["flavor"], web["ha"]) == ("p-1", "large", "yes")
    assert rows["db-1"]["heartbeat"] == "yes"
    assert web["metadata"] == ABOUT
    assert web["trouble"] == []


def test_a_fault_shows_the_time_until_its_report_and_then_the_report(house: House) -> None:
    paused = house.hear("db-1", PAUSED)
    died = house.hear("web-1", DIED)
    rows = house.rows()
    (waits,) = rows["db-1"]["trouble"]
    assert (waits["event"], waits["detail"], waits["do"]) == ("io_error", "pause", "recover")
    assert 0 < waits["due_s"] <= 30
    assert waits["reported"] == ""
    assert (rows["db-1"]["reason"], rows["db-1"]["since"]) == ("ioerror", paused.at.isoformat())
    (told,) = rows["web-1"]["trouble"]
    assert (told["reported"], told["due_s"]) == ("failed", None)
    assert "defaults line" in told["rule"]
    assert rows["web-1"]["life"] == "off"
    assert rows["web-1"]["since"] == died.at.isoformat()


def test_what_waits_on_disk_is_counted_with_its_age(house: House) -> None:
    assert house.ask.list_all({})["outbox"] == {"waits": 0, "oldest_s": None, "put_aside": 0}
    house.hear("web-1", DIED)
    time.sleep(0.05)
    outbox = house.ask.list_all({})["outbox"]
    assert outbox["waits"] == 1
    assert 0.05 <= outbox["oldest_s"] < 60


def test_status_counts_reports_that_wait_and_those_put_aside(house: House) -> None:
    well = {**house.ask.status({}), "deaf": ""}
    assert guest.well(well).endswith("knows 2 guests; all is delivered")
    assert list(guest.undelivered(well)) == []
    house.hear("web-1", DIED)
    house.hear("db-1", DIED)
    (first, _second) = house.outbox.heads()
    waiting = house.ask.status({})
    assert (waiting["outbox"]["waits"], waiting["outbox"]["put_aside"]) == (2, 0)
    assert "2 reports wait, the oldest for 0 s" in guest.well(waiting)
    old = {**waiting, "outbox": {"waits": 2, "oldest_s": 90.0, "put_aside": 0}}
    assert list(guest.undelivered(old)) == [
        "the agent of cmp-1: 2 reports wait, the oldest for 90 s"
    ]
    house.outbox.park(first, "no such server")
    assert list(guest.undelivered(house.ask.status({}))) == [
        "the agent of cmp-1: 1 reports wait, the oldest for 0 s; 1 were not taken and put aside"
    ]


def test_status_does_not_wait_for_a_disk_that_hangs(house: House) -> None:
    house.hear("web-1", DIED)
    with house.outbox._lock:  # whoever writes to the disk holds it
        assert house.ask.status({})["outbox"]["waits"] == 1


def test_the_backlog_outlives_the_agent_and_shrinks_with_each_delivery(
    house: House, tmp_path: Path
) -> None:
    house.hear("web-1", DIED)
    again = House(tmp_path, Tap())
    try:
        assert again.outbox.backlog.waits == 1
        assert again.outbox.backlog.oldest_at == again.bodies()[0]["observed_at"]
        again.outbox.done(again.outbox.heads()[0])
        assert (again.outbox.backlog.waits, again.outbox.backlog.oldest_at) == (0, None)
    finally:
        again.agent.stop()
        again.outbox.close()


def test_how_a_guest_lives_and_since_when_outlives_the_agent(house: House, tmp_path: Path) -> None:
    before = house.rows()
    again = House(tmp_path, Tap())
    try:
        assert again.rows() == before
    finally:
        again.agent.stop()
        again.outbox.close()


def test_status_says_what_is_wrong(house: House) -> None:
    said = house.ask.status({})
    assert (said["host"], said["guests"], said["pid"]) == ("cmp-1", 2, 7)
    assert "not been read" in said["deaf"]
    assert said["stuck"] == said["filters_problem"] == ""
    house.filters.write_text("rules: nonsense\n")
    house.agent.turn([])
    assert "filters.yaml" in house.ask.status({})["filters_problem"]


def test_the_status_names_a_full_disk_and_no_event_is_lost(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, note, full, tries = house.outbox.put, house.outbox.note, [True], list[Any]()

    def sick(*args: Any) -> Any:
        tries.append(args)
        if full:
            raise DriverError("outbox", "no space left", retryable=True)
        return put(*args)

    def unreadable(name: str) -> Any:
        sick((), {})
        return note(name)

    monkeypatch.setattr(house.outbox, "put", sick)
    monkeypatch.setattr(house.outbox, "note", unreadable)
    house.agent.start()
    house.agent.heard(Event(WEB, "web-1", at=NOON, **DIED))
    eventually(lambda: "no space left" in house.ask.status({})["stuck"])
    assert house.rows()["web-1"]["life"] == "running"  # as it was written down
    tried = len(tries)
    eventually(lambda: len(tries) > tried + 2)
    full.clear()
    eventually(lambda: not house.ask.status({})["stuck"])
    eventually(house.bodies)
    assert house.bodies()[0]["subject"] == f"server:{WEB}"


def test_what_is_not_understood_is_named(house: House) -> None:
    for ask in (house.ask.status, house.ask.list_all, house.ask.simulate):
        with pytest.raises(InvalidInput, match="`colour` is unknown"):
            ask({"colour": "red"})
    with pytest.raises(InvalidInput, match="`guest` is a text"):
        next(house.ask.watch({"guest": ["web-1"]}))


# watch


def seen(stream: Any) -> Iterator[dict[str, Any]]:
    return itertools.takewhile(lambda item: item is not None, stream)


def test_what_happens_is_seen_in_its_order(house: House) -> None:
    class Reports:
        def report(self, body: Mapping[str, Any]) -> None:
            raise errors.pop(0)

        def view(self, observer: str, body: Mapping[str, Any]) -> None:
            raise AssertionError

    errors = [Unavailable("the API is away"), InvalidInput("never")]
    with contextlib.closing(house.ask.watch({})) as stream:
        standing = next(stream)
        assert standing is not None
        assert [one["name"] for one in standing["record"]["guests"]] == ["web-1", "db-1"]
        house.hear("db-1", PAUSED)
        house.hear("web-1", DIED)
        house.agent.turn([GUESTS])
        reports = TappedReports(Reports(), house.tap)
        for error in (Unavailable, InvalidInput):
            with pytest.raises(error):
                reports.report(house.bodies()[0])
        items = list(seen(stream))
    assert [item["what"] for item in items] == [
        *("event", "verdict", "event", "verdict", "report", "reading", "report"),
        *("delivery", "delivery"),
    ]
    assert (items[1]["guest"], items[1]["do"], items[1]["after_s"]) == ("db-1", "recover", 30.0)
    assert (items[4]["guest"], items[4]["state"]) == ("web-1", "failed")
    assert items[5]["states"] == {"running": 2}
    assert (items[6]["guest"], items[6]["state"]) == ("web-1", "well")
    assert [item["outcome"] for item in items[7:]] == ["waits", "refused"]
    assert not house.tap.watched


def test_one_guest_alone_can_be_watched(house: House) -> None:
    for ref in ("web-1", WEB):
        with contextlib.closing(house.ask.watch({"guest": ref})) as stream:
            standing = next(stream)
            assert standing is not None
            assert [one["name"] for one in standing["record"]["guests"]] == ["web-1"]
            house.hear("db-1", PAUSED)
            house.hear("web-1", {"kind": "agent", "detail": "connected"})
            house.agent.turn([GUESTS])
            event, reading = seen(stream)
        assert event["record"]["uuid"] == WEB
        assert [one["name"] for one in reading["record"]["guests"]] == ["web-1"]


def test_a_replay_of_a_watched_stream_gives_the_same_reports(house: House) -> None:
    with contextlib.closing(house.ask.watch({})) as stream:
        house.hear("web-1", {"kind": "agent", "detail": "connected"})  # before it begins
        records = [next(stream)]
        house.hear("web-1", DIED)
        house.hear("db-1", {"kind": "lifecycle", "detail": "crashed", "reason": "panicked"})
        records += seen(stream)
    lines = [json.dumps(record["record"]) for record in records if record and "record" in record]
    told = guest_store.replay(guest_store.read(lines, "x"), guest_filters.default())
    again = {(one.name, one.state) for _, one in told}
    assert again == {("web-1", "failed"), ("db-1", "failed")}
    assert {body["subject"] for body in house.bodies()} == {f"server:{WEB}", f"server:{DB}"}


def test_a_recording_does_not_begin_with_what_was_over_before_it(house: House) -> None:
    off = Guest(WEB, "web-1", "shutoff", "crashed", metadata=ABOUT)
    for there in (GUESTS.guests, (off,)):
        house.hear("web-1", {"kind": "lifecycle", "detail": "started", "reason": "booted"})
        house.at += timedelta(seconds=1)
        house.agent.turn([Reading(there, house.at)])
        with contextlib.closing(house.ask.watch({})) as stream:
            standing = next(stream)
        assert standing is not None
        lines = [json.dumps(standing["record"])]
        told = guest_store.replay(guest_store.read(lines, "x"), guest_filters.default())
        failed = [one.name for _, one in told]
        assert failed == (["web-1"] if there == (off,) else [])  # that is not over
    house.hear("web-1", {"kind": "lifecycle", "detail": "started", "reason": "booted"})
    house.hear("web-1", {"kind": "lifecycle", "detail": "stopped", "reason": "destroyed"})
    with contextlib.closing(house.ask.watch({})) as stream:
        standing = next(stream)
    assert standing is not None
    (web,) = standing["record"]["guests"]
    assert (web["state"], web["reason"]) == ("shutoff", "")


def test_too_many_cannot_watch_and_who_leaves_makes_room(house: House) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_WATCHERS):
            next(stack.enter_context(contextlib.closing(house.ask.watch({}))))
        with pytest.raises(Conflict, match="8 watch already"):
            next(house.ask.watch({}))
    next(house.ask.watch({}))


def test_a_flood_of_events_waits_for_no_watcher_and_a_slow_watcher_gets_the_number_missed(
    tmp_path: Path,
) -> None:
    house = House(tmp_path, Tap(most=100))
    house.agent.start()
    try:
        with contextlib.closing(house.ask.watch({})) as stream:
            next(stream)
            (slow,) = house.tap._watchers
            for number in range(5_000):
                said = {"kind": "block_job", "detail": "completed", "reason": str(number)}
                house.agent.heard(Event(WEB, "web-1", at=NOON, **said))
            # nobody reads, and all of it is judged
            eventually(lambda: slow._waiting.qsize() + slow._missed >= 5_000)
            assert house.ask.status({})["unjudged"] == 0
            items = list(itertools.takewhile(lambda one: one["what"] != "missed", seen(stream)))
            assert len(items) == 100
            house.agent.heard(Event(WEB, "web-1", at=NOON, kind="reboot"))
            assert "event" in [one["what"] for one in itertools.islice(filter(None, stream), 1)]
    finally:
        house.agent.stop()
        house.outbox.close()


# simulate


def test_a_simulation_shows_the_reports_and_changes_nothing(house: House) -> None:
    before = house.rows()
    said = house.ask.simulate({"records": [DIED], "guest": "web-1"})
    (told,) = said["reports"]
    assert (told["guest"], told["state"], told["after_s"]) == ("web-1", "failed", 0)
    assert "defaults line" in told["rule"]
    assert house.rows() == before
    assert house.bodies() == []


def test_a_simulation_shows_the_end_of_a_grace_time(house: House) -> None:
    (told,) = house.ask.simulate({"records": [PAUSED], "guest": DB})["reports"]
    assert (told["event"], told["after_s"]) == ("io_error", 30)


def test_what_ends_in_time_is_none(house: House) -> None:
    records = [
        {**PAUSED, "at": NOON.isoformat()},
        {
            "kind": "lifecycle",
            "detail": "resumed",
            "reason": "unpaused",
            "at": (NOON + timedelta(seconds=20)).isoformat(),
        },
    ]
    assert house.ask.simulate({"records": records, "guest": "db-1"})["reports"] == []


def test_a_simulation_uses_the_filters_in_force_and_names_the_reason_for_no_report(
    house: House,
) -> None:
    house.filters.write_text("rules: [{event: stopped, project: p-1, do: ignore}]\n")
    house.agent.turn([])
    said = house.ask.simulate({"records": [DIED], "guest": "web-1"})
    assert said["reports"] == []
    (judged,) = said["judged"]
    assert (judged["sign"], judged["do"]) == ("stopped failed", "ignore")
    assert "filters.yaml line 1" in judged["rule"]


def test_others_in_trouble_are_not_mixed_up_with_it(house: House) -> None:
    house.hear("db-1", PAUSED)
    said = house.ask.simulate({"records": [DIED], "guest": "web-1"})
    assert [one["guest"] for one in said["reports"]] == ["web-1"]


def test_a_reading_can_be_supposed_too(house: House) -> None:
    gone = {"guests": [{"uuid": WEB, "name": "web-1", "state": "shutoff", "reason": "crashed"}]}
    said = house.ask.simulate({"records": [gone]})
    assert [(one["guest"], one["state"]) for one in said["reports"]] == [("web-1", "failed")]


def test_a_simulation_for_real_is_marked_and_a_real_death_after_it_is_reported_too(
    house: House,
) -> None:
    said = house.ask.simulate({"records": [DIED], "guest": "web-1", "for_real": True})
    assert said["for_real"] is True
    (body,) = house.bodies()
    assert (body["subject"], body["state"]) == (f"server:{WEB}", "failed")
    assert body["evidence"]["simulated"] is True
    assert body["evidence"]["host"] == "cmp-1"
    assert house.rows()["web-1"]["life"] == "running"
    house.outbox.done(house.outbox.heads()[0])
    house.hear("web-1", DIED)
    (body,) = house.bodies()
    assert "simulated" not in body["evidence"]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"records": []}, "1000 at most"),
        ({"records": [DIED] * 1001, "guest": "web-1"}, "1000 at most"),
        ({"records": "x"}, "1000 at most"),
        ({"records": [DIED]}, "which guest"),
        ({"records": [7]}, "write"),
        ({"records": [{**DIED, "kind": "wedding"}], "guest": "web-1"}, "there are lifecycle"),
        ({"records": [{**DIED, "colour": "red"}], "guest": "web-1"}, "`colour` is unknown"),
        ({"records": [{**DIED, "at": "noon"}], "guest": "web-1"}, "isoformat"),
        ({"records": [DIED], "guest": "web-1", "for_real": "yes"}, "true or false"),
        ({"records": [DIED] * 2, "guest": "web-1", "for_real": True}, "a single event"),
        ({"records": [{"guests": []}], "for_real": True}, "a single event"),
        ({"records": [{"guests": []}], "guest": "web-1"}, "leave 'web-1' out"),
        ({"records": [{**DIED, "uuid": DB, "name": "x"}], "guest": "web-1"}, "leave 'web-1' out"),
    ],
)
def test_what_cannot_be_supposed_is_refused(house: House, args: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        house.ask.simulate(args)


def test_a_guest_is_found_by_what_is_unique(house: House) -> None:
    with pytest.raises(NotFound, match="knows no guest 'web-9'"):
        house.ask.simulate({"records": [DIED], "guest": "web-9"})
    twin = Guest(DB.replace("2", "3"), "web-1", "running", "booted")
    house.agent.turn([Reading((*GUESTS.guests, twin), NOON)])
    with pytest.raises(Conflict, match="2 guests are called web-1"):
        house.ask.simulate({"records": [DIED], "guest": "web-1"})
    assert house.ask.simulate({"records": [DIED], "guest": WEB})["reports"]
