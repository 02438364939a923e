# SPDX-License-Identifier: Apache-2.0
"""Rules of a site: filters built in, of a service elsewhere, and of a third party; quotas."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from stevedore import ExtensionManager

from holdfast import conf as configuration
from holdfast.db import Store, migrations
from holdfast.db.operations import apply_work
from holdfast.db.tables import hosts
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.jobs.job import Kind
from holdfast.jobs.loop import Loop, Runner
from holdfast.leases import lifecycle, policy
from holdfast.leases.booking import Leases
from holdfast.leases.policy import Enforcement
from holdfast.leases.resources.host import HostResource
from holdfast.model import lease as lease_model
from holdfast.model.errors import (
    DriverError,
    EnforcementRefused,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    Unavailable,
)
from holdfast.model.host import Host
from holdfast.model.lease import (
    Allocation,
    Lease,
    LeaseChange,
    NewLease,
    NewReservation,
    Reservation,
    Window,
)
from holdfast.ports.ledger import Limits, Work
from holdfast.ports.manager import Caller
from tests.leases.house import Inline
from tests.processes import PATIENCE_S, free_port
from tests.simclock import SimClock

ANN = Caller("ann", "alpha", ("member",))
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOSTS = {
    number: Host(number, f"uuid-{number}", f"h{number}", f"h{number}.lan", f"h{number}", vcpus=8)
    for number in (1, 2)
}


def lease(hours: float = 2, project: str = "alpha") -> Lease:
    end = NOON + timedelta(hours=hours)
    reservations = tuple(
        Reservation(
            f"r-{number}",
            "physical:host",
            spec={"min": 1, "max": 1},
            allocations=(Allocation(number, Window(NOON, end), host=f"h{number}"),),
        )
        for number in (1, 2)
    )
    return Lease("l-1", "first", "ann", project, NOON, end, reservations=reservations)


def prolonged(one: Lease, hours: float) -> Lease:
    return replace(one, end=one.end + timedelta(hours=hours))


def load(folder: Path, **options: Any) -> tuple[Enforcement, cfg.ConfigOpts]:
    file = folder / "holdfast.conf"
    lines = "".join(f"{name} = {value}\n" for name, value in options.items())
    file.write_text(f"[DEFAULT]\nregion = north\n[enforcement]\n{lines}")
    conf = configuration.load([], [str(file)])
    return policy.load(conf, lambda: HOSTS), conf


# duration


def test_nothing_is_refused_where_nothing_is_enabled(tmp_path: Path) -> None:
    enforcement, _ = load(tmp_path, max_lease_duration=60)
    enforcement.check_create(ANN, lease(1000))
    assert enforcement.limits("alpha") == Limits(leases=1000)  # the default
    assert enforcement.end_work(lease(), NOON) == ()
    Enforcement().check_create(ANN, lease(1000))


def test_a_lease_that_lasts_too_long_is_refused_with_the_end_it_may_have(tmp_path: Path) -> None:
    enforcement, _ = load(
        tmp_path,
        enabled_filters="duration",
        max_lease_duration=7200,
        max_lease_duration_exempt_project_ids="beta",
    )
    enforcement.check_create(ANN, lease(2))
    enforcement.check_create(ANN, lease(50, project="beta"))
    with pytest.raises(EnforcementRefused) as refused:
        enforcement.check_create(ANN, lease(26.5))
    assert refused.value.status == InvalidInput.status == 400
    assert refused.value.message == (
        "lease first would last 1 d 2 h 30 min, and 2 h is the longest allowed: let it end by"
        " 2030-01-01 14:00 UTC"
    )
    assert enforcement.end_work(lease(), NOON) == ()  # nobody wants to know


def test_a_lease_above_a_later_limit_may_stay_and_be_shortened(tmp_path: Path) -> None:
    enforcement, _ = load(tmp_path, enabled_filters="duration", max_lease_duration=3600)
    old = lease(4)
    enforcement.check_update(ANN, old, replace(old, name="another"))
    enforcement.check_update(ANN, old, prolonged(old, -1))
    with pytest.raises(EnforcementRefused):
        enforcement.check_update(ANN, old, prolonged(old, 1))


def test_options_changed_while_it_runs_count_at_once(tmp_path: Path) -> None:
    enforcement, conf = load(tmp_path)
    enforcement.check_create(ANN, lease(2))
    (tmp_path / "holdfast.conf").write_text(
        "[enforcement]\nenabled_filters = duration\nmax_lease_duration = 60\nmax_hosts = 3\n"
    )
    assert "reloaded" in configuration.reload(conf)
    with pytest.raises(EnforcementRefused):
        enforcement.check_create(ANN, lease(2))
    assert enforcement.limits("alpha") == Limits(leases=1000, hosts=3)


# quotas


def test_quota_overrides_apply_to_named_projects(tmp_path: Path) -> None:
    enforcement, _ = load(
        tmp_path,
        max_leases=3,
        max_host_hours=100,
        quota_overrides="beta:leases=-1:hosts=7, gamma:host_hours=-1:leases=-1",
    )
    assert enforcement.limits("alpha") == Limits(leases=3, host_hours=100)
    assert enforcement.limits("beta") == Limits(hosts=7, host_hours=100)
    assert enforcement.limits("gamma") is None


@pytest.mark.parametrize("wrong", ["beta", "beta:lease=1", "beta:hosts=many", ":hosts=1"])
def test_an_override_that_means_nothing_is_found_at_the_start(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(cfg.ConfigFileValueError, match="quota_overrides"):
        load(tmp_path, quota_overrides=wrong)


# third parties


THIRD = """
from holdfast.model.errors import EnforcementRefused
from holdfast.leases.policy import Lenient

