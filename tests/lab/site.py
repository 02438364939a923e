# SPDX-License-Identifier: Apache-2.0
"""People in the lab: two projects that boot servers, and an administrator who sees where they land.

site = Site.of(lab, ground, "scenario")
server = site.boot("red", hint=reservation_id)
site.outcome(server)        # "cmp3", or REFUSED
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from openstack.exceptions import HttpException, NotFoundException

from holdfast.nova import names
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

    from tests.lab.ground import Ground

REFUSED = "No valid host"
PROJECTS = ("red", "blue")


def delete_server(compute: Any, server: Any) -> None:
    """Ask Nova until it accepts: it answers 500 if the scheduler gives the server a host in the
    same moment ("Object action destroy failed because: host changed")."""

    def accepted() -> bool:
        try:
            compute.delete_server(server, ignore_missing=True)
        except HttpException as error:
            if error.status_code != 500:
                raise
            return False
        return True

    eventually(accepted, every=0.3)


@dataclass
class Site:
    """`prefix` begins the name of every server, so that tests know their own."""

    lab: Lab
    ground: Ground
    prefix: str
    admin: Any
    members: Mapping[str, Any]

    @classmethod
    def of(cls, lab: Lab, ground: Ground, prefix: str) -> Self:
        members = {name: lab.connect(f"{name}-member", name) for name in PROJECTS}
        return cls(lab, ground, prefix, lab.connect(), members)

    @property
    def hosts(self) -> tuple[str, str]:
        return self.ground.hosts

    def project(self, name: str) -> str:
        return str(self.members[name].current_project_id)

    def owner(self, name: str) -> dict[str, str]:
        return {names.OWNER: self.project(name)}

    def pools(self) -> dict[str, set[str]]:
        """The hosts of every aggregate, by its name."""
        return {
            aggregate.name: set(aggregate.hosts or ())
            for aggregate in self.admin.compute.aggregates()
        }

    def boot(self, project: str, hint: object = None, flavor: str = "", **more: Any) -> str:
        """Ask for a server as a member of that project; its id."""
        hints = {} if hint is None else {"scheduler_hints": {names.HINT: hint}}
        server = self.members[project].compute.create_server(
            name=f"{self.prefix}-server",
            image_id=self.lab.image,
            flavor_id=flavor or self.ground.flavor,
            networks="none",
            **hints,
            **more,
        )
        return str(server.id)

    def outcome(self, server_id: str) -> str:
        """The host it landed on, or why it did not. What was evacuated stays shut off."""

        def settled() -> Any:
            server = self.admin.compute.get_server(server_id)
            landed = server.status in ("ACTIVE", "SHUTOFF") and server.task_state is None
            return server if landed or server.fault else None  # it comes after the status

        server = eventually(settled, every=0.2)
        if not server.fault:
            return str(server.compute_host)
        said = str(server.fault["message"])
        return REFUSED if REFUSED in said else said

    def settle(self, project: str, hint: object = None, flavor: str = "") -> tuple[str, str]:
        """Boot until a server lands, and keep that one: its id and its host.

        Nova's scheduler hears of a pool by a message, which may come after us. What it refused
        before is deleted.
        """

        def landed() -> tuple[str, str] | None:
            server_id = self.boot(project, hint, flavor)
            host = self.outcome(server_id)
            if host in self.hosts:
                return server_id, host
            delete_server(self.admin.compute, server_id)
            assert host == REFUSED, host
            return None

        found = eventually(landed, every=0.5)
        assert found is not None
        return found

    def lands(self, project: str, hint: object = None, flavor: str = "") -> str:
        """Where a server would go; it is not kept."""
        server_id = self.boot(project, hint, flavor)
        try:
            return self.outcome(server_id)
        finally:
            delete_server(self.admin.compute, server_id)

    def is_gone(self, server_id: str) -> bool:
        try:
            self.admin.compute.get_server(server_id)
        except NotFoundException:
            return True
        return False

    def empty(self) -> None:
        """Every server of these tests is gone."""

        def gone() -> bool:
            name = f"^{self.prefix}-server"
            left = list(self.admin.compute.servers(all_projects=True, name=name))
            for server in left:
                delete_server(self.admin.compute, server.id)
            return not left

        eventually(gone, every=0.3)
