# SPDX-License-Identifier: Apache-2.0
"""Sinks of lease notifications: a real broker read by oslo.messaging, a real web server."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg
from tests.processes import eventually, free_port
from tests.servers.rabbitmq import RabbitMQ

from holdfast import conf as configuration
from holdfast.drivers import publishers
from holdfast.drivers.publishers import http
from holdfast.drivers.publishers.http import Webhook
from holdfast.drivers.publishers.messaging import InstanceHaMessaging, Messaging
from holdfast.model.errors import DriverError
from holdfast.ports.publishers import INSTANCE_HA, NEWS, LeaseNotice, sinks_for
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.http import AddressRefused, Deadline, resolve
from holdfast.runtime.threads import BoundedCall

import holdfast.drivers.rabbit  # isort: skip  # noqa: F401  threads, before oslo.messaging chooses otherwise
import oslo_messaging  # isort: skip

SECRET = b"not a secret of anybody"
NOTICE = LeaseNotice(
    "0d5c5a52-7a53-4b39-8f57-3c2b1c1f6f0a",
    "lease.create",
    datetime(2030, 1, 1, 10, tzinfo=UTC),
    {"lease_id": "l1", "name": "Büro"},
)


def settings(**options: Any) -> cfg.ConfigOpts:
    conf = configuration.load([], [])
    # what works is waited for, however busy the machine
    for name, value in {"messaging_timeout_s": 60.0, **options}.items():
        conf.set_override(name, value, group="publishers")
    return conf


# the broker


@dataclass
class Reader:
    """Endpoint of an oslo.messaging listener, as any consumer of Blazar's notifications has it."""

    heard: list[tuple[str, str, Any, Any]] = field(default_factory=list)

    errors: list[str] = field(default_factory=list)

    def info(self, _context: Any, publisher: str, event: str, payload: Any, metadata: Any) -> None:
        self.heard.append((publisher, event, payload, metadata))

    def error(self, _context: Any, _publisher: str, event: str, _payload: Any, _more: Any) -> None:
        self.errors.append(event)


@contextlib.contextmanager
def reading(url: str, topic: str, exchange: str | None = None) -> Iterator[Reader]:
    reader = Reader()
    cfg.CONF(args=[], project="holdfast", default_config_files=[])
    transport = oslo_messaging.get_notification_transport(cfg.CONF, url=url)
    listener = oslo_messaging.get_notification_listener(
        transport,
        [oslo_messaging.Target(topic=topic, exchange=exchange)],
        [reader],
        executor="threading",
    )
    listener.start()
    try:
        yield reader
    finally:
        listener.stop()
        listener.wait()
        transport.cleanup()


def test_an_unchanged_listener_of_oslo_messaging_hears_the_contracts_notification(
    rabbitmq: RabbitMQ,
) -> None:
    conf = settings(messaging=True, transport_url=rabbitmq.url, topics=["leases-a"])
    with (
        contextlib.closing(Messaging(conf)) as sink,
        reading(rabbitmq.url, "leases-a") as reader,
    ):
        sink.send(NOTICE)
        sink.send(NOTICE)
        eventually(lambda: len(reader.heard) == 2)
    publisher, event, payload, metadata = reader.heard[0]
    assert (publisher, event) == ("blazar.lease", "lease.create")
    assert payload == NOTICE.payload
    assert metadata["message_id"] == NOTICE.message_id == reader.heard[1][3]["message_id"]
    assert metadata["timestamp"] == "2030-01-01 10:00:00"


def test_an_unchanged_listener_of_masakaris_hears_info_and_errors_by_their_topics(
    rabbitmq: RabbitMQ,
) -> None:
    conf = settings(messaging=True, transport_url=rabbitmq.url)
    told = replace(NOTICE, publisher="masakari-api:here", event_type="segment.create.end")
    bad = replace(told, priority="error", event_type="segment.create.error")
    with (
        contextlib.closing(InstanceHaMessaging(conf)) as sink,
        reading(rabbitmq.url, "versioned_notifications", "masakari") as reader,
    ):
        sink.send(told)
        sink.send(bad)
        # what others left there is heard as well
        said = ("masakari-api:here", "segment.create.end")
        eventually(lambda: said in [one[:2] for one in reader.heard])
        eventually(lambda: "segment.create.error" in reader.errors)
        assert "segment.create.error" not in [one[1] for one in reader.heard]
        assert "segment.create.end" not in reader.errors


