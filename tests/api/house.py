# SPDX-License-Identifier: Apache-2.0
"""A whole Holdfast in this process, quick to build: migrated once, copied for every test."""

from __future__ import annotations

import shutil
import sqlite3
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import bcrypt
from falcon import testing

from holdfast import conf as configuration
from holdfast.api.request import Services
from holdfast.app import service
from holdfast.db import migrations
from holdfast.drivers.sim.simulator import Simulator
from holdfast.hoststatus.poll import POLL
from holdfast.jobs.retention import TIDY
from holdfast.leases.aggregates import RECONCILE, RESYNC
from holdfast.leases.auto_lease import SWEEP
from holdfast.leases.hosts import REFRESH
from holdfast.leases.repair import REPAIR
from holdfast.ports.manager import Caller
from holdfast.runtime.clock import SystemClock

LEASES = "/reservation/v1/leases"
HOSTS = "/reservation/v1/os-hosts"
ADDRESSES = "/reservation/v1/floatingips"
NETWORK = "public"
#: What asks for the contents of 1.1.
LATER = {"OpenStack-API-Version": "reservation 1.1"}
OWN = "/holdfast/v1"
#: Of which the tokens of agents and host monitors are made, where a test names no other file.
SECRET = b"s" * 40
ADMIN = Caller("admin", "demo", ("admin",), is_admin=True)
#: Durable work that never ends.
CHORES = (REFRESH, SWEEP, TIDY, POLL, REPAIR, RECONCILE, RESYNC)
#: user -> project, roles; everybody's password is the user's name
PEOPLE: Mapping[str, tuple[str, list[str]]] = {
    "reader": ("blue", ["reader"]),
    "member": ("blue", ["member"]),
    "manager": ("blue", ["manager"]),
    "admin": ("ops", ["admin"]),
    "service": ("ops", ["service"]),
    "other": ("red", ["member"]),
    "bare": ("blue", []),
}


class TestClock(SystemClock):
    """The machine's clock, with a monotonic side that a test can push ahead."""

    __test__ = False
    ahead_s = 0.0
    _stands_at: float | None = None

    def stand_still(self) -> None:
        """From here on only the test moves it: nothing grows old because the machine is slow."""
        self._stands_at = super().monotonic()

    def monotonic(self) -> float:
        now = super().monotonic() if self._stands_at is None else self._stands_at
        return now + self.ahead_s


