# SPDX-License-Identifier: Apache-2.0
"""The house of tests/leases with recovery in it: segments, reports, a fence, all in one thread.

house = HealHouse(path); house.segment("cmp-1", "cmp-2", "cmp-3")
server = house.boot("web", "cmp-1")
house.sim.fail_host("cmp-1"); house.report("cmp-1")
house.run(seconds=30)
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from holdfast.app.manager import kinds
from holdfast.conf import recovery as options
from holdfast.drivers.sim.outage import SimFence
from holdfast.hoststatus.poll import HostWatch
from holdfast.jobs.job import never_ending
from holdfast.jobs.outbox import OutboxJob
from holdfast.leases.repair import REPAIR
from holdfast.model.errors import NotFound
from holdfast.model.incident import Incident
from holdfast.model.notification import NewNotification
from holdfast.ports.publishers import INSTANCE_HA, NEWS, sinks_for
from holdfast.ports.recovery import ServerMove
from holdfast.recovery import alarm_actions
from holdfast.recovery.context import RecoveryContext
from holdfast.recovery.events import IncidentPublisher
from tests.ear import Ear
from tests.leases.house import House, Manager, Points, _Watched

FENCE_TIMEOUT_S = 5.0


class OneFence:
    """The simulated fence for all hosts but those of `none` (accepted) and `missing`."""

    def __init__(self, house: "HealHouse", fence: Any) -> None:
        self.call_timeout_s = FENCE_TIMEOUT_S
        self._house = house
        self._fence = fence

    def power(self, host: str) -> str:
        return str(self._of(host).power(host))

    def off(self, host: str) -> None:
        self._of(host).off(host)

    def on(self, host: str) -> None:
        self._of(host).on(host)

    def _of(self, host: str) -> Any:
        if host in self._house.unfenced:
            raise NotFound(f"no fence is configured for {host}")
        return self._fence

    def how(self, host: str) -> str | None:
        return None if host in self._house.unfenced else "sim"

    def accepts_risk(self, host: str) -> bool:
        return host in self._house.accepted


class HealHouse(House):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.recovery = SimpleNamespace(**{opt.dest: opt.default for opt in options.OPTS})
        self.recovery.bring_back_after_s = 20.0
        self.unfenced: set[str] = set()
        self.accepted: set[str] = set()
        self.ear = Ear()
        self.bus: Ear | None = None  # who hears the contract's notifications, if anybody does
        self.own_steps: dict[str, Any] = {}
        self.status_rules = SimpleNamespace(
            down_samples=2,
            down_for_s=0.0,
            healthy_after_s=10.0,
            flap_holdoff_s=0.0,
            disabled_is_failure=False,
            auto_disabled_is_failure=False,
            poll_interval_s=10.0,
        )
        super().__init__(*args, **kwargs)

    def more_kinds(self, manager: Manager, points: Points | None) -> dict[str, Any]:
        fence: Any = SimFence(
            str(self.path / "cloud.db"), self.clock, call_timeout_s=FENCE_TIMEOUT_S, seed=1
        )
        if points is not None:
            fence = _Watched(fence, points, "fence")
        store = manager.store
        sinks = [self.ear, *([self.bus] if self.bus else [])]
        telling = OutboxJob(sinks, SimpleNamespace(give_up_h=24.0), self.clock)
        store.database.publisher = IncidentPublisher(
            people=sinks_for(sinks, NEWS), programs=sinks_for(sinks, INSTANCE_HA), host="here"
        )
        watch = HostWatch(
            store.host_status, self.status_rules, repair=lambda now: never_ending(REPAIR, now)
        )
        self.context = RecoveryContext(
            incidents=store.incidents,
            moves=store.vmoves,
            votes=store.votes,
            cloud=manager.cloud,
            fence=OneFence(self, fence),
            settings=self.recovery,
            new_id=self.new_id,
            see=watch.see,
            clock=self.clock,
            own_steps=self.own_steps,
            wake=self._wake(manager),
            announce=store.database.publisher.incident,
        )
        asked = alarm_actions.kinds(self.context, store.alarms)
        return {**kinds(self.context), **asked, **telling.kinds()}

    def _wake(self, manager: Manager) -> Callable[[], None]:
        """There is a runner by the time anybody rings."""

        def wake() -> None:
            manager.runner.freed.set()

        return wake

    # what people do

    def segment(
        self, *names: str, method: str = "auto", spares: Sequence[str] = (), **more: Any
    ) -> str:
        """A segment of new hosts; those of `spares` are reserved, and closed to servers."""
        segments = self.m.store.segments
        uuid = self.new_id()
        segments.create(
            uuid,
            {
                "name": f"seg-{uuid[-4:]}",
                "recovery_method": method,
                "service_type": "compute",
                **more,
            },
        )
        for name in (*names, *spares):
            if name not in self.hosts():
                self.sim.add_host(name)
            self.join(uuid, name, reserved=name in spares)
        return uuid

    def join(self, segment: str, name: str, *, reserved: bool = False) -> None:
        segments = self.m.store.segments
        host_id = segments.know(self.m.cloud.hosts.find(name), "here")
        values = {
            "type": "COMPUTE",
            "control_attributes": "none",
            "reserved": reserved,
            "on_maintenance": False,
        }
        segments.add_host(self.new_id(), segment, host_id, values)
        if reserved:
            self.m.cloud.services.disable(name, "spare")

    def listen(self) -> Ear:
        """Somebody hears what the contract says on the bus, from now on."""
        self.bus = Ear("bus", hears=INSTANCE_HA)
        self.manager()
        return self.bus

    def report(self, host: str, *, at: datetime | None = None, **payload: str) -> str:
        """A host is said to have stopped; the uuid of the report."""
        said = {"event": "STOPPED", "host_status": "NORMAL", "cluster_status": "OFFLINE", **payload}
        return self.notify("COMPUTE_HOST", host, said, at)

    def report_guest(self, host: str, server: str, *, at: datetime | None = None) -> str:
        said = {"instance_uuid": server, "event": "LIFECYCLE", "vir_domain_event": "STOPPED_FAILED"}
        return self.notify("VM", host, said, at)

    def notify(
        self, kind: str, host: str, payload: dict[str, str], at: datetime | None = None
    ) -> str:
        uuid = self.new_id()
        new = NewNotification(kind, host, at or self.clock.now(), payload)
        self.m.store.notifications.admit(uuid, new, interval=timedelta(seconds=180))
        return uuid

    # what is

    def incident(self, report: str) -> Incident:
        found = self.m.store.notifications.notification(report).incident_id
        assert found is not None, f"report {report} made no incident"
        return self.m.store.incidents.incident(found)

    def reported(self, report: str) -> str:
        return self.m.store.notifications.notification(report).status

    def moves(self, report: str) -> Sequence[ServerMove]:
        return self.m.store.vmoves.of(self.incident(report).id)

    def server(self, server_id: str) -> dict[str, Any]:
        (found,) = [s for s in self.sim.world()["servers"] if s["id"] == server_id]
        return dict(found)

    def check_never_twice(self) -> None:
        for server in self.sim.world()["servers"]:
            running = self.sim.running(server["id"])
            assert len(running) <= 1, f"{server['name']} runs on {running}"

    def check_unlocked(self) -> None:
        locked = [s["name"] for s in self.sim.world()["servers"] if s["locked"]]
        assert not locked, f"left locked: {locked}"
