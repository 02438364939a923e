# SPDX-License-Identifier: Apache-2.0
"""What Nova says becomes standings at once; poison is set aside; old news only makes us look."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import conf as configuration
from holdfast.drivers import nova_notifications as brokers
from holdfast.drivers import nova_notifications as nova_driver
from holdfast.drivers.nova_notifications import NovaNotices
from holdfast.hoststatus import poll
from holdfast.hoststatus.push import Dispatcher, Monitors
from holdfast.hoststatus.status import DOWN, RETURNING, UP, StatusReport
from holdfast.model.errors import DriverError, Unavailable
from holdfast.model.nova_notification import Notice
from holdfast.runtime.clock import SystemClock
from tests.drivers.test_notices import Cable, World, service
from tests.e2e.deployment import write_config
from tests.hoststatus.site import Gate, Hurry, Own, Site
from tests.hoststatus.test_compute import notice
from tests.processes import eventually, script
from tests.servers.rabbitmq import RabbitMQ


class Ear:
    def __init__(self, site: Site) -> None:
        self.site, self.looks = site, 0
        self.dispatcher = Dispatcher(site.watch, site.store.host_status, site.settings, self._look)

    def _look(self) -> None:
        self.looks += 1

    def hear(self, age_s: float = 0.0, **about: Any) -> None:
        at = self.site.clock.now() - timedelta(seconds=age_s)
        self.dispatcher.dispatch(notice(at=at, last_seen_up=at, **about))


def test_a_host_that_is_forced_down_is_out_of_use_at_once(site: Site) -> None:
    site.enrol("cmp-1", "cmp-2")
    ear = Ear(site)
    ear.hear(host="cmp-1", forced_down=True)
    assert site.states() == {"cmp-1": DOWN, "cmp-2": UP}
    assert (site.free(), site.repairs(), site.rung) == ({"cmp-2"}, 1, 1)
    site.clock.advance(1)
    ear.hear(host="cmp-1")
    assert site.states()["cmp-1"] == RETURNING
    assert site.count.reports == {("nova:service", DOWN): 1, ("nova:service", UP): 1}
    assert ear.looks == 0


def test_messages_in_the_wrong_order_end_as_the_newer_says(site: Site) -> None:
    site.enrol("cmp-1")
    ear = Ear(site)
    ear.hear(age_s=1, host="cmp-1")
    ear.hear(age_s=2, host="cmp-1", forced_down=True)
    assert site.states() == {"cmp-1": UP}


def test_an_old_notification_does_not_count_and_starts_a_poll(site: Site) -> None:
    site.enrol("cmp-1")
    ear = Ear(site)
    for age in (11, -11):  # from a clock that is ahead, too
        ear.hear(age_s=age, host="cmp-1", forced_down=True)
    assert (site.states(), ear.looks) == ({"cmp-1": UP}, 2)
    site.settings.poll = False  # nobody could look
    ear.hear(age_s=12, host="cmp-1", forced_down=True)
    assert site.states() == {"cmp-1": DOWN}


def test_a_notification_wanted_by_no_monitor_is_ignored(build: Callable[..., Site]) -> None:
    own = Own(event_types=("instance.*",))
    ear = Ear(build(own))
    ear.hear(host="cmp-1", forced_down=True)
    assert own.calls["heard"] == 0
    ear.hear(event_type="instance.update")
    assert own.calls["heard"] == 1
    ear.site.settings.enabled = ["compute"]
    ear.hear(event_type="instance.update")
    assert own.calls["heard"] == 1


def test_a_message_on_which_a_monitor_fails_three_times_is_parked(
    build: Callable[..., Site],
) -> None:
    def boom(_notice: Notice) -> list[StatusReport]:
        raise ValueError("cannot digest")

    own = Own(heard=boom)
    site = build(own)
    site.enrol("cmp-1")
    Ear(site).hear(host="cmp-1", forced_down=True, message_id="m-7", data={"host": "cmp-1"})
    assert own.calls["heard"] == 3
    assert site.states() == {"cmp-1": DOWN}  # what others make of it counts
    (kept,) = site.store.host_status.parked(10)
    assert (kept.monitor, kept.message_id) == ("own", "m-7")
    assert (kept.why, kept.message) == ("ValueError: cannot digest", {"host": "cmp-1"})
    assert site.count.messages["set aside"] == 1
    assert site.count.failures["own", "raised"] == 3


def test_operators_can_list_parked_messages(build: Callable[..., Site], tmp_path: Path) -> None:
    own = Own(heard=lambda _notice: 7)
    site = build(own)
    Ear(site).hear(message_id="m-7", data={"host": "cmp-1"})
    file = write_config(
        tmp_path / "x.conf", {"database": {"connection": f"sqlite:///{tmp_path}/holdfast.db"}}
    )
    words = ("notification", "parked", "--config", file, "--long", "-f", "json")
    command = [str(word) for word in (script("holdfast"), *words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)
    assert (row["monitor"], row["message_id"]) == ("own", "m-7")
    assert row["message"] == {"host": "cmp-1"}
    assert "not iterable" in row["why"]


def test_a_monitor_failing_once_gets_the_message_again(build: Callable[..., Site]) -> None:
    heard: list[Notice] = []

    def at_second_try(notice: Notice) -> list[StatusReport]:
        heard.append(notice)
        if len(heard) == 1:
            raise OSError("not now")
        return [StatusReport(host="cmp-1", source="own", verdict=DOWN, at=notice.at, decisive=True)]

    site = build(Own(heard=at_second_try))
    site.enrol("cmp-1")
    Ear(site).hear(host="cmp-2")
    assert site.states() == {"cmp-1": DOWN}
    assert site.store.host_status.parked(10) == []


def test_a_monitor_hanging_over_a_message_delays_no_other_and_a_poll_follows(
    build: Callable[..., Site],
) -> None:
    gate = Gate()
    own = Own(heard=gate)
    site = build(own, waits=Hurry("hear compute"))
    site.enrol("cmp-1", "cmp-2")
    ear = Ear(site)
    ear.hear(host="cmp-1", forced_down=True)
    ear.hear(host="cmp-2", forced_down=True)
    assert site.states() == {"cmp-1": DOWN, "cmp-2": DOWN}
    assert own.calls["heard"] == 1
    assert ear.looks == 2
    assert dict(site.count.failures) == {("own", "hung"): 1, ("own", "busy"): 1}
    gate.open.set()
    eventually(lambda: ear.hear(host="cmp-3") or own.calls["heard"] >= 2)


def test_a_notification_not_written_now_is_delivered_again(site: Site, monkeypatch: Any) -> None:
    """The listener keeps a message for which Unavailable is raised."""

    def away() -> Any:
        raise Unavailable("the database is away")

    site.enrol("cmp-1")
    ear = Ear(site)
    with monkeypatch.context() as patch:
        patch.setattr(site.store.host_status, "watched", away)
        with pytest.raises(Unavailable):
            ear.hear(host="cmp-1", forced_down=True)
    ear.hear(host="cmp-1", forced_down=True)
    assert site.states() == {"cmp-1": DOWN}


def test_a_manager_without_a_broker_logs_once_and_still_polls(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    def connect(_tally: Any) -> Any:
        raise DriverError("notices", "py-amqp is not installed", retryable=False)

    rung: list[bool] = []
    part = Monitors(
        site.watch, site.store.host_status, site.settings, connect, lambda: rung.append(True)
    )
    put_off(site)
    with caplog.at_level(logging.WARNING, "holdfast.hoststatus"):
        for _ in range(3):
            with contextlib.suppress(DriverError):
                part.turn()
        assert (rung, is_due(site)) == ([], False)
        part.start()
        part.poll_soon()
        eventually(lambda: rung and site.clock.monotonic() > 20)
        part.stop()
    said = [
        record.getMessage()
        for record in caplog.records
        if record.name == "holdfast.hoststatus.push"
    ]
    assert said == ["monitors: notices: py-amqp is not installed"]
    assert (rung, is_due(site)) == ([True], True)


def is_due(site: Site) -> bool:
    """Whether somebody is to look now."""
    return site.store.operations.by_key(poll.POLL).next_try_at <= site.clock.now()


def put_off(site: Site) -> None:
    """As if a look had just been done."""
    with site.store.database.write() as conn:
        later = (site.clock.now() + timedelta(hours=1)).replace(tzinfo=None)
        conn.exec_driver_sql("UPDATE operations SET next_try_at = ?", (str(later),))


# with a broker


class Polls(SystemClock):
    """Waits are short, and counted: one for each turn of the monitors' part."""

    def __init__(self) -> None:
        self.turns = 0

    def wait(self, wake_event: threading.Event, seconds: float) -> bool:
        self.turns += 1
        return super().wait(wake_event, seconds / 20)

    def come_round(self) -> None:
        """Until a turn has ended that began after this was called."""
        before = self.turns
        eventually(lambda: self.turns >= before + 2, every=0.01)