class NoNights(Lenient):
    name = "night"

    def __init__(self, conf):
        self.region = conf.region

    def check_create(self, caller, lease, hosts):
        if lease.start.hour < 6:
            raise EnforcementRefused(f"the machines of {self.region} rest, {caller.user_id}")
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of somebody else's, installed as pip would."""
    site = tmp_path / "site"
    info = site / "night-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "night_rules.py").write_text(THIRD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: night\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[holdfast.enforcement]\nnight = night_rules:NoNights\nbroken = night_rules:NoSuchThing\n"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(ExtensionManager, "ENTRY_POINT_CACHE", {})  # as in a new process


@pytest.mark.usefixtures("third_party")
def test_a_third_party_adds_a_filter_with_a_class_and_an_entry_point(tmp_path: Path) -> None:
    enforcement, _ = load(tmp_path, enabled_filters="night")
    enforcement.check_create(ANN, lease())
    with pytest.raises(EnforcementRefused, match="machines of north rest, ann"):
        enforcement.check_create(ANN, replace(lease(), start=NOON - timedelta(hours=10)))


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize("name", ["broken", "nobody", "external"])
def test_a_filter_that_cannot_be_loaded_is_found_at_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(DriverError, match=rf"enabled_filters: {name} cannot be loaded"):
        load(tmp_path, enabled_filters=name)


def test_a_filter_that_cannot_be_loaded_later_lets_nothing_pass_and_stops_no_end(
    tmp_path: Path,
) -> None:
    enforcement, conf = load(tmp_path)
    (tmp_path / "holdfast.conf").write_text("[enforcement]\nenabled_filters = nobody\n")
    configuration.reload(conf)
    with pytest.raises(Unavailable, match=r"nobody cannot be loaded.*nothing was changed"):
        enforcement.check_create(ANN, lease())
    assert len(enforcement.end_work(lease(), NOON)) == 1


# the service elsewhere


@dataclass
class Service:
    """An HTTP service on loopback that answers as it is told, and remembers what it heard."""

    url: str = ""
    heard: list[tuple[str, str | None, Any]] = field(default_factory=list)
    answer: Callable[[Any], None] = lambda handler: handler.say(204)
    released: threading.Event = field(default_factory=threading.Event)

    def paths(self) -> list[str]:
        return [path for path, _token, _body in self.heard]


