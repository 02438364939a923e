# SPDX-License-Identifier: Apache-2.0
"""A real manager on a real clock: a database, the simulated cloud, hosts in one segment.

with Fleet(url, folder) as fleet:
    fleet.add("cmp-1", servers=60); fleet.add("cmp-2")
    fleet.sim.change(latency_s=0.2)
    fleet.start()
    fleet.die("cmp-1")
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from holdfast import conf
from holdfast.app import service
from holdfast.db import migrations
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.notification import NewNotification
from tests.processes import PATIENCE_S

DEAD = {"event": "STOPPED", "host_status": "NORMAL", "cluster_status": "OFFLINE"}


class Fleet:
    def __init__(self, url: str, folder: Path, options: Mapping[tuple[str, str], Any]) -> None:
        self._stack = contextlib.ExitStack()
        path = str(folder / "sim.db")
        settings = conf.load([], [])
        for (group, name), value in {
            ("database", "connection"): url,
            ("sim", "database"): path,
            ("monitors", "poll"): False,
            ("monitors", "push"): False,
            **options,
        }.items():
            settings.set_override(name, value, group)
        self.core = service.Core(settings)
        self._stack.callback(self.core.close)
        self.store = self.core.store
        migrations.sync(self.store.database)
        self.sim = Simulator(path, self.core.clock)
        self._cloud = SimCloud(path, self.core.clock)
        self._eyes = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S)
        self._own = sa.create_engine(url, poolclass=sa.pool.NullPool)  # the manager's are its own
        for part in (self.sim, self._cloud, self._eyes):
            self._stack.callback(part.close)
        self._segment = str(uuid.uuid4())
        values = {"name": "all", "recovery_method": "auto", "service_type": "compute"}
        self.store.segments.create(self._segment, values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def add(self, name: str, *, rack: str = "", servers: int = 0) -> None:
        """A host, with servers that run; the first of them is to go first."""
        self.sim.add_host(name, rack=rack, vcpus=128)
        segments = self.store.segments
        host_id = segments.know(self._cloud.hosts.find(name), "")
        rest = {"reserved": False, "on_maintenance": False}
        rest |= {"type": "COMPUTE", "control_attributes": "none"}
        segments.add_host(str(uuid.uuid4()), self._segment, host_id, rest)
        for number in range(servers):
            first = {"HA_Enabled": "true"} if number == servers - 1 else {}
            self.sim.boot(f"{name}-{number:03d}", "alpha", name, 1, 512, 1, metadata=first)

    def start(self) -> None:
        cloud = service.connect_cloud(self.core.conf, self.core.clock)
        manager = service.ManagerPart(self.core, cloud)
        manager.start()
        self._stack.callback(manager.stop)

    def die(self, *hosts: str) -> None:
        """All at once, and reported."""
        for host in hosts:
            self.sim.fail_host(host)
        at = datetime.now(UTC)
        for host in hosts:
            new = NewNotification("COMPUTE_HOST", host, at, DEAD)
            self.store.notifications.admit(str(uuid.uuid4()), new, interval=timedelta(seconds=180))

    def arrive(self) -> None:
        """What is under way in the cloud ends now."""
        self._eyes.execute("UPDATE servers SET finish_at = 0 WHERE finish_at IS NOT NULL")

    # what is

    def away(self) -> int:
        """Servers that run, by what the cloud says, and are on a host that has power."""
        query = (
            "SELECT count(*) FROM servers s JOIN hosts h ON h.id = s.host_id JOIN domains d"
            " ON d.server_id = s.id AND d.host_id = h.id WHERE s.status = 'ACTIVE' AND h.powered"
        )
        return int(self._eyes.execute(query).fetchone()[0])

    def moving(self) -> int:
        """Servers on their way at this moment."""
        query = "SELECT count(*) FROM servers WHERE task_state = 'rebuilding'"
        return int(self._eyes.execute(query).fetchone()[0])

    def twice(self) -> int:
        """Servers that run on more than one host."""
        query = "SELECT count(*) - count(DISTINCT server_id) FROM domains"
        return int(self._eyes.execute(query).fetchone()[0])

    def rows(self, query: str) -> Sequence[Any]:
        with self._own.connect() as conn:
            return conn.execute(sa.text(query)).all()
