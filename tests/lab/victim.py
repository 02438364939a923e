# SPDX-License-Identifier: Apache-2.0
"""A compute of the lab that is killed, and the servers that were on it.

victim = Victim(lab, lab.connect(), "cmp3", "recovery")
victim.fill(20)
victim.kill()
eventually(lambda: len(victim.moved()) == 20, 60)
victim.restore()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from openstack.exceptions import BadRequestException

from tests.lab.site import delete_server
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

#: Several servers by one request, on a host that is named.
PINNED = "2.74"
_INSTANCES = sa.text(
    "SELECT uuid, host, vm_state, task_state FROM instances"
    " WHERE deleted = 0 AND display_name LIKE :name"
)


@dataclass
class Victim:
    """`prefix` begins the name of every server, so that tests know their own."""

    lab: Lab
    admin: Any
    host: str
    prefix: str

    def fill(
        self,
        count: int,
        *,
        flavor: str = "",
        compute: Any = None,
        hints: Mapping[str, str] | None = None,
        word: str = "server",
    ) -> list[str]:
        """Running servers on the host, of whoever's connection is given; their ids."""
        server = {
            "name": f"{self.prefix}-{word}",
            "imageRef": self.lab.image,
            "flavorRef": flavor or self.lab.flavor,
            "networks": "none",
            "min_count": count,
            "max_count": count,
            **({} if hints else {"host": self.host}),
        }
        body = {"server": server, "OS-SCH-HNT:scheduler_hints": dict(hints or {})}
        asked = (compute or self.admin.compute).post("/servers", json=body, microversion=PINNED)
        assert asked.status_code == 202, asked.text

        def booted() -> list[str]:
            mine = self.rows(word)
            states = sorted(f"{one.vm_state} on {one.host}" for one in mine)
            assert states == [f"active on {self.host}"] * count, states
            return [str(one.uuid) for one in mine]

        return eventually(booted, every=0.3)

    def rows(self, word: str = "") -> Sequence[Any]:
        """Our servers as Nova's database has them: its API takes a second to tell, and whoever is
        measured needs it."""
        engine = sa.create_engine(self.lab.place.database_url("nova"))
        try:
            with engine.connect() as conn:
                return conn.execute(_INSTANCES, {"name": f"{self.prefix}-{word}%"}).all()
        finally:
            engine.dispose()

    def servers(self) -> list[Any]:
        return list(self.admin.compute.servers(all_projects=True, name=f"^{self.prefix}-"))

    def moved(self) -> dict[str, str]:
        """The hosts of those that run elsewhere, with nothing under way."""
        return {
            str(row.uuid): str(row.host)
            for row in self.rows()
            if row.host != self.host and row.vm_state == "active" and not row.task_state
        }

    def service(self) -> Any:
        (found,) = self.admin.compute.services(host=self.host, binary="nova-compute")
        return found

    def kill(self) -> None:
        """As a loss of power does. Nova takes its time to see it."""
        self.lab.compute(self.host).kill()

    def empty(self) -> None:
        """Every server of ours is gone."""

        def gone() -> bool:
            left = self.servers()
            for one in left:
                if one.task_state != "deleting":
                    delete_server(self.admin.compute, one.id)
            return not left

        eventually(gone, every=0.5)

    def restore(self) -> None:
        """As it was before: running, un-forced, enabled, and no servers of ours anywhere."""
        self.lab.compute(self.host).start()
        self.empty()
        eventually(self._unforced, every=0.5)
        self.lab.wait_compute(self.host)
        if self.service().status == "disabled":
            self.admin.compute.enable_service(self.service())

    def _unforced(self) -> bool:
        """Nova refuses until the compute has looked what left it."""
        service = self.service()
        try:
            if service.is_forced_down:
                self.admin.compute.update_service_forced_down(service, forced=False)
        except BadRequestException:
            return False
        return True