class Handler(BaseHTTPRequestHandler):
    service: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.service.heard.append((self.path, self.headers["X-Auth-Token"], body))
        with contextlib.suppress(OSError):  # the other side has had enough
            self.service.answer(self)

    def say(self, status: int, text: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """BaseResource."""


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    handler = type("Handler", (Handler,), {"service": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    made.url = f"http://127.0.0.1:{server.server_port}/credits"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def asking(folder: Path, service: Service, **more: Any) -> Enforcement:
    options = {
        "enabled_filters": "external",
        "external_service_base_endpoint": service.url,
        "external_service_token": "sesame",
        "external_service_auth_url": "http://keystone.lan/v3",
        "external_service_timeout_s": 30,  # a busy machine may take seconds
        **more,
    }
    return load(folder, **options)[0]


def test_the_service_is_asked_with_the_context_and_each_reservations_own_hosts(
    tmp_path: Path, service: Service
) -> None:
    enforcement = asking(tmp_path, service)
    enforcement.check_create(ANN, lease())
    ((path, token, body),) = service.heard
    assert (path, token) == ("/credits/check-create", "sesame")
    assert body["context"] == {
        "user_id": "ann",
        "project_id": "alpha",
        "auth_url": "http://keystone.lan/v3",
        "region_name": "north",
    }
    asked = body["lease"]
    assert (asked["start_date"], asked["end_date"]) == (
        "2030-01-01T12:00:00",
        "2030-01-01T14:00:00",
    )
    held = [
        [
            (allocation["id"], allocation["hypervisor_hostname"], allocation["vcpus"])
            for allocation in r["allocations"]
        ]
        for r in asked["reservations"]
    ]
    assert held == [[("1", "h1.lan", 8)], [("2", "h2.lan", 8)]]
    assert asked["reservations"][0]["min"] == 1

    enforcement.check_update(ANN, lease(), prolonged(lease(), 1))
    path, _, body = service.heard[-1]
    assert path == "/credits/check-update"
    assert body["current_lease"]["end_date"] == "2030-01-01T14:00:00"
    assert body["lease"]["end_date"] == "2030-01-01T15:00:00"
    enforcement.check_update(ANN, lease(), replace(lease(), name="costs nothing"))
    assert len(service.heard) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"message": "alpha has spent it all"}', "alpha has spent it all"),
        ('{"message": 7}', "refused the request, without a reason"),
        ("<html>no</html>", "refused the request, without a reason"),
    ],
)
def test_the_caller_gets_the_refusal_of_the_service_verbatim(
    tmp_path: Path, service: Service, text: str, said: str
) -> None:
    service.answer = lambda handler: handler.say(403, text)
    with pytest.raises(EnforcementRefused, match=said):
        asking(tmp_path, service).check_create(ANN, lease())


@pytest.mark.parametrize("status", [200, 302, 401, 404, 500, 503])
def test_any_other_answer_is_neither_yes_nor_no(
    tmp_path: Path, service: Service, status: int
) -> None:
    service.answer = lambda handler: handler.say(status, "what?")
    with pytest.raises(Unavailable, match=f"answered {status}.*nothing was changed") as away:
        asking(tmp_path, service).check_create(ANN, lease())
    assert "what?" not in away.value.message


def hang(handler: Any) -> None:
    handler.service.released.wait(PATIENCE_S)


def trickle(handler: Any) -> None:
    """A byte now and then: no single read ever takes long."""
    for byte in b"HTTP/1.1 204 No Content\r\n" * 100:
        if handler.service.released.wait(0.05):
            return
        handler.wfile.write(bytes([byte]))


@pytest.mark.parametrize("behaviour", [hang, trickle])
def test_a_hanging_enforcement_service_costs_only_the_timeout(
    tmp_path: Path, service: Service, behaviour: Callable[[Any], None]
) -> None:
    service.answer = behaviour
    enforcement = asking(tmp_path, service, external_service_timeout_s=0.3)
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"no answer within 0.3 s.*nothing was changed"):
        enforcement.check_create(ANN, lease())
    assert time.monotonic() - began < PATIENCE_S / 2  # the service takes longer than all of it


def broken_off(handler: Any) -> None:
    handler.wfile.write(b'HTTP/1.1 403 Forbidden\r\nContent-Length: 99\r\n\r\n{"mess')
    handler.close_connection = True


def garbled(handler: Any) -> None:
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n"
    handler.wfile.write(head + b"what")