class Office:
    """The monitors' part of a manager on a real broker, with a configuration file."""

    def __init__(
        self, world: World, cable: Cable, folder: Path, build: Callable[..., Site]
    ) -> None:
        self.world, self.cable = world, cable
        self.file = folder / "monitors.conf"
        self.write()
        self.conf = configuration.load([], [str(self.file)])
        monitors: Any = self.conf.monitors
        self.clock = Polls()
        self.site = site = build(clock=SystemClock(), waits=self.clock, given=monitors)
        self.looks = 0  # that were had done early
        self.part = Monitors(
            site.watch, site.store.host_status, monitors, self._connect, self._wake
        )

    def _wake(self) -> None:
        self.looks += 1

    def write(self, **monitors: object) -> None:
        notifications = {
            "transport_url": f"rabbit://guest:guest@127.0.0.1:{self.cable.port}/",
            "exchange": self.world.exchange,
            "topics": self.world.topic,
            "pool": self.world.pool,
        }
        # what a busy machine brings late is no old news, and who is slow on it does not hang
        given = {"push_fresh_s": 600, "push_timeout_s": 60, **monitors}
        write_config(self.file, {"notifications": notifications, "monitors": given})

    def set(self, **monitors: object) -> None:
        """What an operator does: edit the file, SIGHUP."""
        self.write(**monitors)
        configuration.reload(self.conf)

    def _connect(self, tally: Any) -> NovaNotices:
        return NovaNotices(self.conf, SystemClock(), tally)

    def there(self) -> bool:
        return self.site.count.there[-1:] == [True]

    def due(self) -> bool:
        return is_due(self.site)

    def rests(self) -> None:
        """The looks it was begun with are done, and it has no reason for another."""
        eventually(lambda: self.looks >= 1)  # connected for the first time
        put_off(self.site)
        self.clock.come_round()
        assert not self.due()

    def readers(self) -> int:
        with self.world.channel() as channel:
            return int(channel.queue_declare(self.world.pool, passive=True).consumer_count)


