# SPDX-License-Identifier: Apache-2.0
"""A host of its own in the lab's cloud whose guests can be killed behind Nova's back.

with mortal_host(lab, folder) as host:
    server = host.boot("ana")
    host.guest(server, "shutdown")     # Nova finds out within seconds
    host.compute.kill()

It is a real nova-compute; only its hypervisor is ours (`mortal_driver.py`). No other server goes
there, and it is gone from the cloud afterwards.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.parts import environment
from lab.servers import LabRabbitMQ
from openstack.exceptions import ResourceFailure

from tests.e2e.deployment import write_config
from tests.lab.site import delete_server
from tests.processes import Program, eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

HERE = Path(__file__).parent
PREFIX = "mortal-"
#: Its programs overwrite neither path nor driver: the driver is found beside Nova's own.
LAUNCH = (
    "import sys; import nova.cmd.compute as compute; import nova.virt;"
    f" nova.virt.__path__.append({str(HERE)!r}); sys.argv[0] = 'nova-compute'; compute.main()"
)
Sections = Mapping[str, Mapping[str, object]]
SERVICES = "2.53"  # the microversion by which services have UUIDs


@dataclass
class MortalHost:
    lab: Lab
    name: str
    folder: Path
    compute: Program
    admin: Any
    flavor: str = ""
    servers: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Return when it reads its queue."""
        broker = LabRabbitMQ(self.lab.place)
        self.compute.start()
        self.compute.wait_until(lambda: broker.consumers(f"compute.{self.name}") > 0, 180, 0.2)

    def boot(self, owner: Any, name: str) -> str:
        """A running server of that connection's project; its id.

        On a busy machine nova-compute reports late, and Nova's scheduler leaves its host out for
        that moment: the server is asked for again once Nova hears of the host.
        """

        def booted() -> str:
            eventually(self._is_up)
            made = owner.compute.create_server(
                name=f"{PREFIX}{name}",
                flavor_id=self.flavor,
                image_id=self.lab.image,
                networks="none",
            )
            self.servers.append(str(made.id))
            try:
                found = owner.compute.wait_for_server(made, wait=180, interval=0.3)
            except ResourceFailure:
                fault = getattr(self.shown(made.id), "fault", None) or {}
                assert "No valid host" in str(fault), fault
                return ""
            assert self.shown(found.id).compute_host == self.name
            return str(found.id)

        return eventually(booted, timeout=300)

    def _is_up(self) -> bool:
        services = self.admin.compute.services(host=self.name, binary="nova-compute")
        return [service.state for service in services] == ["up"]

    def shown(self, server: str) -> Any:
        return self.admin.compute.get_server(server)

    def guest(self, server: str, state: str) -> None:
        """It is so from now on, whatever Nova thinks."""
        (self.folder / "guests" / server).write_text(state)

    def is_running(self, server: str) -> bool:
        return (self.folder / "guests" / server).read_text() == "running"

    def remove(self) -> None:
        """Its servers, itself, and what Nova knows of it."""
        if self.compute.poll() is not None:
            self.start()
        for server in self.servers:
            delete_server(self.admin.compute, server)
        left = f"^{PREFIX}"
        eventually(
            lambda: (
                not {
                    server.id for server in self.admin.compute.servers(all_projects=True, name=left)
                }
                & set(self.servers)
            ),
            every=0.5,
        )
        self.compute.kill()
        forget(self.admin, self.name)
        self.admin.placement.delete_resource_class(resource(self.name))


def resource(host: str) -> str:
    """What this host alone has to give, so that other servers do not go there."""
    return f"CUSTOM_{host.upper().replace('-', '_')}"


def forget(admin: Any, host: str) -> None:
    """Take a compute service, with its hypervisor, out of Nova."""
    asked = {"binary": "nova-compute", "host": host}
    found = admin.compute.get("/os-services", params=asked, microversion=SERVICES).json()
    for one in found["services"]:
        answer = admin.compute.delete(f"/os-services/{one['id']}", microversion=SERVICES)
        assert answer.status_code == 204, answer.text


@contextlib.contextmanager
def mortal_host(
    lab: Lab, folder: Path, more: Sections | None = None, env: Mapping[str, str] | None = None
) -> Iterator[MortalHost]:
    """`more` of its nova.conf, and of its environment."""
    name = f"{PREFIX}{uuid.uuid4().hex[:6]}"
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(contextlib.closing(lab.connect()))
        made = MortalHost(lab, name, folder, _program(lab, folder, name, more or {}), admin)
        made.compute.env.update(env or {})
        stack.callback(made.compute.kill)
        made.start()
        stack.callback(made.remove)
        lab.wait_compute(name)
        flavor = admin.create_flavor(name, ram=64, vcpus=1, disk=1)
        stack.callback(admin.delete_flavor, flavor.id)
        made.flavor = flavor.id
        nothing = {f"resources:{one}": "0" for one in ("VCPU", "MEMORY_MB", "DISK_GB")}
        admin.compute.create_flavor_extra_specs(
            flavor, {**nothing, f"resources:{resource(name)}": "1"}
        )
        eventually(
            lambda: any(hypervisor.name == name for hypervisor in admin.compute.hypervisors()),
            every=0.5,
        )
        yield made


def _program(lab: Lab, folder: Path, name: str, more: Sections) -> Program:
    place = lab.place
    own: dict[str, dict[str, object]] = {
        "DEFAULT": {
            "host": name,
            "state_path": folder,
            "compute_driver": "mortal_driver.MortalDriver",
            "sync_power_state_interval": 1,
            "resume_guests_state_on_host_boot": True,
        },
        "oslo_concurrency": {"lock_path": folder / "locks"},
    }
    for section, options in more.items():
        own.setdefault(section, {}).update(options)
    files = (place.etc / "nova" / "nova.conf", write_config(folder / "compute.conf", own))
    words = [word for file in files for word in ("--config-file", str(file))]
    program = Program([place.program("python"), "-c", LAUNCH, *words], folder, name=name)
    program.env = environment(place)
    return program