@pytest.mark.parametrize("behaviour", [broken_off, garbled])
def test_an_answer_that_cannot_be_read_whole_is_none(
    tmp_path: Path, service: Service, behaviour: Callable[[Any], None]
) -> None:
    service.answer = behaviour
    with pytest.raises(Unavailable, match=r"cannot be reached.*nothing was changed"):
        asking(tmp_path, service).check_create(ANN, lease())


def test_an_unreachable_enforcement_service_is_reported_without_the_address(
    tmp_path: Path, service: Service
) -> None:
    service.url = f"http://127.0.0.1:{free_port()}/credits"
    with pytest.raises(Unavailable, match=r"cannot be reached.*nothing was changed") as away:
        asking(tmp_path, service).check_create(ANN, lease())
    assert "127.0.0.1" not in away.value.message


# the end of a lease


class Context:
    """Durable work and nothing else, on time that the test turns."""

    def __init__(self, path: Path, enforcement: Enforcement, stack: contextlib.ExitStack) -> None:
        self.path = path
        self.clock = SimClock()
        self.store = stack.enter_context(
            contextlib.closing(Store(f"sqlite:///{path}/holdfast.db", self.clock))
        )
        migrations.sync(self.store.database)
        self.settings = SimpleNamespace(
            minutes_before_end_lease=0,
            cleaning_time=0,
            prepare_s=0.0,
            before_end="",
            preemptibles=False,
            retry_first_s=0.5,
            retry_most_s=15.0,
            claim_ahead=0,
            poll_interval_s=1e6,
        )
        self.work(enforcement.kinds())

    def work(self, kinds: dict[str, Kind]) -> None:
        operations, settings = self.store.operations, self.settings
        runner = Runner(
            operations,
            kinds,
            self.clock,
            owner="m1",
            patience=settings,
            claim_s=30,
            pool=Inline(),
        )
        self.loop = Loop(operations, runner, self.clock, settings)

    def with_leases(self, enforcement: Enforcement, stack: contextlib.ExitStack) -> Leases:
        """Leases too, and two hosts to have."""
        file = str(self.path / "cloud.db")
        sim = stack.enter_context(contextlib.closing(Simulator(file, self.clock)))
        cloud = stack.enter_context(contextlib.closing(SimCloud(file, self.clock)))
        for name in ("cmp-1", "cmp-2"):
            self.store.ledger.enrol(sim.add_host(name), "here", {}, Work())
        with self.store.database.write() as conn:
            conn.execute(sa.update(hosts).values(reservable=True))
        context = lifecycle.LeaseContext(
            ledger=self.store.ledger,
            cloud=cloud,
            calls=Inline(),
            resources={HostResource.type: HostResource()},
            settings=self.settings,
            enforcement=enforcement,
        )
        self.work({**lifecycle.kinds(context), **enforcement.kinds()})
        return Leases(context, self.clock, lambda: str(uuid.uuid4()))

    def put(self, enforcement: Enforcement, over: Lease) -> None:
        work = Work(add=enforcement.end_work(over, self.clock.now()))
        with self.store.database.write() as conn:
            apply_work(conn, over.id, work, self.clock.now())

    def run(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            self.clock.advance(min(left, max(0.05, self.loop.cycle())))

    def status(self) -> str:
        return self.store.operations.by_key("enforce_on_end/l-1").status


def test_the_end_of_a_lease_is_sent_until_the_service_accepts(
    tmp_path: Path, service: Service
) -> None:
    answers = iter([500, 403, 401])
    service.answer = lambda handler: handler.say(next(answers, 204))
    enforcement = asking(tmp_path, service)
    with contextlib.ExitStack() as stack:
        context = Context(tmp_path, enforcement, stack)
        ended = context.clock.now()
        context.put(enforcement, lease())
        context.run(1)
        assert context.status() == "retrying"
        context.run(120)
        assert context.status() == "done"
    assert service.paths() == ["/credits/on-end"] * 4
    body = service.heard[-1][2]
    assert body["lease"]["id"] == "l-1"
    assert body["lease"]["reservations"][1]["allocations"][0]["hypervisor_hostname"] == "h2.lan"
    assert body["ended_at"] == ended.replace(tzinfo=None).isoformat()  # not when it was told
    assert body["context"]["project_id"] == "alpha"


def test_each_filter_gets_the_end_once_although_another_fails(tmp_path: Path) -> None:
    told: list[str] = []
    fail = {"second"}

    class Recorder(policy.Lenient):
        wants_end = True

        def __init__(self, name: str) -> None:
            self.name = name

        def on_end(self, lease: Lease, hosts: Mapping[int, Host], ended_at: datetime) -> None:
            if self.name in fail:
                raise DriverError("test", "not now", retryable=True)
            told.append(self.name)

    settings = policy.Nothing()
    settings.enabled_filters = ["first", "second", "first"]
    enforcement = Enforcement(settings, Recorder)
    with contextlib.ExitStack() as stack:
        context = Context(tmp_path, enforcement, stack)
        context.put(enforcement, lease())
        context.run(5)
        assert told == ["first"]
        fail.clear()
        context.run(60)
        assert told == ["first", "second"]
        assert context.status() == "done"


def test_an_ended_lease_is_not_reported_again(tmp_path: Path, service: Service) -> None:
    enforcement = asking(tmp_path, service)
    (told,) = enforcement.end_work(lease(), NOON)
    assert (told.subject, told.key) == ("enforce:l-1", "enforce_on_end/l-1")
    over = replace(lease(), status="TERMINATED")
    assert enforcement.end_work(over, NOON) == ()
    deleted = replace(lease().move_reservations("deleted"), status="DELETING")
    assert enforcement.end_work(deleted, NOON) == ()


def test_a_lease_follows_the_rules_and_its_end_is_reported_once(
    tmp_path: Path, service: Service
) -> None:
    enforcement = asking(tmp_path, service, max_leases=1)
    with contextlib.ExitStack() as stack:
        context = Context(tmp_path, enforcement, stack)
        leases = context.with_leases(enforcement, stack)
        leases.create(ANN, wanted(1, context.clock.now()))
        with pytest.raises(QuotaExceeded, match="project alpha may have 1 leases"):
            leases.create(ANN, wanted(2, context.clock.now()))
        service.answer = lambda handler: handler.say(403, '{"message": "no more credit"}')
        with pytest.raises(EnforcementRefused, match="no more credit"):
            leases.update(ANN, ids(1), LeaseChange(end=context.clock.now() + timedelta(hours=9)))
        leases.update(ANN, ids(1), LeaseChange(name="renamed"))
        service.answer = lambda handler: handler.say(204)
        context.run(3 * 3600)
        assert context.store.ledger.lease(ids(1)).status == "TERMINATED"
        leases.create(ANN, wanted(2, context.clock.now()))
        for number in (1, 2):  # one that is over, one that is not
            leases.delete(ANN, ids(number))
        context.run(60)
        context.run(1)  # what was written in the instant of the last look
    ended = [body["lease"]["name"] for path, _, body in service.heard if path.endswith("on-end")]
    assert ended == ["renamed", "lease 2"]


def test_a_lease_without_reservations_that_is_over_can_be_deleted(
    tmp_path: Path, service: Service
) -> None:
    enforcement = asking(tmp_path, service)
    with contextlib.ExitStack() as stack:
        context = Context(tmp_path, enforcement, stack)
        leases = context.with_leases(enforcement, stack)
        leases.create(ANN, replace(wanted(1, context.clock.now()), reservations=()))
        context.run(3 * 3600)
        assert context.store.ledger.lease(ids(1)).status == "TERMINATED"
        leases.delete(ANN, ids(1))
        context.run(60)
        with pytest.raises(NotFound):
            context.store.ledger.lease(ids(1))


def ids(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def wanted(number: int, now: datetime) -> NewLease:
    spec = {"min": 1, "max": 1, "hypervisor_properties": "", "resource_properties": ""}
    start, end = now + timedelta(hours=1), now + timedelta(hours=2)
    reservations = (NewReservation("physical:host", spec),)
    return NewLease(ids(number), f"lease {number}", start, end, None, reservations)


def test_a_lease_is_the_same_after_it_was_kept_as_plain_data() -> None:
    whole = replace(
        lease(), before_end=NOON, created_at=NOON, degraded=True, version=3, status="ACTIVE"
    )
    kept = json.loads(json.dumps(lease_model.to_plain(whole)))
    assert lease_model.from_plain(kept) == whole
    assert lease_model.from_plain(kept).reservations[0].allocations[0].host == "h1"
