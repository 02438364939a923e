# SPDX-License-Identifier: Apache-2.0
"""What a behaviour test needs beside the ports: users' servers, and a hand on the hosts.

Every test of this folder runs in each world. What is true in one of them only is not a behaviour of
the port; it belongs to the tests of that driver.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast import conf as configuration
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Cloud, Server
from holdfast.runtime.clock import SystemClock
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

    from tests.lab.ground import Ground

#: So long do things take in the simulated world: short, but not at once.
PACE_S = 0.1
#: And so long where a host is held: longer than any test holds one.
HELD_S = 600.0


class World(Protocol):
    cloud: Cloud
    #: Service hosts that a test may fill, disable and kill.
    hosts: tuple[str, str]
    #: Ids of two projects.
    projects: tuple[str, str]
    #: The id of a network that floating addresses come from, 203.0.113.0/24.
    network: str
    #: The id of the user who boots.
    user: str

    def name(self, word: str) -> str:
        """A name that nobody else uses; whatever has one is gone after the test."""
        ...

    def hasty(self, call_timeout_s: float) -> Cloud:
        """The same cloud, by a caller with less patience."""
        ...

    def boot(
        self,
        *,
        host: str | None = None,
        project: str | None = None,
        hints: Mapping[str, str] | None = None,
        flavor: str | None = None,
        wait: bool = True,
    ) -> Server:
        """A user's small server; running, unless told not to wait."""
        ...

    def hold(self, host: str) -> contextlib.AbstractContextManager[None]:
        """For the length of the block what is asked of the host is taken in and not done."""
        ...

    def fail(self, host: str) -> None:
        """The host dies; the cloud takes its time to see that."""
        ...

    def recover(self, host: str) -> None:
        """The host, or at least its compute service, starts again."""
        ...


def settled(world: World, server: Server, status: str = "") -> Server:
    """The server once nothing is under way with it (and it has that status)."""

    def still() -> Server | None:
        seen = world.cloud.servers.show(server.id)
        return seen if not seen.task_state and status in ("", seen.status) else None

    seen = eventually(still, every=0.1)
    assert seen is not None
    return seen


def gone(world: World, server: Server) -> None:
    """Wait until the server is no more."""

    def missing() -> bool:
        try:
            world.cloud.servers.show(server.id)
        except NotFound:
            return True
        return False

    eventually(missing, every=0.1)


