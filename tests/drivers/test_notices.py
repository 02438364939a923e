# SPDX-License-Identifier: Apache-2.0
"""The listener on a real broker; oslo.messaging's notifier speaks, as it does in Nova."""

from __future__ import annotations

import bz2
import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import amqp
import pytest
from oslo_config import cfg
from tests.e2e.deployment import write_config
from tests.processes import Program, eventually, free_port, script
from tests.servers.rabbitmq import RabbitMQ

from holdfast import conf as configuration
from holdfast.drivers import nova_notifications as brokers
from holdfast.drivers import nova_notifications as nova_driver
from holdfast.drivers.nova_notifications import MOST_UNPACKED, NovaNotices
from holdfast.model.errors import Conflict, DriverError, Unavailable
from holdfast.model.nova_notification import Notice, ServiceNotice
from holdfast.runtime.clock import SystemClock

import holdfast.drivers.rabbit  # isort: skip  # noqa: F401  threads, before oslo.messaging chooses otherwise
import oslo_messaging  # isort: skip


def service(host: str = "cmp1", disabled: bool = False) -> dict[str, Any]:
    return {
        "nova_object.name": "ServiceStatusPayload",
        "nova_object.namespace": "nova",
        "nova_object.version": "1.1",
        "nova_object.data": {
            "host": host,
            "binary": "nova-compute",
            "disabled": disabled,
            "disabled_reason": None,
            "forced_down": False,
            "last_seen_up": None,
            "uuid": "0394dcac-45d8-4ec4-ae9d-5e1e359104fc",
        },
    }


class Cable:
    """A wire between us and the broker that can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
                self._ends += (here, there)
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        self._end(source, sink)

    def _end(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        ends, self._ends = self._ends, []
        self._end(*ends)

    def close(self) -> None:
        self._end(self._listener)
        self.cut()


@dataclass
class Count:
    """A tally that remembers."""

    heard_: list[Notice] = field(default_factory=list)
    failed_: list[Notice] = field(default_factory=list)
    put_off_: list[Notice] = field(default_factory=list)
    strange: int = 0
    there: list[bool] = field(default_factory=list)

    def heard(self, notice: Notice) -> None:
        self.heard_.append(notice)

    def not_understood(self) -> None:
        self.strange += 1

    def failed(self, notice: Notice) -> None:
        self.failed_.append(notice)

    def put_off(self, notice: Notice) -> None:
        self.put_off_.append(notice)

    def broker(self, there: bool) -> None:
        self.there.append(there)


class World:
    """A Nova of its own on the broker: an exchange nobody else uses, a queue nobody else reads."""

    def __init__(self, server: RabbitMQ, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.exchange = f"nova-{uuid.uuid4().hex[:8]}"
        self.pool = f"holdfast-{uuid.uuid4().hex[:8]}"
        self.topic = f"versioned_{uuid.uuid4().hex[:8]}"
        self._open: list[Callable[[], None]] = []

    def close(self) -> None:
        for end in reversed(self._open):
            end()
        if self.server.running:
            with self.channel() as channel:
                for queue in (self.pool, f"{self.topic}.info", f"{self.topic}.error"):
                    channel.queue_delete(queue)
                channel.exchange_delete(self.exchange)

    def nova(self, *, durable: bool = False, publisher: str = "nova-compute:cmp1") -> Any:
        """Nova's way to speak; its own flags for exchange and queues."""
        file = self.folder / f"nova-{durable}.conf"
        write_config(
            file,
            {
                "DEFAULT": {"control_exchange": self.exchange},
                "oslo_messaging_rabbit": {"amqp_durable_queues": durable},
            },
        )
        conf = cfg.ConfigOpts()
        conf([], project="nova", default_config_files=[str(file)])
        transport = oslo_messaging.get_notification_transport(conf, url=self.server.url)
        self._open.append(transport.cleanup)
        return oslo_messaging.Notifier(
            transport, publisher, driver="messagingv2", topics=[self.topic], retry=3
        )

    def config(self, **options: Any) -> Path:
        named = {
            "transport_url": self.server.url,
            "exchange": self.exchange,
            "topics": self.topic,
            "pool": self.pool,
            **options,
        }
        return write_config(self.folder / f"{uuid.uuid4().hex[:6]}.conf", {"notifications": named})

    def listener(
        self, hear: Callable[[Notice], None] = lambda _notice: None, **options: Any
    ) -> tuple[NovaNotices, Count]:
        count = Count()
        conf = configuration.load([], [str(self.config(**options))])
        notices = NovaNotices(conf, SystemClock(), count)
        notices.listen(hear)
        self._open.append(notices.stop)
        return notices, count

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        connection = amqp.Connection(f"127.0.0.1:{self.server.port}")
        connection.connect()
        try:
            yield connection.channel()
        finally:
            connection.close()

    def waiting(self, queue: str | None = None) -> int:
        """Messages in a queue, beside those that somebody holds."""
        with self.channel() as channel:
            return int(channel.queue_declare(queue or self.pool, passive=True).message_count)

    def declare_exchange(self, *, durable: bool = False) -> None:
        """What any service of Nova does when it starts."""
        with self.channel() as channel:
            channel.exchange_declare(self.exchange, "topic", durable=durable, auto_delete=False)

    def say_raw(self, body: str | bytes, priority: str = "info", **properties: Any) -> None:
        message = amqp.Message(body, delivery_mode=2, **properties)
        with self.channel() as channel:
            channel.basic_publish(message, self.exchange, f"{self.topic}.{priority}")


