# SPDX-License-Identifier: Apache-2.0
"""A nova-compute of the lab dies, is reported and fenced, and its servers run on the other host of
these tests: all of them, each once, those of a reservation where that reservation went.

The lab's machines are processes; `fence_lab` is the fence agent that switches them.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openstack.connection import Connection
from openstack.exceptions import ForbiddenException

from holdfast.client.errors import Conflict
from tests.e2e.deployment import host_lease, soon, wire_date
from tests.lab import fence_lab
from tests.lab.ground import Ground
from tests.lab.house import House, house
from tests.lab.victim import Victim
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

SERVERS = 12
SEGMENT = "lab"
OFF = {"event": "STOPPED", "host_status": "NORMAL", "cluster_status": "OFFLINE"}
WHERE = '["==", "$lab", "recovery"]'
#: Nova alone needs about 10 s for so many servers when nothing else runs.
MOVED_S = 300.0
RETURNED_S = 300.0


@dataclass
class Town:
    """Two managers, a segment of two hosts with fences, and an administrator's connections."""

    lab: Lab
    home: House
    ground: Ground
    admin: Any
    ha: Any  # openstacksdk's proxy to us

    def victim(self, host: str) -> Victim:
        return Victim(self.lab, self.admin, host, "recovery")

    def other(self, host: str) -> str:
        (found,) = set(self.ground.hosts) - {host}
        return found

    def member(self, host: str) -> Any:
        segment = next(segment for segment in self.ha.segments() if segment.name == SEGMENT)
        return next(one for one in self.ha.hosts(segment.uuid) if one.name == host)

    def report(self, host: str) -> str:
        """As monitors do; the notification's id."""
        when = datetime.now(UTC).replace(tzinfo=None)
        made = self.ha.create_notification(
            type="COMPUTE_HOST", hostname=host, generated_time=when, payload=OFF
        )
        return str(made.notification_uuid)

    def finished(self, notification: str, timeout: float = MOVED_S) -> Any:
        """The notification when all is done, with its steps."""

        def done() -> Any:
            found = self.ha.get_notification(notification)
            assert found.status == "finished", f"{found.status}: {found.recovery_workflow_details}"
            return found

        return eventually(done, timeout, 0.3)

    def evacuations(self, host: str, servers: list[str]) -> Counter[str]:
        """How often each of these left that host. One that Nova found no place for went nowhere
        and was asked for again."""
        asked = {"migration_type": "evacuation", "source_compute": host}
        found: Counter[str] = Counter()
        marker = ""
        while True:
            more = {**asked, **({"marker": marker} if marker else {})}
            answer = self.admin.compute.get("/os-migrations", params=more, microversion="2.79")
            page = answer.json()["migrations"]
            if not page:
                return found
            for one in page:
                if one["instance_uuid"] not in servers:
                    continue
                if one["status"] == "error" and one["dest_compute"] is None:
                    continue
                assert one["status"] in ("done", "completed"), one
                found[one["instance_uuid"]] += 1
            marker = page[-1]["uuid"]

    def returns(self, host: str) -> float:
        """Switch the host on and wait until it is used again; how long that took."""
        self.lab.compute(host).start()
        began = time.monotonic()
        victim = self.victim(host)

        def back() -> bool:
            seen = victim.service()
            assert (seen.state, seen.status, seen.is_forced_down) == ("up", "enabled", False)
            return not self.member(host).on_maintenance

        eventually(back, RETURNED_S, 0.5)
        return time.monotonic() - began


