# SPDX-License-Identifier: Apache-2.0
"""Host monitors in a house: what they see and say, as the API writes it down.

one, two, three = voters(house)
one.fails("cmp-1")            # sees it down on storage, and says so
two.sees(well=["cmp-1"])      # and the other does not
"""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from holdfast.hostmonitor import matrix
from tests.recovery.house import HealHouse

NETWORKS = ("manage", "tenant", "storage")
DOWN, UP = ("up", "up", "down"), ("up", "up", "up")
GONE, BLIND = ("down", "down", "down"), ("up", "up", "unknown")
#: A clock that only moves when work is due would make everybody stale.
FOR_EVER_S = 1e6


class Voter:
    def __init__(
        self,
        house: HealHouse,
        name: str,
        heartbeat_s: float = FOR_EVER_S,
        *,
        registered: bool = True,
    ) -> None:
        self.house, self.name, self.heartbeat_s = house, name, heartbeat_s
        if registered:
            house.m.store.monitors.register(name, "ann")
        self.hosts: dict[str, tuple[tuple[str, ...], str]] = {}
        self._since: dict[str, datetime] = {}

    def sees(
        self,
        *,
        well: Sequence[str] = (),
        failed: Sequence[str] = (),
        blind: Sequence[str] = (),
        waiting: Sequence[str] = (),
        health: tuple[str, ...] = DOWN,
    ) -> None:
        """What it sees from now on, beside what it saw before."""
        self.hosts |= {host: (UP, "none") for host in well}
        self.hosts |= {host: (health, "recovery") for host in failed}
        self.hosts |= {host: (BLIND, "undecided") for host in blind}
        self.hosts |= {host: (health, "none") for host in waiting}
        self.beat()

    def beat(self) -> None:
        now = self.house.clock.now()
        rows = [
            {
                "health": dict(zip(NETWORKS, health, strict=True)),
                "opinion": opinion,
                "hosts": [host],
            }
            for host, (health, opinion) in self.hosts.items()
        ]
        sight = {"sighted": True, "leader": "10.0.0.1:8300", "since": now.isoformat(), "why": ""}
        body = {
            "kind": "host",
            "heartbeat_s": self.heartbeat_s,
            "networks": {name: sight for name in NETWORKS},
            "ha_matrix": matrix.default(NETWORKS).to_plain(),
            "rows": rows,
        }
        self.house.m.store.monitors.put(self.name, now, body)

    def forget(self, host: str) -> None:
        del self.hosts[host]
        self.beat()

    def says(
        self, state: str, host: str, since: datetime | None = None, *, undecided: bool = False
    ) -> str:
        """Report it; the id of the report."""
        now = self.house.clock.now()
        since = since or now
        health = {"failed": "down", "alert": "down", "well": "up"}[state]
        proof = ["leader 10.0.0.1:8300", "own gossip", "3 of 3 servers alive"]
        network: dict[str, Any] = {"health": health, "since": since.isoformat()}
        network["confirmed_by"] = proof
        rule = "line 7: storage down -> recovery after 3 s"
        key = hashlib.sha256(f"{host} {state} {since}".encode()).hexdigest()
        values = {
            "observer": self.name,
            "subject": f"host:{host}",
            "kind": "host_health",
            "state": state,
            "since": since,
            "observed_at": now,
            "key": key,
            "evidence": {"networks": {"storage": network}, "rule": rule, "ha_matrix": "default"},
        }
        if undecided:
            values["evidence"] |= {"undecided": True}
        row, _new = self.house.m.store.observations.add(self.house.new_id(), values)
        return str(row["id"])

    def fails(self, host: str, health: tuple[str, ...] = DOWN) -> str:
        """It saw the host fail, for long enough, and says so."""
        self._since[host] = self.house.clock.now()
        said = self.says("failed", host, self._since[host])
        self.sees(failed=[host], health=health)
        return said

    def recovers(self, host: str) -> str:
        said = self.says("well", host)
        self.sees(well=[host])
        return said

    def restarts(self, host: str) -> None:
        """It knows nothing any more, finds the host dead and says so."""
        self.hosts = {}
        self.sees(waiting=[host])
        self.house.clock.advance(3.0)
        self.fails(host)


def voters(house: HealHouse, *hosts: str, count: int = 3) -> list[Voter]:
    """Monitors that see all of these well."""
    made = [Voter(house, f"ctl-{number}") for number in range(1, count + 1)]
    for one in made:
        one.sees(well=hosts)
    return made