@pytest.fixture
def world(rabbitmq: RabbitMQ, tmp_path: Path) -> Iterator[World]:
    made = World(rabbitmq.start(), tmp_path)
    yield made
    made.close()


@pytest.fixture
def listening(world: World) -> tuple[NovaNotices, Count]:
    world.declare_exchange()
    notices, count = world.listener()
    eventually(lambda: notices.connected)
    return notices, count


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stops is waited for, however busy the machine."""
    monkeypatch.setattr(nova_driver, "STOP_S", 60.0)


def stops(notices: NovaNotices) -> None:
    """By itself: who holds it up would do so for longer than it is waited for."""
    notices.stop()
    assert not notices._worker.alive


def hosts(notices: list[Notice]) -> list[str]:
    return [notice.host for notice in notices if isinstance(notice, ServiceNotice)]


@pytest.mark.parametrize("durable", [False, True], ids=["transient", "durable"])
def test_notifications_of_nova_are_read_from_durable_and_transient_exchanges(
    world: World, durable: bool
) -> None:
    world.declare_exchange(durable=durable)
    notices, count = world.listener()
    eventually(lambda: notices.connected)
    nova = world.nova(durable=durable)
    nova.info({}, "service.update", service("cmp1", disabled=True))
    failure = {**service(), "nova_object.name": "ExceptionPayload"}
    nova.error({}, "compute.exception", failure)
    eventually(lambda: len(count.heard_) == 2)
    first, second = count.heard_
    assert isinstance(first, ServiceNotice)
    assert (first.host, first.disabled) == ("cmp1", True)
    assert (second.event_type, second.priority) == ("compute.exception", "error")
    assert notices.age_s() is not None
    notices.stop()
    assert world.waiting() == 0
    # Nova's own queues, which other readers use, have theirs too
    assert (world.waiting(f"{world.topic}.info"), world.waiting(f"{world.topic}.error")) == (1, 1)


def test_a_message_put_off_by_a_monitor_is_delivered_again_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nova_driver, "FIRST_PAUSE_S", 0.3)
    world.declare_exchange()
    tries: list[tuple[float, str]] = []

    def hear(notice: Notice) -> None:
        tries.append((time.monotonic(), notice.message_id))
        if len(tries) <= 2:
            raise Unavailable("the database is away")

    notices, count = world.listener(hear)
    eventually(lambda: notices.connected)
    nova = world.nova()
    for host in ("cmp1", "cmp2", "cmp3"):
        nova.info({}, "service.update", service(host))
    eventually(lambda: len(count.heard_) == 3)
    assert hosts(count.heard_) == ["cmp1", "cmp2", "cmp3"]
    assert len(count.put_off_) == 2
    assert len({message for _at, message in tries[:3]}) == 1
    first, second, third = (at for at, _message in tries[:3])
    assert second - first >= 0.29
    assert third - second >= 0.59
    notices.stop()
    assert world.waiting() == 0


def test_stopping_while_a_hearer_cannot_leaves_the_message_to_the_next(world: World) -> None:
    world.declare_exchange()

    def hear(_notice: Notice) -> None:
        raise DriverError("nova", "no answer", retryable=True)

    notices, count = world.listener(hear)
    eventually(lambda: notices.connected)
    world.nova().info({}, "service.update", service("cmp1"))
    eventually(lambda: count.put_off_)
    stops(notices)
    eventually(lambda: world.waiting() == 1)
    _, next_one = world.listener()
    eventually(lambda: hosts(next_one.heard_) == ["cmp1"])


def test_a_message_that_a_manager_puts_off_for_long_goes_to_another_manager(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nova_driver, "HOLD_S", 0.5)
    world.declare_exchange()

    def cannot(_notice: Notice) -> None:
        raise Unavailable("the database is away, seen from here")

    first, put_off = world.listener(cannot)
    eventually(lambda: first.connected)
    world.nova().info({}, "service.update", service("cmp1"))
    eventually(lambda: put_off.put_off_)
    _, second = world.listener()
    eventually(lambda: hosts(second.heard_) == ["cmp1"])


@pytest.mark.parametrize(
    "error",
    [KeyError("bug"), Conflict("never"), DriverError("x", "no", retryable=False)],
    ids=["bug", "conflict", "driver"],
)
def test_a_defect_of_a_hearer_is_logged_counted_and_not_repeated(
    world: World, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    world.declare_exchange()

    def hear(notice: Notice) -> None:
        if hosts([notice]) == ["cmp1"]:
            raise error

    notices, count = world.listener(hear)
    eventually(lambda: notices.connected)
    nova = world.nova()
    nova.info({}, "service.update", service("cmp1"))
    nova.info({}, "service.update", service("cmp2"))
    eventually(lambda: hosts(count.heard_) == ["cmp2"])
    assert hosts(count.failed_) == ["cmp1"]
    assert any("service.update" in record.message for record in caplog.records)
    notices.stop()
    assert world.waiting() == 0


def test_an_unreadable_message_is_acknowledged_counted_and_logged_once(
    world: World, listening: tuple[NovaNotices, Count], caplog: pytest.LogCaptureFixture
) -> None:
    notices, count = listening
    poison: list[str | bytes] = [
        "not json",
        b"\xff\x00",
        "[1]",
        '{"oslo.version": "2.0", "oslo.message": "{"}',
        json.dumps(
            {"oslo.version": "2.0", "oslo.message": '{"event_type": "x.y", "priority": null}'}
        ),
    ]
    for body in poison:
        world.say_raw(body)
    for packed in ("application/x-gzip", ["application/x-gzip"]):
        world.say_raw(b"no gzip", application_headers={"compression": packed})
    bombs = {"application/x-gzip": zlib.compress, "application/x-bz2": bz2.compress}
    for packed, compress in bombs.items():
        world.say_raw(
            compress(b" " * (MOST_UNPACKED + 1)), application_headers={"compression": packed}
        )
    nova = world.nova()
    nova.info({}, "compute.instance.update", {"unversioned": True})
    nova.info({}, "service.update", {**service(), "nova_object.version": "9.0"})
    nova.info({}, "service.update", service("cmp9"))
    eventually(lambda: hosts(count.heard_) == ["cmp9"])
    assert count.strange == len(poison) + 6
    assert len([record for record in caplog.records if "not understood" in record.message]) == 1
    notices.stop()
    assert world.waiting() == 0


def test_a_compressed_message_is_read(
    world: World, listening: tuple[NovaNotices, Count], tmp_path: Path
) -> None:
    _, count = listening
    file = write_config(
        tmp_path / "zip.conf",
        {
            "DEFAULT": {"control_exchange": world.exchange},
            "oslo_messaging_rabbit": {"kombu_compression": "gzip"},
        },
    )
    conf = cfg.ConfigOpts()
    conf([], project="nova", default_config_files=[str(file)])
    transport = oslo_messaging.get_notification_transport(conf, url=world.server.url)
    try:
        nova = oslo_messaging.Notifier(
            transport, "nova-api:c1", driver="messagingv2", topics=[world.topic]
        )
        nova.info({}, "service.update", service("cmp1"))
    finally:
        transport.cleanup()
    eventually(lambda: hosts(count.heard_) == ["cmp1"])


def test_notifications_wait_in_the_queue_without_a_listener(
    world: World, listening: tuple[NovaNotices, Count]
) -> None:
    notices, _ = listening
    notices.stop()
    world.nova().info({}, "service.update", service("cmp1"))
    eventually(lambda: world.waiting() == 1)
    _, count = world.listener()
    eventually(lambda: hosts(count.heard_) == ["cmp1"])


@pytest.mark.slow("a broker is stopped and started")
def test_a_broker_outage_is_logged_once_and_loses_no_waiting_message(
    world: World,
    listening: tuple[NovaNotices, Count],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    notices, count = listening
    tries = counted(notices, monkeypatch)
    unread = f"{world.pool}-unread"
    other, _ = world.listener(pool=unread)
    eventually(lambda: other.connected)
    other.stop()
    world.nova().info({}, "service.update", service("cmp1"))
    eventually(lambda: hosts(count.heard_) == ["cmp1"])
    caplog.clear()
    with world.server.down():
        eventually(lambda: not notices.connected)
        before = len(tries)
        eventually(lambda: len(tries) >= before + 2)  # in vain
    world.declare_exchange()  # a transient one has gone with the broker
    eventually(lambda: notices.connected)
    world.nova().info({}, "service.update", service("cmp2"))
    eventually(lambda: hosts(count.heard_) == ["cmp1", "cmp2"])
    assert count.there == [True, False, True]
    lines = [
        record.message for record in caplog.records if record.name.startswith("holdfast.drivers")
    ]
    assert len([line for line in lines if line.startswith("listening")]) == 1
    # lost and refused are two kinds of trouble; each is said once
    assert 1 <= len([line for line in lines if line.startswith("not listening")]) <= 3
    # what waited in a queue without a reader is still there: queue and messages are durable
    assert world.waiting(unread) == 1
    with world.channel() as channel:
        channel.queue_delete(unread)


def test_a_cut_wire_under_load_loses_nothing(world: World) -> None:
    world.declare_exchange()
    cable = Cable(world.server.port)
    try:
        seen: list[str] = []

        def hear(notice: Notice) -> None:
            time.sleep(0.005)
            seen.extend(hosts([notice]))

        url = f"rabbit://guest:guest@127.0.0.1:{cable.port}//"
        notices, count = world.listener(hear, transport_url=url)
        eventually(lambda: notices.connected)
        nova = world.nova()
        said = [f"cmp{number}" for number in range(200)]
        for host in said:
            nova.info({}, "service.update", service(host))
            if host in ("cmp60", "cmp120"):
                times = 1 if host == "cmp60" else 2  # it has noticed the cut before
                eventually(lambda times=times: seen and count.there.count(True) == times)
                cable.cut()
        eventually(lambda: set(seen) == set(said))
        notices.stop()
        assert len(count.there) >= 4
        eventually(lambda: world.waiting() == 0)
    finally:
        cable.close()


KILLED = """
import sys, time
from holdfast import conf as configuration
from holdfast.drivers.nova_notifications import NovaNotices
from holdfast.runtime.clock import SystemClock

