# SPDX-License-Identifier: Apache-2.0
"""The true path: hosts enrolled, a lease made over REST, started and ended on time."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.client import Client
from holdfast.client.errors import Conflict
from tests.e2e.deployment import all_in_one, host_lease, separate, soon, wire_date
from tests.processes import PATIENCE_S, eventually
from tests.servers.postgresql import PostgreSQL
from tests.servers.rabbitmq import RabbitMQ


def statuses(lease: dict[str, Any]) -> dict[str, str]:
    return {event["event_type"]: event["status"] for event in lease["events"]}


def pool_hosts(world: dict[str, Any], name: str) -> list[str]:
    found = [pool["hosts"] for pool in world["pools"] if pool["name"] == name]
    return sorted(found[0]) if found else []


def lease_is(client: Client, lease_id: str, status: str) -> dict[str, Any] | None:
    lease = client.leases.show(lease_id)
    return lease if lease["status"] == status else None


def start_is_over(client: Client, lease_id: str) -> bool:
    """All of it: an active lease may still be leaving the free pool."""
    work = client.operations.list(subject=lease_id)
    return [o["status"] for o in work if o["kind"] == "lease_start"] == ["done"]


@pytest.mark.slow("a lease starts and ends by the clock")
def test_a_lease_on_an_all_in_one_sqlite_site_starts_and_ends_on_time(tmp_path: Path) -> None:
    with all_in_one(tmp_path) as (program, client):
        assert len(client.hosts.list()) == 12
        world = client.sim.show()
        assert (len(world["hosts"]), len(world["servers"])) == (24, 40)
        assert len(client.leases.list()) >= 3

        start, end = soon(5), soon(3600)
        lease = client.leases.create(
            "true-path",
            start_date=wire_date(start),
            end_date=wire_date(end),
            reservations=[host_lease(2, 2)],
        )
        assert lease["status"] == "PENDING"
        assert statuses(lease)["start_lease"] == "UNDONE"
        (reservation,) = lease["reservations"]

        active = eventually(lambda: lease_is(client, lease["id"], "ACTIVE"))
        eventually(lambda: start_is_over(client, lease["id"]))
        assert active and statuses(active)["start_lease"] == "DONE"
        hosts = pool_hosts(client.sim.show(), reservation["id"])
        assert len(hosts) == 2
        assert not set(hosts) & set(pool_hosts(client.sim.show(), "freepool"))

        # only now: however slow this machine is, it was seen in between
        client.leases.update(lease["id"], end_date=wire_date(soon(5)))
        ended = eventually(lambda: lease_is(client, lease["id"], "TERMINATED"))
        assert ended and set(statuses(ended).values()) == {"DONE"}
        assert ended["reservations"][0]["status"] == "deleted"
        world = client.sim.show()
        assert not pool_hosts(world, reservation["id"])  # shut; it goes when all have heard of it
        assert set(hosts) <= set(pool_hosts(world, "freepool"))

        assert program.terminate() == 0


def test_state_survives_a_second_start_and_ctrl_c_stops_cleanly(tmp_path: Path) -> None:
    with all_in_one(tmp_path) as (program, client):
        before = {lease["id"] for lease in client.leases.list()}
        program.signal(signal.SIGINT)
        assert program.kept.wait(PATIENCE_S) == 0, program.tail()
    with all_in_one(tmp_path) as (program, client):
        assert {lease["id"] for lease in client.leases.list()} == before
        assert len(client.hosts.list()) == 12


@pytest.mark.slow("four programs start on PostgreSQL and RabbitMQ")
def test_two_apis_two_managers_and_kill_9_between_start_and_end(
    tmp_path: Path, postgresql: PostgreSQL, rabbitmq: RabbitMQ
) -> None:
    with separate(tmp_path, postgresql.new_database(), rabbitmq.url) as deployment:
        one, two = deployment.client(0), deployment.client(1)
        for number in range(4):
            one.hosts.create(f"host-{number:03d}", {})
        lease = one.leases.create(
            "killed-in-between",
            start_date="now",
            end_date=wire_date(soon(3600)),
            reservations=[host_lease(2, 2)],
        )
        eventually(lambda: lease_is(two, lease["id"], "ACTIVE"))
        eventually(lambda: start_is_over(two, lease["id"]))

        deployment.managers[0].kill()
        two.leases.update(lease["id"], end_date="now")
        # what the dead one was at, if anything, is first: its claim has to run out
        ended = eventually(lambda: lease_is(two, lease["id"], "TERMINATED"))
        assert ended and set(statuses(ended).values()) == {"DONE"}
        world = deployment.simulator.world()
        assert len(pool_hosts(world, "freepool")) == 4
        filled = {pool["name"] for pool in world["pools"] if pool["hosts"]}
        assert filled == {"freepool", "holdfast"}

        # and the one that is left goes on taking commands
        end_date = wire_date(soon(600))
        one.leases.create("after", end_date=end_date, reservations=[host_lease(1, 1)])
        # what is only asked goes through the broker too, and so does why not
        dry = two.leases.create(
            "dry", end_date=end_date, reservations=[host_lease(2, 2)], dry_run=True
        )
        assert len(dry["reservations"][0]["hosts"]) == 2
        assert two.availability.first(host_lease(4, 4), duration_s=60)["windows"]
        with pytest.raises(Conflict) as refused:
            one.leases.create("too-many", end_date=end_date, reservations=[host_lease(4, 4)])
        assert {"obstacles", "earliest"} <= refused.value.details.keys()
        assert [lease["name"] for lease in one.leases.list(sort="name")] == [
            "after",
            "killed-in-between",
        ]
        for program in [*deployment.apis, deployment.managers[1]]:
            assert program.terminate() == 0


@pytest.mark.slow("the claim of the manager that was killed has to run out")
def test_killed_while_starting_the_other_manager_completes_the_start(
    tmp_path: Path, postgresql: PostgreSQL, rabbitmq: RabbitMQ
) -> None:
    options = {"manager": {"claim_s": 8}, "cloud": {"call_timeout_s": 3}}
    with separate(
        tmp_path, postgresql.new_database(), rabbitmq.url, apis=1, options=options
    ) as deployment:
        client = deployment.client()
        for number in range(6):
            client.hosts.create(f"host-{number:03d}", {})
        deployment.simulator.change(latency_s=2.0)  # long enough to be caught in between
        lease = client.leases.create(
            "caught-in-the-act",
            start_date="now",
            end_date=wire_date(soon(600)),
            reservations=[host_lease(6, 6)],
        )
        eventually(lambda: lease_is(client, lease["id"], "STARTING"))
        (work,) = [
            o
            for o in client.operations.list()
            if o["kind"] == "lease_start" and o["subject"] == lease["id"]
        ]
        owner = next(m for m in deployment.managers if m.name.endswith(work["owner"][-1]))
        owner.kill()
        deployment.simulator.change(latency_s=0.0)
        eventually(lambda: lease_is(client, lease["id"], "ACTIVE"))
        name = lease["reservations"][0]["id"]
        created = deployment.simulator.effects(call="pools.create", subject=name)
        joined = [
            e
            for e in deployment.simulator.effects(call="pools.add_host")
            if e.subject.startswith(f"{name}/")
        ]
        assert len(created) == 1
        assert len(joined) == len({e.subject for e in joined}) == 6


def test_a_lease_starts_despite_kill_9_of_the_single_process(
    tmp_path: Path,
) -> None:
    # longer than anybody is patient here
    with all_in_one(tmp_path, {"manager": {"claim_s": 10 * PATIENCE_S}}) as (program, client):
        client.sim.change(latency_s=2.0)
        lease = client.leases.create(
            "cut-off", end_date=wire_date(soon(3600)), reservations=[host_lease(2, 2)]
        )
        eventually(lambda: lease_is(client, lease["id"], "STARTING"))
        program.kill()
    with all_in_one(tmp_path) as (_program, client):
        client.sim.change(latency_s=0.0)
        # at once: nobody else can hold the claims of this state folder
        eventually(lambda: lease_is(client, lease["id"], "ACTIVE"))
        name = lease["reservations"][0]["id"]
        assert len(pool_hosts(client.sim.show(), name)) == 2
