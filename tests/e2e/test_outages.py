# SPDX-License-Identifier: Apache-2.0
"""Bad luck delays and never loses: the broker or the database goes away and comes back."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from holdfast.client.client import Client
from holdfast.client.errors import Conflict, Unavailable
from tests.e2e.deployment import Deployment, host_lease, separate, soon, wire_date, write_config
from tests.processes import PATIENCE_S, Program, eventually, free_port, script
from tests.servers.postgresql import PostgreSQL
from tests.servers.rabbitmq import RabbitMQ

RPC_TIMEOUT = 4


def create(client: Client, name: str, **dates: str) -> dict[str, Any]:
    dates.setdefault("end_date", wire_date(soon(3600)))
    return client.leases.create(name, reservations=[host_lease(1, 1)], **dates)


def names(client: Client) -> set[str]:
    return {lease["name"] for lease in client.leases.list()}


def enrol(client: Client, host: str) -> None:
    """However short the patience of the API is on a busy machine: it may have happened."""

    def so() -> bool:
        with contextlib.suppress(Unavailable, Conflict):
            client.hosts.create(host, {})
        return host in [one["hypervisor_hostname"] for one in client.hosts.list()]

    eventually(so)


def works_again(deployment: Deployment, name: str, **dates: str) -> bool:
    """A command goes through, whatever happened before."""
    client = Client(deployment.urls[0], retries=0, timeout_s=PATIENCE_S)
    try:
        create(client, name, **dates)
    except Unavailable:
        return False
    return True


@pytest.mark.slow("a broker of its own starts, stops and starts again beside two programs")
def test_a_broker_outage_returns_503_for_commands_only(
    tmp_path: Path, postgresql: PostgreSQL
) -> None:
    broker = RabbitMQ()
    broker.start()
    try:
        _broker_away(tmp_path, postgresql, broker)
    finally:
        broker.close()


def _broker_away(folder: Path, postgresql: PostgreSQL, broker: RabbitMQ) -> None:
    options = {"DEFAULT": {"rpc_timeout": RPC_TIMEOUT}}
    url = postgresql.new_database()
    with separate(folder, url, broker.url, apis=1, managers=1, options=options) as deployment:
        client = Client(deployment.urls[0], retries=0, timeout_s=PATIENCE_S)
        for number in range(6):
            enrol(client, f"host-{number:03d}")
        eventually(lambda: works_again(deployment, "ahead", start_date=wire_date(soon(10))))
        (ahead, *_) = client.leases.list()
        broker.stop()

        with pytest.raises(Unavailable) as refused:  # and no more patience than is set
            create(client, "half-made")
        assert "manager" in refused.value.message

        # reads and reports go on, and so does the work that was booked before
        assert names(client) == {"ahead"}
        report = {
            "observer": "k1",
            "subject": "host-000",
            "kind": "host",
            "state": "down",
            "since": "2026-11-15T00:00:00Z",
        }
        answer = requests.post(
            f"{deployment.urls[0]}/holdfast/v1/observations", json=report, timeout=PATIENCE_S
        )
        assert answer.status_code == 202
        assert requests.get(f"{deployment.urls[0]}/readyz", timeout=PATIENCE_S).status_code == 503
        eventually(lambda: client.leases.show(ahead["id"])["status"] == "ACTIVE")

        broker.start()
        eventually(lambda: works_again(deployment, "afterwards"))
        # by the same way: what was on it before has done its harm by then
        eventually(lambda: works_again(deployment, "at last"))
        assert "half-made" not in names(client)


@pytest.mark.slow("a lease has to begin while the database is away")
def test_a_database_outage_returns_503_and_work_continues_afterwards(
    tmp_path: Path, rabbitmq: RabbitMQ
) -> None:
    database = PostgreSQL()
    database.start()
    try:
        _database_away(tmp_path, database, rabbitmq)
    finally:
        database.close()


def _database_away(folder: Path, database: PostgreSQL, rabbitmq: RabbitMQ) -> None:
    url = database.new_database()
    with separate(folder, url, rabbitmq.url, apis=1, managers=1) as deployment:
        client = Client(deployment.urls[0], retries=0, timeout_s=PATIENCE_S)
        client.hosts.create("host-000", {})
        client.hosts.create("host-001", {})
        start, over = soon(20), soon(22)
        late = {"start_date": wire_date(start), "end_date": wire_date(soon(3600))}
        lease = create(client, "late", **late)
        missed = create(client, "overslept", **late | {"end_date": wire_date(over)})
        database.stop()
        assert datetime.now(UTC) < start, "the machine was too slow for this: it has begun"
        for path in ("/reservation/v1/leases", "/holdfast/v1/operations"):
            answer = requests.get(deployment.urls[0] + path, timeout=PATIENCE_S)
            assert answer.status_code == 503, answer.text
        with pytest.raises(Unavailable):
            create(client, "not-now")
        # the start passes, of one also the end, and nobody can write it down
        eventually(lambda: datetime.now(UTC) > over)

        database.start()
        eventually(lambda: _status(client, lease["id"]) == "ACTIVE")
        eventually(lambda: _status(client, missed["id"]) == "TERMINATED")
        client.leases.update(lease["id"], end_date="now")
        eventually(lambda: _status(client, lease["id"]) == "TERMINATED")
        for one in (lease, missed):
            events = client.leases.show(one["id"])["events"]
            assert {event["status"] for event in events} == {"DONE"}
        started = deployment.simulator.effects(call="pools.create")
        left = deployment.simulator.effects(call="pools.remove_host")
        mine = lease["reservations"][0]["id"]
        assert [e.subject for e in started].count(mine) == 1
        assert [e.subject.partition("/")[0] for e in left].count(mine) == 1
        # no host ever joined the one whose time was over before it could start
        joined = deployment.simulator.effects(call="pools.add_host")
        gone = missed["reservations"][0]["id"]
        assert not [e for e in joined if e.subject.startswith(gone)]
        assert names(client) == {"late", "overslept"}
        assert works_again(deployment, "afterwards")


def _status(client: Client, lease_id: str) -> str:
    try:
        return str(client.leases.show(lease_id)["status"])
    except Unavailable:
        return "unknown"


def test_a_manager_starts_lives_and_stops_without_a_broker(
    tmp_path: Path, postgresql: PostgreSQL
) -> None:
    nowhere = f"rabbit://guest:guest@127.0.0.1:{free_port()}//"
    url, port = postgresql.new_database(), free_port()
    options = {
        "DEFAULT": {"transport_url": nowhere, "rpc_timeout": 2},
        "database": {"connection": url},
        "sim": {"database": tmp_path / "sim.db"},
        "manager": {"health_port": port},
    }
    config = write_config(tmp_path / "x.conf", options)
    sync = Program([script("holdfast"), "db", "sync", "--config", config], tmp_path, name="sync")
    with sync:
        assert sync.kept.wait(PATIENCE_S) == 0, sync.tail()
    command = [script("holdfast-manager"), "--config-file", config]
    with Program(command, tmp_path, name="manager") as manager:
        base = f"http://127.0.0.1:{port}"
        manager.wait_http(f"{base}/livez")
        ready = requests.get(f"{base}/readyz", timeout=PATIENCE_S)
        assert (ready.status_code, ready.json()["database"]) == (503, "ok")
        assert manager.terminate() == 0