def hear(notice):
    print("hears", notice.host, flush=True)
    time.sleep(600)

assert sys.modules.get("eventlet") is None
assert not [name for name in sys.modules if name.startswith("eventlet.")]
notices = NovaNotices(configuration.load([], [sys.argv[1]]), SystemClock())
notices.listen(hear)
print("no eventlet", flush=True)
time.sleep(600)
"""


def test_a_listener_killed_before_it_was_done_leaves_the_message_to_the_next(
    world: World, tmp_path: Path
) -> None:
    world.declare_exchange()
    command = [sys.executable, "-c", KILLED, world.config()]
    with Program(command, tmp_path, name="killed") as killed:
        killed.wait_until(lambda: "no eventlet" in killed.log.read_text())
        eventually(lambda: _readers(world) == 1)
        world.nova().info({}, "service.update", service("cmp1"))
        killed.wait_until(lambda: "hears cmp1" in killed.log.read_text())
        killed.kill()
    _, count = world.listener()
    eventually(lambda: hosts(count.heard_) == ["cmp1"])


def _readers(world: World) -> int:
    try:
        with world.channel() as channel:
            return int(channel.queue_declare(world.pool, passive=True).consumer_count)
    except amqp.NotFound:
        return 0


def test_two_managers_share_a_queue_and_another_pool_gets_all_messages(world: World) -> None:
    world.declare_exchange()

    def hear(_notice: Notice) -> None:
        time.sleep(0.01)

    one, two = world.listener(hear), world.listener(hear)
    other_pool = f"{world.pool}-other"
    other = world.listener(hear, pool=other_pool)
    eventually(lambda: one[0].connected and two[0].connected and other[0].connected)
    nova = world.nova()
    said = [f"cmp{number}" for number in range(60)]
    for host in said:
        nova.info({}, "service.update", service(host))
    eventually(lambda: len(other[1].heard_) == 60)
    eventually(lambda: len(one[1].heard_) + len(two[1].heard_) == 60)
    shared = hosts(one[1].heard_) + hosts(two[1].heard_)
    assert sorted(shared) == sorted(said)
    assert one[1].heard_
    assert two[1].heard_
    assert hosts(other[1].heard_) == said
    other[0].stop()
    with world.channel() as channel:
        channel.queue_delete(other_pool)


def counted(notices: NovaNotices, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When it tried to reach the broker."""
    tries: list[float] = []
    connect = notices.broker.connect

    def counting() -> Any:
        tries.append(time.monotonic())
        return connect()

    monkeypatch.setattr(notices.broker, "connect", counting)
    return tries