def test_the_instance_ha_contract_has_an_own_publisher_if_topics_are_set(
    rabbitmq: RabbitMQ,
) -> None:
    conf = settings(messaging=True, transport_url=rabbitmq.url)
    found = publishers.connect(conf, SystemClock())
    assert (sinks_for(found, NEWS), sinks_for(found, INSTANCE_HA)) == (
        ("messaging",),
        ("instance-ha",),
    )
    conf.set_override("instance_ha_topics", [], group="publishers")
    silent = publishers.connect(conf, SystemClock())
    assert sinks_for(silent, INSTANCE_HA) == ()
    for sink in (*found, *silent):
        sink.close()


def test_notifications_wait_at_the_broker_for_the_first_reader(rabbitmq: RabbitMQ) -> None:
    conf = settings(messaging=True, transport_url=rabbitmq.url, topics=["leases-b"])
    with contextlib.closing(Messaging(conf)) as sink:
        sink.send(NOTICE)
        with reading(rabbitmq.url, "leases-b") as reader:
            eventually(lambda: reader.heard)


def test_an_unreachable_broker_delays_and_never_blocks() -> None:
    url = f"rabbit://guest:guest@127.0.0.1:{free_port()}//"
    conf = settings(messaging=True, transport_url=url, messaging_timeout_s=2.0)
    with contextlib.closing(Messaging(conf)) as sink:
        for _ in range(3):
            before = time.monotonic()
            with pytest.raises(DriverError) as caught:
                sink.send(NOTICE)
            assert caught.value.retryable
            assert time.monotonic() - before < 60.0  # nobody will ever be there


def test_a_send_to_a_silent_broker_ends_at_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"rabbit://guest:guest@127.0.0.1:{mute.getsockname()[1]}//"
        conf = settings(messaging=True, transport_url=url, messaging_timeout_s=0.5)
        sink = Messaging(conf)
        before = time.monotonic()
        with pytest.raises(DriverError, match=r"no answer within 0\.5 s") as caught:
            sink.send(NOTICE)
        assert caught.value.retryable
        assert time.monotonic() - before < 60.0  # it will never say anything


def test_a_publisher_reconnects_to_a_broker_after_an_outage(rabbitmq: RabbitMQ) -> None:
    """Its connection is cut: the next try, or the one after, is through another one."""
    cable = _Cable(rabbitmq.port)
    url = f"rabbit://guest:guest@127.0.0.1:{cable.port}//"
    conf = settings(messaging=True, transport_url=url, topics=["leases-c"], messaging_timeout_s=5.0)
    with (
        contextlib.closing(cable),
        contextlib.closing(Messaging(conf)) as sink,
        reading(rabbitmq.url, "leases-c") as reader,
    ):
        sink.send(NOTICE)
        cable.cut()

        def sent() -> bool:
            try:
                sink.send(NOTICE)
            except DriverError as error:
                assert error.retryable
                return False
            return True

        eventually(sent)
        eventually(lambda: len(reader.heard) >= 2)