@pytest.fixture
def office(
    rabbitmq: RabbitMQ,
    tmp_path: Path,
    build: Callable[..., Site],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Office]:
    # a broker on a busy machine is slow and not away
    monkeypatch.setattr(brokers, "ANSWER_S", 60.0)
    monkeypatch.setattr(nova_driver, "STOP_S", 60.0)
    monkeypatch.setattr(nova_driver, "FIRST_PAUSE_S", 0.1)
    with (
        contextlib.closing(World(rabbitmq.start(), tmp_path)) as world,
        contextlib.closing(Cable(rabbitmq.port)) as cable,
    ):
        world.declare_exchange()
        made = Office(world, cable, tmp_path, build)
        made.site.enrol("cmp1")
        made.part.start()
        try:
            eventually(made.there)
            yield made
        finally:
            made.part.stop()


def forced(host: str = "cmp1") -> dict[str, Any]:
    said = service(host)
    return {**said, "nova_object.data": {**said["nova_object.data"], "forced_down": True}}


def test_push_is_switched_off_and_on_by_configuration_while_running(office: Office) -> None:
    site, nova = office.site, office.world.nova()
    office.set(push=False)
    office.clock.come_round()
    eventually(lambda: not office.there())
    eventually(lambda: office.readers() == 0)
    nova.info({}, "service.update", forced())
    eventually(lambda: office.world.waiting() == 1)
    office.clock.come_round()
    assert office.world.waiting() == 1  # nobody took it
    assert site.states() == {"cmp1": UP}
    office.set(push=True)
    eventually(lambda: site.states() == {"cmp1": DOWN})
    eventually(lambda: site.count.messages["heard"] >= 1)


def test_options_read_by_another_thread_during_a_reload_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_config(tmp_path / "x.conf", {"monitors": {"push": True}})
    conf = configuration.load([], [str(file)])
    read_files = conf._reload_config_files

    def busy() -> Any:
        found = read_files()
        assert conf.monitors.push is True  # as a thread that looks just now
        return found

    monkeypatch.setattr(conf, "_reload_config_files", busy)
    write_config(file, {"monitors": {"push": False}})
    configuration.reload(conf)
    assert conf.monitors.push is False


def test_a_poll_follows_at_once_when_the_broker_is_back(office: Office) -> None:
    office.rests()
    office.cable.cut()
    eventually(lambda: False in office.site.count.there and office.there())
    eventually(office.due)


def test_a_new_interval_is_obeyed_at_once(office: Office) -> None:
    office.rests()
    office.set(poll_interval_s=5)
    eventually(office.due)