def test_without_a_broker_the_listener_starts_waits_and_stops_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nova_driver, "FIRST_PAUSE_S", 0.05)
    nowhere = f"rabbit://guest:guest@127.0.0.1:{free_port()}//"
    file = write_config(tmp_path / "x.conf", {"notifications": {"transport_url": nowhere}})
    notices = NovaNotices(configuration.load([], [str(file)]), SystemClock())
    tries = counted(notices, monkeypatch)
    notices.listen(lambda _notice: None)
    eventually(lambda: len(tries) >= 4)
    assert not notices.connected
    stops(notices)
    assert [record.message for record in caplog.records if "not listening" in record.message] == [
        f"not listening to Nova's notifications at {nowhere.partition('@')[2].rstrip('/')}/:"
        " ConnectionRefusedError: [Errno 111] Connection refused"
    ]


def test_the_listener_stops_in_time_beside_a_frozen_broker(
    world: World, listening: tuple[NovaNotices, Count]
) -> None:
    notices, _ = listening
    with world.server.paused():
        stops(notices)


def test_the_listener_stops_in_time_beside_a_broker_that_accepts_and_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rabbit://guest:guest@127.0.0.1:{silent.getsockname()[1]}//"
        file = write_config(tmp_path / "x.conf", {"notifications": {"transport_url": url}})
        notices = NovaNotices(configuration.load([], [str(file)]), SystemClock())
        tries = counted(notices, monkeypatch)
        notices.listen(lambda _notice: None)
        eventually(lambda: tries)
        stops(notices)