class _Cable:
    """A wire between us and the broker that can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

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

    def cut(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


def test_the_programs_stay_free_of_eventlet_with_a_broker_as_sink() -> None:
    code = (
        "import sys\n"
        "from holdfast import conf as configuration\n"
        "from holdfast.drivers.publishers.messaging import connect\n"
        "conf = configuration.load([], [])\n"
        "for name, value in {'messaging': True, 'transport_url': 'rabbit://127.0.0.1:1//'}.items():\n"
        "    conf.set_override(name, value, group='publishers')\n"
        "assert len(connect(conf, None)) == 2\n"
        "assert 'oslo_messaging' in sys.modules\n"
        "assert sys.modules.get('eventlet') is None\n"
        "assert not [name for name in sys.modules if name.startswith('eventlet.')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)


# the web


@dataclass
class Site:
    """A web server that remembers what it was sent and answers as it is told."""

    port: int = 0
    answer: int = 204
    where: str = ""
    pause_s: float = 0.0
    drip: bool = False
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@contextlib.contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            site.got.append((self.path, dict(self.headers), body))
            if site.drip:
                with contextlib.suppress(OSError):
                    while True:
                        self.wfile.write(b"H")
                        time.sleep(0.05)
            time.sleep(site.pause_s)
            with contextlib.suppress(OSError):
                self.send_response(site.answer)
                if site.where:
                    self.send_header("Location", site.where)
                self.end_headers()

        def log_message(self, *_args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    site.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as made:
        yield made


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    return str(path)


Hook = Callable[..., Webhook]


@pytest.fixture
def hook(secret_file: str) -> Hook:
    def make(url: str, **options: Any) -> Webhook:
        asked = {
            "webhook_secret_file": secret_file,
            "webhook_allow_private": True,
            "webhook_timeout_s": 60.0,
            **options,
        }
        return Webhook(url, settings(**asked), SystemClock())

    return make


def refusal(sink: Webhook) -> DriverError:
    with pytest.raises(DriverError) as caught:
        sink.send(NOTICE)
    return caught.value


def test_a_receiver_can_verify_sender_and_time_by_the_signature(site: Site, hook: Hook) -> None:
    hook(f"http://127.0.0.1:{site.port}/hook?room=1").send(NOTICE)
    ((path, headers, body),) = site.got
    assert path == "/hook?room=1"
    assert json.loads(body) == {
        "event_type": "lease.create",
        "publisher_id": "blazar.lease",
        "message_id": NOTICE.message_id,
        "timestamp": "2030-01-01T10:00:00+00:00",
        "payload": {"lease_id": "l1", "name": "Büro"},
    }
    at = headers["X-Holdfast-Timestamp"]
    assert abs(int(at) - time.time()) < 300
    mac = hmac.new(SECRET, at.encode() + b"." + body, hashlib.sha256).hexdigest()
    assert headers["X-Holdfast-Signature"] == f"sha256={mac}"
    assert headers["Content-Type"] == "application/json"
    assert headers["Host"] == f"127.0.0.1:{site.port}"


def test_a_notification_names_the_publisher() -> None:
    body = json.loads(http.encode(replace(NOTICE, publisher="holdfast.incident")))
    assert body["publisher_id"] == "holdfast.incident"
    assert json.loads(http.encode(NOTICE))["publisher_id"] == "blazar.lease"


def test_a_second_try_sends_the_same_bytes(site: Site, hook: Hook) -> None:
    sink = hook(f"http://127.0.0.1:{site.port}/")
    site.answer = 503
    assert refusal(sink).retryable
    site.answer = 200
    sink.send(NOTICE)
    assert site.got[0][2] == site.got[1][2]


@pytest.mark.parametrize(
    ("status", "again"),
    [(500, True), (503, True), (408, True), (429, True), (400, False), (404, False), (410, False)],
)
def test_an_answer_says_whether_to_come_again(
    site: Site, hook: Hook, status: int, again: bool
) -> None:
    site.answer = status
    error = refusal(hook(f"http://127.0.0.1:{site.port}/"))
    assert error.retryable is again
    assert str(status) in error.message


def test_a_redirect_is_not_followed(site: Site, hook: Hook) -> None:
    with serving() as other:
        site.answer, site.where = 307, f"http://127.0.0.1:{other.port}/"
        error = refusal(hook(f"http://127.0.0.1:{site.port}/"))
        assert not error.retryable
        assert "redirect" in error.message
        assert other.got == []


@pytest.mark.parametrize("how", ["silent", "dripping", "mute"])
def test_a_slow_receiver_is_left_in_time(site: Site, hook: Hook, how: str) -> None:
    site.pause_s, site.drip = (600.0 if how == "silent" else 0.0), how == "dripping"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1] if how == "mute" else site.port
        before = time.monotonic()
        error = refusal(hook(f"http://127.0.0.1:{port}/", webhook_timeout_s=0.4))
        assert error.retryable
        assert time.monotonic() - before < 60.0  # it will never say anything


def test_an_unreachable_webhook_is_retried(hook: Hook) -> None:
    assert refusal(hook(f"http://127.0.0.1:{free_port()}/")).retryable


def test_private_addresses_are_refused_without_webhook_allow_private(
    site: Site, hook: Hook
) -> None:
    error = refusal(hook(f"https://localhost:{site.port}/", webhook_allow_private=False))
    assert "webhook_allow_private" in error.message
    assert site.got == []


def test_a_webhook_with_an_untrusted_certificate_gets_no_request(
    hook: Hook, certificate: tuple[str, str]
) -> None:
    context, cafile = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate[0]
    context.load_cert_chain(*certificate)
    with serving(context) as site:
        url = f"https://localhost:{site.port}/"
        error = refusal(hook(url))
        assert error.retryable
        assert "certificate" in error.message.lower()
        assert refusal(hook(f"https://127.0.0.1:{site.port}/", webhook_cafile=cafile))
        assert site.got == []
        hook(url, webhook_cafile=cafile).send(NOTICE)
        assert len(site.got) == 1


def test_a_changed_webhook_secret_counts_for_the_next_request(
    site: Site, hook: Hook, secret_file: str
) -> None:
    sink = hook(f"http://127.0.0.1:{site.port}/")
    Path(secret_file).write_bytes(b"another one of 23 chars")
    sink.send(NOTICE)
    ((_path, headers, body),) = site.got
    at = int(headers["X-Holdfast-Timestamp"])
    expected = http.signature(b"another one of 23 chars", at, body)
    assert headers["X-Holdfast-Signature"] == expected


@pytest.mark.parametrize(
    ("url", "options", "hint"),
    [
        ("https://hook.example/", {"webhook_secret_file": None}, "webhook_secret_file"),
        ("https://hook.example/", {"webhook_secret_file": "/nonexistent/file"}, "cannot be read"),
        ("https://hook.example/", {"webhook_cafile": "/nonexistent/ca"}, "webhook_cafile"),
        ("http://hook.example/", {"webhook_allow_private": False}, "must be https"),
        ("ftp://hook.example/", {}, "must be https://host"),
        ("https://", {}, "must be https://host"),
        ("https://ann:pass@hook.example/", {}, "without user name"),
        ("https://hook.example:x/", {}, "must be https://host"),
        ("https://hook.example/ü", {}, "must be https://host"),
    ],
)
def test_an_unusable_webhook_setting_is_refused_at_the_start(
    hook: Hook, url: str, options: dict[str, Any], hint: str
) -> None:
    with pytest.raises(DriverError, match=hint) as caught:
        hook(url, **options)
    assert "pass" not in caught.value.message.replace("password", "")


# addresses

#: What must never be reached, by any way of writing it.
INSIDE = [
    "127.0.0.1",
    "127.0.0.2",
    "127.1.2.3",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.254",
    "169.254.169.254",
    "169.254.0.1",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.254",
    "198.18.0.1",
    "198.19.255.254",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
]
INSIDE6 = [
    "::",
    "::1",
    "::2",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378::",
    "2001:db8::1",
    "2001:10::1",
    "2001:20::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::",
    "2002:a00:1::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00::1",
    "fd00:ec2::254",
    "fdff:ffff::1",
    "fe80::1",
    "fe80::a9fe:a9fe",
    "febf::1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]
OUTSIDE = [
    "8.8.8.8",
    "1.1.1.1",
    "93.184.216.34",
    "100.128.0.1",
    "172.32.0.1",
    "2606:4700::1111",
    "2a00:1450::1",
]


def _spellings(text: str) -> Iterator[str]:
    """Ways to write an IPv4 address that resolvers understand."""
    number = int(ipaddress.IPv4Address(text))
    a, b, c, d = text.split(".")
    low = (int(b) << 16) + (int(c) << 8) + int(d)
    yield text
    yield str(number)
    yield hex(number)
    yield f"0{number:o}"
    yield f"{int(a):#x}.{int(b):#x}.{int(c):#x}.{int(d):#x}"
    yield f"0{int(a):o}.0{int(b):o}.0{int(c):o}.0{int(d):o}"
    yield f"{a}.{low}"
    yield f"{a}.{b}.{(int(c) << 8) + int(d)}"


CORPUS = [spelt for text in INSIDE for spelt in _spellings(text)] + INSIDE6


def test_no_spelling_of_an_inner_address_escapes() -> None:
    assert len(CORPUS) >= 200
    escaped = []
    for text in CORPUS:
        try:
            resolve(
                text, 443, Deadline(60.0), lambda address: http.judge(address, allow_private=False)
            )
        except AddressRefused:
            continue
        except socket.gaierror:
            continue  # this machine's resolver does not understand it at all
        escaped.append(text)
    assert escaped == []


def test_the_resolver_does_understand_the_odd_spellings() -> None:
    """Else the corpus would prove nothing."""
    understood = 0
    for text in CORPUS:
        with contextlib.suppress(socket.gaierror):
            understood += bool(socket.getaddrinfo(text, 443, type=socket.SOCK_STREAM))
    assert understood >= 200


@pytest.mark.parametrize("text", OUTSIDE)
def test_the_public_internet_is_open(text: str) -> None:
    assert http.judge(ipaddress.ip_address(text), allow_private=False) is None


@pytest.mark.parametrize(
    "text", ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "fd00:ec2::254", "224.0.0.1"]
)
def test_metadata_and_multicast_stay_closed_even_where_private_is_allowed(text: str) -> None:
    assert http.judge(ipaddress.ip_address(text), allow_private=True) is not None


def test_a_host_name_is_resolved_once_per_request(
    site: Site, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolved once; the answer of a resolver that changed its mind is never asked for."""
    asked = []
    real = socket.getaddrinfo

    def changing(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1" if len(asked) == 1 else "127.0.0.9", port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    hook(f"http://hook.example:{site.port}/").send(NOTICE)
    assert asked == ["hook.example"]
    assert site.got[0][1]["Host"] == f"hook.example:{site.port}"


# all of them


def test_sinks_are_found_by_their_entry_points(secret_file: str) -> None:
    assert publishers.connect(settings(), SystemClock()) == ()
    urls = ["https://hook.example/a", "https://hook.example/b"]
    conf = settings(
        webhook_urls=urls,
        webhook_secret_file=secret_file,
        messaging=True,
        transport_url="rabbit://127.0.0.1:1//",
    )
    names = [sink.name for sink in publishers.connect(conf, SystemClock())]
    assert len(set(names)) == 4
    assert max(map(len, names)) <= publishers.LONGEST_NAME


def test_the_same_address_twice_is_refused(secret_file: str) -> None:
    conf = settings(webhook_urls=["https://hook.example/a"] * 2, webhook_secret_file=secret_file)
    with pytest.raises(DriverError, match="twice"):
        publishers.connect(conf, SystemClock())


def test_a_broker_without_an_address_is_refused_at_the_start() -> None:
    with pytest.raises(DriverError, match="transport_url"):
        publishers.connect(settings(messaging=True), SystemClock())


def test_beyond_the_limit_of_hanging_calls_the_next_call_fails_at_once() -> None:
    bounded, over = BoundedCall("test", 2), threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError, match="no answer"):
            bounded.run(0.01, lambda: over.wait(600))
    with pytest.raises(TimeoutError, match="too many"):
        bounded.run(0.01, lambda: None)
    over.set()

    def again() -> bool:
        with contextlib.suppress(TimeoutError):
            return bounded.run(1.0, lambda: True)
        return False

    eventually(again)