class House:
    """`call` asks in process; `app` is the WSGI application."""

    def __init__(
        self, state: Path, config: str = "", database_url: str = "", **changes: Any
    ) -> None:
        self.state = state
        self.clock = TestClock()
        file = state / "holdfast.conf"
        file.write_text(config)
        self.conf = configuration.load([], [str(file)])
        url = database_url or f"sqlite:///{state / 'holdfast.db'}"
        self.conf.set_override("connection", url, "database")
        self.conf.set_override("database", str(state / "sim.db"), "sim")
        self.conf.set_override("prepare_s", 0.0, "reservation")
        if not self.conf.auth.agent_secret_file:
            (state / "agent-secret").write_bytes(SECRET)
            self.conf.set_override("agent_secret_file", str(state / "agent-secret"), "auth")
        self.core = service.Core(self.conf, self.clock)
        if database_url:
            migrations.sync(self.core.store.database)
        self.manager = service.ManagerPart(
            self.core, service.connect_cloud(self.conf, self.core.clock)
        )
        made = service.api_services(
            self.core, self.manager.commands, loop_age_s=self.manager.loop.age_s
        )
        self.services: Services = replace(made, **changes)
        self.app = service.application(self.core, self.services)
        self.manager.start()
        if database_url:
            enrol(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.manager.stop()
        self.core.close()
        self.services.sim().close()

    def call(self, method: str, path: str, user: str = "", **kwargs: Any) -> testing.Result:
        headers = dict(kwargs.pop("headers", {}))
        if user:
            headers["Authorization"] = basic(user)
        headers.setdefault("Host", "127.0.0.1:8780")
        kwargs.setdefault("remote_addr", "127.0.0.1")
        client = testing.TestClient(self.app)
        return client.simulate_request(method, path, headers=headers, **kwargs)

    def raw(self, environ: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        """What a server would do with an environ that no decent client makes."""
        heard: list[Any] = []
        body = b"".join(self.app(environ, lambda *said: heard.extend(said)))
        return int(heard[0][:3]), {k.lower(): v for k, v in heard[1]}, body

    def lease(self, user: str = "", **fields: Any) -> dict[str, Any]:
        """A lease of one host, made through the API."""
        made = self.call("POST", LEASES, user, json=lease_body(**fields))
        assert made.status_code == 201, made.text
        lease: dict[str, Any] = made.json["lease"]
        return lease

    def dump(self) -> list[str]:
        """Everything in the database, but for what the loop notes down and does by itself."""
        with sqlite3.connect(self.state / "holdfast.db") as db:
            return [line for line in db.iterdump() if not _by_itself(line)]


def _by_itself(line: str) -> bool:
    return 'INTO "operations"' in line and any(f"'{kind}'" in line for kind in CHORES)


def template(folder: Path) -> Path:
    """Databases with a cloud of six hosts, four of them enrolled, and one address: copied, never
    used."""
    clock = SystemClock()
    simulator = Simulator(str(folder / "sim.db"), clock)
    for number in range(1, 7):
        simulator.add_host(f"cmp-{number}", zone="az-1", rack="rack-a")
    simulator.boot("web-1", "blue", "cmp-6", 2, 2048, 10)
    simulator.add_subnet(NETWORK, "203.0.113.0/24", None, [("203.0.113.128", "203.0.113.254")])
    simulator.close()
    conf = configuration.load([], [])
    conf.set_override("connection", f"sqlite:///{folder / 'holdfast.db'}", "database")
    core = service.Core(conf)
    migrations.sync(core.store.database)
    core.close()
    with House(folder) as house:
        enrol(house)
    with sqlite3.connect(folder / "holdfast.db") as db:
        db.execute("PRAGMA journal_mode=DELETE")
    return folder


def enrol(house: House) -> None:
    for number in range(1, 5):
        extras = {"gpu": "a100"} if number == 1 else {}
        house.manager.commands.enrol_host(ADMIN, f"cmp-{number}", extras)
    house.manager.commands.enrol_floatingip(ADMIN, NETWORK, "203.0.113.7")


def copy(source: Path, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.db*"):
        shutil.copy(file, target)
    return target


def basic(user: str, password: str = "") -> str:
    pair = f"{user}:{password or user}".encode()
    return f"Basic {b64encode(pair).decode()}"


def basic_config(folder: Path) -> str:
    """Files of the http_basic strategy, and the configuration that names them."""
    hashes = {u: bcrypt.hashpw(u.encode(), bcrypt.gensalt(4)).decode() for u in PEOPLE}
    hashes["stray"] = bcrypt.hashpw(b"stray", bcrypt.gensalt(4)).decode()
    (folder / "htpasswd").write_text("".join(f"{u}:{h}\n" for u, h in hashes.items()))
    lines = [f"{u}: {{project: {p}, roles: {r}}}\n" for u, (p, r) in PEOPLE.items()]
    (folder / "users.yaml").write_text("".join(lines))
    return (
        f"[DEFAULT]\nauth_strategy = http_basic\n"
        f"[auth]\nhtpasswd_file = {folder / 'htpasswd'}\nusers_file = {folder / 'users.yaml'}\n"
    )


def when(**ahead: float) -> str:
    """A date as clients write it."""
    return f"{datetime.now(UTC) + timedelta(**ahead):%Y-%m-%d %H:%M}"


def host_reservation(**fields: Any) -> dict[str, Any]:
    """As python-blazarclient sends it."""
    return {
        "resource_type": "physical:host",
        "min": 1,
        "max": 1,
        "hypervisor_properties": "",
        "resource_properties": "",
        **fields,
    }


def lease_body(**fields: Any) -> dict[str, Any]:
    """As python-blazarclient sends it: events and before_end_date always there."""
    return {
        "name": "lease-1",
        "start_date": when(days=1),
        "end_date": when(days=2),
        "before_end_date": None,
        "events": [],
        "reservations": [host_reservation()],
        **fields,
    }