class Skipping(SystemClock):
    """The machine's clock, but that it can be put forward."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


class SimWorld:
    hosts = ("cmp-1", "cmp-2")
    projects = ("red", "blue")
    network = "public"
    user = "rosa"

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "cloud.db")
        self._numbers = itertools.count()
        self._open = contextlib.ExitStack()
        self._clock = Skipping()
        self.cloud: Cloud = self.hasty(60.0)
        self.sim = self._open.enter_context(contextlib.closing(Simulator(self._path, self._clock)))
        for host in (*self.hosts, "cmp-3"):
            self.sim.add_host(host, vcpus=8, memory_mb=16384, local_gb=100)
        whole = (("203.0.113.2", "203.0.113.254"),)
        self.sim.add_subnet(self.network, "203.0.113.0/24", "203.0.113.1", whole)
        self.sim.change(action_s=PACE_S, delete_s=PACE_S, service_down_s=60)

    def close(self) -> None:
        self._open.close()

    def name(self, word: str) -> str:
        return f"{word}-{next(self._numbers)}"

    def hasty(self, call_timeout_s: float) -> Cloud:
        cloud = SimCloud(self._path, self._clock, call_timeout_s=call_timeout_s)
        return self._open.enter_context(contextlib.closing(cloud))

    def boot(
        self,
        *,
        host: str | None = None,
        project: str | None = None,
        hints: Mapping[str, str] | None = None,
        flavor: str | None = None,
        wait: bool = True,
    ) -> Server:
        return self.sim.boot(
            self.name("server"),
            project or self.projects[0],
            host,
            1,
            512,
            1,
            flavor or "small",
            hints,
            self.user,
        )

    @contextlib.contextmanager
    def hold(self, host: str) -> Iterator[None]:
        self.sim.change(action_s=HELD_S)
        yield
        self.sim.change(action_s=PACE_S)
        self._clock.ahead += timedelta(seconds=HELD_S)  # what it took in is done now

    def fail(self, host: str) -> None:
        self.sim.fail_host(host)

    def recover(self, host: str) -> None:
        self.sim.recover_host(host)


class NovaWorld:
    """Two hosts of the lab. Others use the rest of it at the same time."""

    prefix = "behaviour-"
    #: Of this process, so that several can come and go.
    project = f"behaviour-{os.getpid()}"

    def __init__(self, lab: Lab, ground: Ground, folder: Path) -> None:
        self.lab = lab
        self.hosts = ground.hosts
        self._flavor = ground.flavor
        self._named = False
        self._booted = False
        self._folder = folder
        self._numbers = itertools.count()
        self._open = contextlib.ExitStack()
        self._users = {
            name: self._open.enter_context(_connected(lab, name)) for name in self._made()
        }
        ids = [str(user.current_project_id) for user in self._users.values()]
        self.projects = (ids[0], ids[1])
        self.network = lab.external_network
        self.user = str(self._users["admin"].current_user_id)
        self.cloud: Cloud = self.hasty(60.0)

    def _made(self) -> tuple[str, str]:
        """Two projects in which the lab's admin may boot where he likes."""
        with _connected(self.lab, "admin") as admin:
            identity = admin.identity
            found = identity.find_project(self.project)
            project = found or identity.create_project(name=self.project, domain_id="default")
            role = identity.find_role("admin")
            identity.assign_project_role_to_user(project, admin.current_user_id, role)
        return "admin", self.project

    def close(self) -> None:
        self._open.close()
        with _connected(self.lab, "admin") as admin:
            admin.identity.delete_project(self.projects[1])

    def clean(self, *, everything: bool = False) -> None:
        """As if no test had been here; what the last one cannot have made is not looked for."""
        for host in self.hosts:
            if not self.lab.compute(host).running:
                self.lab.compute(host).start()
            self.lab.compute(host).resume()
        listed = self.cloud.servers.list() if everything or self._booted else ()
        mine = [s for s in listed if s.name.startswith(self.prefix)]
        for server in mine:
            self.cloud.servers.delete(server.id)
        if everything or self._named:
            self._remove_named()
        for service in self.cloud.services.list():
            if service.host in self.hosts:
                self._mend(service.host, service.enabled, service.forced_down)
        for server in mine:
            gone(self, server)
        self._named = self._booted = False

    def _remove_named(self) -> None:
        for pool in self.cloud.pools.list():
            if pool.name.startswith(self.prefix):
                for host in pool.hosts:
                    self.cloud.pools.remove_host(pool.id, host)
                self.cloud.pools.delete(pool.id)
        image = self._users["admin"].image
        for each in image.images():
            if each.name.startswith(self.prefix):
                image.delete_image(each, ignore_missing=True)

    def _mend(self, host: str, enabled: bool, forced_down: bool) -> None:
        if forced_down and not _unforced(self.cloud, host):
            self.recover(host)
            eventually(lambda: _unforced(self.cloud, host), every=0.5)
        self.lab.wait_compute(host)
        if not enabled:  # last, so that the host hears of it
            self.cloud.services.enable(host)

    def name(self, word: str) -> str:
        self._named = True
        return f"{self.prefix}{word}-{next(self._numbers)}"

    def hasty(self, call_timeout_s: float) -> Cloud:
        from holdfast.drivers.nova.cloud import connect

        file = self._folder / f"nova-{next(self._numbers)}.conf"
        file.write_text(
            f"[cloud]\ncall_timeout_s = {call_timeout_s}\n"
            "[openstack]\nauth_type = password\nusername = holdfast\npassword = pw\n"
            f"auth_url = {self.lab.auth_url}\nregion_name = {self.lab.region}\n"
            "project_name = service\nuser_domain_name = Default\nproject_domain_name = Default\n"
        )
        conf = configuration.load([], [str(file)])
        return self._open.enter_context(contextlib.closing(connect(conf, SystemClock())))

    def boot(
        self,
        *,
        host: str | None = None,
        project: str | None = None,
        hints: Mapping[str, str] | None = None,
        flavor: str | None = None,
        wait: bool = True,
    ) -> Server:
        user = next(u for u in self._users.values() if project in (None, u.current_project_id))
        server = {
            "name": f"{self.prefix}server-{next(self._numbers)}",
            "flavorRef": flavor or self._flavor,
            "imageRef": self.lab.image,
            "networks": "none",
            **({"host": host} if host else {}),
        }
        self._booted = True
        body = {"server": server, "OS-SCH-HNT:scheduler_hints": dict(hints or {})}
        answer = user.compute.post("/servers", json=body, microversion="2.79")
        assert answer.status_code == 202, answer.text
        seen = self.cloud.servers.show(answer.json()["server"]["id"])
        return settled(self, seen, "ACTIVE") if wait else seen

    @contextlib.contextmanager
    def hold(self, host: str) -> Iterator[None]:
        self.lab.compute(host).pause()
        try:
            yield
        finally:
            self.lab.compute(host).resume()

    def fail(self, host: str) -> None:
        """Stopped in its tracks: to the cloud that is dead, and it is sooner back."""
        self.lab.compute(host).pause()

    def recover(self, host: str) -> None:
        """Until it has been heard of: it may look up by the last word of its former life."""
        self.lab.compute(host).kill()
        began = datetime.now(UTC)
        self.lab.compute(host).start()

        def heard() -> bool:
            service = next(one for one in self.cloud.services.list() if one.host == host)
            return service.updated_at is not None and service.updated_at > began

        eventually(heard, every=0.5)


def _connected(lab: Lab, project: str) -> contextlib.closing[Any]:
    return contextlib.closing(lab.connect("admin", project))


def _unforced(cloud: Cloud, host: str) -> bool:
    try:
        cloud.services.unforce(host)
    except Conflict:
        return False
    return True