def test_the_listener_waits_for_the_exchange_of_nova_and_never_declares_the_exchange(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    notices, count = world.listener()
    eventually(lambda: f"no exchange {world.exchange}" in caplog.text)
    with world.channel() as channel, pytest.raises(amqp.NotFound):
        channel.exchange_declare(world.exchange, "topic", passive=True)
    world.declare_exchange(durable=True)
    eventually(lambda: notices.connected)
    world.nova(durable=True).info({}, "service.update", service("cmp1"))
    eventually(lambda: hosts(count.heard_) == ["cmp1"])
    assert caplog.text.count("no exchange") == 1


def test_a_queue_with_other_settings_is_used_as_it_is(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.declare_exchange()
    with world.channel() as channel:
        channel.queue_declare(world.pool, durable=True, auto_delete=False)
    notices, count = world.listener()
    eventually(lambda: notices.connected)
    world.nova().info({}, "service.update", service("cmp1"))
    eventually(lambda: hosts(count.heard_) == ["cmp1"])
    assert "exists with other settings" in caplog.text


def test_the_queue_is_bounded_the_oldest_go_first(world: World) -> None:
    world.declare_exchange()
    notices, _ = world.listener(backlog=3)
    eventually(lambda: notices.connected)
    notices.stop()
    nova = world.nova()
    for number in range(5):
        nova.info({}, "service.update", service(f"cmp{number}"))
    eventually(lambda: world.waiting() == 3)
    _, count = world.listener(backlog=3)
    eventually(lambda: hosts(count.heard_) == ["cmp2", "cmp3", "cmp4"])


def test_a_quorum_queue_serves_as_well(world: World) -> None:
    world.declare_exchange(durable=True)
    notices, count = world.listener(quorum=True)
    eventually(lambda: notices.connected)
    world.nova(durable=True).info({}, "service.update", service("cmp1"))
    eventually(lambda: hosts(count.heard_) == ["cmp1"])


def test_a_deleted_queue_is_declared_again(
    world: World, listening: tuple[NovaNotices, Count]
) -> None:
    _, count = listening
    with world.channel() as channel:
        channel.queue_delete(world.pool)
    eventually(lambda: count.there == [True, False, True])
    world.nova().info({}, "service.update", service("cmp1"))
    eventually(lambda: hosts(count.heard_) == ["cmp1"])


def test_the_listener_tries_the_next_broker_node(world: World) -> None:
    world.declare_exchange()
    here = world.server.url.partition("@")[2]
    url = f"rabbit://guest:guest@127.0.0.1:{free_port()},guest:guest@{here}"
    notices, _ = world.listener(transport_url=url)
    eventually(lambda: notices.connected)
    for _ in range(2):  # whichever node's turn it is
        brokers.close(notices.broker.connect_to_any())


# addresses


def test_a_transport_url_is_read_as_oslo_messaging_reads_it() -> None:
    many = "rabbit://me:a%40b@h1:5673,you:x@[::1]:5674/my%2Fhost?ssl=true"
    theirs = oslo_messaging.TransportURL.parse(cfg.ConfigOpts(), many)
    assert [
        (address.user, address.secret, address.host.strip("[]"), address.port, address.vhost)
        for address in brokers.addresses(many)
    ] == [
        (host.username, host.password, host.hostname, host.port, theirs.virtual_host)
        for host in theirs.hosts
    ]
    plain = brokers.addresses("rabbit://h1//")
    assert [(one.port, one.vhost, str(one)) for one in plain] == [(5672, "/", "h1:5672/")]


@pytest.mark.parametrize(
    "url", ["kafka://h:1/", "localhost", "rabbit://me:pw@h:port//", "rabbit://"]
)
def test_an_invalid_transport_url_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(DriverError) as refused:
        brokers.addresses(url)
    assert "transport_url" in refused.value.message
    assert "pw" not in refused.value.message


def test_tls_follows_the_options_of_oslo_messaging(tmp_path: Path) -> None:
    file = write_config(
        tmp_path / "x.conf", {"oslo_messaging_rabbit": {"ssl": True, "ssl_ca_file": "/ca.pem"}}
    )
    conf = configuration.load([], [str(file)])
    settings = brokers.tls(conf, "rabbit://h//")
    assert isinstance(settings, dict)
    assert settings["ca_certs"] == "/ca.pem"
    assert brokers.tls(conf, "rabbit://h//?ssl=false") is False


# the command


def run_listen(config: Path, *words: str) -> subprocess.Popen[str]:
    command = [str(script("holdfast")), "notification", "listen", "--config", str(config), *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def there(world: World, queue: str) -> bool:
    """Whether the broker has it; one that is somebody's own may not be looked at by others."""
    try:
        with world.channel() as channel:
            channel.queue_declare(queue, passive=True)
    except amqp.ResourceLocked:
        return True
    except amqp.NotFound:
        return False
    return True


def test_the_command_prints_notifications_and_takes_none_from_the_managers(
    world: World, listening: tuple[NovaNotices, Count]
) -> None:
    notices, _ = listening
    notices.stop()
    nova = world.nova()
    nova.info({}, "service.update", service("cmp0"))
    for waiting, seconds in ((1, "4"), (2, "60")):  # four do not suffice where the machine is busy
        with run_listen(world.config(), "--seconds", seconds) as running:
            assert running.stderr is not None
            assert f"{waiting} waiting, 0 readers" in running.stderr.readline()
            assert running.stderr.readline().startswith("listening to")
            nova.info({}, "service.update", service("cmp1", disabled=True))
            out, err = running.communicate(timeout=180)
        assert world.waiting() == waiting + 1  # the managers' copies
        if running.returncode == 0:
            break
    assert running.returncode == 0, err
    assert out.endswith("info service.update nova-compute on cmp1: disabled\n")
    assert len(out.splitlines()) == 1


def test_a_killed_command_leaves_no_queue_behind(
    world: World, listening: tuple[NovaNotices, Count]
) -> None:
    with run_listen(world.config(), "--json") as running:
        assert running.stderr is not None
        assert "1 readers" in running.stderr.readline()
        said = running.stderr.readline()
        assert said.startswith("listening to")
        queue = said.split()[-1]
        assert queue != world.pool
        assert there(world, queue)
        running.kill()
    eventually(lambda: not there(world, queue))
    assert there(world, world.pool)


def test_silence_gets_a_hint_and_exit_code_1(world: World) -> None:
    world.declare_exchange()
    with run_listen(world.config(), "--seconds", "5.1") as running:
        out, err = running.communicate(timeout=180)
    assert (running.returncode, out) == (1, "")
    assert "notification_format = versioned" in err
    assert "nothing was heard" in err


def test_the_command_names_the_fault_of_the_broker(world: World, tmp_path: Path) -> None:
    with run_listen(world.config()) as running:
        _, err = running.communicate(timeout=180)
    assert running.returncode == 1
    assert f"no exchange {world.exchange}" in err
    nowhere = f"rabbit://guest:pw@127.0.0.1:{free_port()}//"
    file = write_config(tmp_path / "x.conf", {"notifications": {"transport_url": nowhere}})
    with run_listen(file) as running:
        _, err = running.communicate(timeout=180)
    assert running.returncode == 1
    assert "Connection refused" in err
    assert "pw" not in err