@pytest.fixture(scope="module")
def town(lab: Lab, our_ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("recovery")
    with contextlib.ExitStack() as stack:
        stack.enter_context(lab.alone(*our_ground.hosts))
        home = stack.enter_context(
            house(lab, folder, cloud="nova", managers=2, extra=options(folder))
        )
        admin = stack.enter_context(contextlib.closing(lab.connect()))
        ours = Connection(session=admin.session, region_name=home.region, ha_api_version="1.3")
        made = Town(lab, home, our_ground, admin, ours.instance_ha)
        furnish(made)
        yield made
        for host in our_ground.hosts:
            made.victim(host).restore()
        forget(made)


def forget(town: Town) -> None:
    """No lease, and no host enrolled: those of a test that failed keep other tests' servers out."""
    client = town.home.client()
    for lease in client.leases.list():
        client.leases.delete(lease["id"])
    eventually(lambda: not client.leases.list(), every=0.3)
    for host in client.hosts.list():
        eventually(lambda: withdrawn(client, host["id"]), every=0.5)  # noqa: B023


def options(folder: Path) -> dict[str, dict[str, object]]:
    """Fences by the lab's agent; a host that is back is used again soon."""
    agents = folder / "agents"
    fence_lab.install(agents)
    devices = folder / "fences.yaml"
    devices.write_text(
        'hosts:\n  "cmp*":\n    driver: agent\n'
        f'    agent: {fence_lab.NAME}\n    options: {{plug: "{{short}}"}}\n'
    )
    return {
        "fencing": {"devices_file": devices, "agents_dir": agents},
        "recovery": {"bring_back_after_s": 2},
        "monitors": {"push": False, "poll": False, "healthy_after_s": 0, "flap_holdoff_s": 0},
    }


@pytest.mark.slow("a real Nova boots and evacuates twelve servers, and the host starts again")
def test_servers_of_a_dead_compute_run_elsewhere_once_each_and_the_compute_returns(
    town: Town,
) -> None:
    host, other = town.ground.hosts
    victim = town.victim(host)
    servers = victim.fill(SERVERS, flavor=town.ground.flavor)
    victim.kill()
    began = time.monotonic()
    notification = town.report(host)
    eventually(lambda: len(victim.moved()) == SERVERS, MOVED_S, 0.3)
    took = time.monotonic() - began
    print(f"\n{SERVERS} servers run elsewhere {took:.1f} s after the report")
    assert victim.moved() == dict.fromkeys(servers, other)

    town.finished(notification)
    assert not any(server.is_locked for server in victim.servers())
    service = victim.service()
    assert (service.status, service.is_forced_down) == ("disabled", True)
    assert town.member(host).on_maintenance
    assert not town.lab.compute(host).running
    seen(town, notification, servers, other)

    took = town.returns(host)
    print(f"\nthe host was in use again {took:.1f} s after it could speak")
    assert victim.moved() == dict.fromkeys(servers, other)
    assert town.evacuations(host, servers) == dict.fromkeys(servers, 1)
    victim.empty()


def furnish(town: Town) -> None:
    """By the commands that people know, with a token of Keystone's."""
    new_host = "segment", "host", "create"
    segment, *hosts = town.home.commands(
        ["segment", "create", SEGMENT, "auto", "COMPUTE"],
        *([*new_host, host, "KVM", "none", SEGMENT] for host in town.ground.hosts),
    )
    assert (segment["name"], segment["recovery_method"]) == (SEGMENT, "auto")
    assert [host["name"] for host in hosts] == list(town.ground.hosts)
    with contextlib.closing(town.lab.connect("red-member", "red")) as member:
        theirs = Connection(session=member.session, region_name=town.home.region)
        with pytest.raises(ForbiddenException):
            list(theirs.instance_ha.segments())


def seen(town: Town, notification: str, servers: list[str], other: str) -> None:
    """What the commands show of it afterwards."""
    (listed, shown, moves) = town.home.commands(
        ["notification", "list"],
        ["notification", "show", notification],
        ["notification", "vmove", "list", notification],
    )
    assert notification in {one["notification_uuid"] for one in listed}
    assert shown["status"] == "finished"
    assert "fence" in str(shown["recovery_workflow_details"])
    assert Counter(move["status"] for move in moves) == {"succeeded": len(servers)}
    found = list(town.ha.vmoves(notification))
    assert {one.server_id: one.dest_host for one in found} == dict.fromkeys(servers, other)


@pytest.mark.slow("a real Nova evacuates servers, and the host starts again")
def test_the_servers_of_a_reservation_follow_it_when_its_host_is_cut_off(town: Town) -> None:
    client = town.home.client()
    for one in town.ground.hosts:
        client.hosts.create(one, {"lab": "recovery"})
    lease = client.leases.create(
        "recovered",
        end_date=wire_date(soon(3600)),
        reservations=[host_lease(1, 1, WHERE)],
    )
    eventually(lambda: client.leases.show(lease["id"])["status"] == "ACTIVE", every=0.2)
    reservation = lease["reservations"][0]["id"]

    def held() -> set[str]:
        pools = town.admin.compute.aggregates()
        return {host for pool in pools if pool.name == reservation for host in pool.hosts or ()}

    (host,) = held()
    other = town.other(host)
    victim = town.victim(host)
    hints = {"reservation": reservation}
    servers = victim.fill(3, flavor=town.ground.flavor, hints=hints, word="reserved")
    town.lab.compute(host).pause()  # it does not speak, and is not off
    began = time.monotonic()
    notification = town.report(host)
    eventually(lambda: victim.moved() == dict.fromkeys(servers, other), MOVED_S, 0.3)
    print(f"\n3 servers run on their reservation's new host after {time.monotonic() - began:.1f} s")
    assert not town.lab.compute(host).running  # the fence agent has seen to it
    town.finished(notification)
    eventually(lambda: held() == {other}, every=0.3)
    town.returns(host)
    assert town.evacuations(host, servers) == dict.fromkeys(servers, 1)
    shown = client.leases.show(lease["id"])
    assert (shown["status"], shown["degraded"]) == ("ACTIVE", True)

    client.leases.delete(lease["id"])
    eventually(lambda: not victim.rows(), every=0.3)
    forget(town)


def withdrawn(client: Any, host_id: str) -> bool:
    """A host that is on its way back to the free pool is not given up yet."""
    with contextlib.suppress(Conflict):
        client.hosts.delete(host_id)
        return True
    return False
