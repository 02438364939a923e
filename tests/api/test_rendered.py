# SPDX-License-Identifier: Apache-2.0
"""What is kept of leases between answers: never old, and worth it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from falcon import testing

from holdfast.app import service
from holdfast.db.tables import operations
from holdfast.model.lease import BEFORE_END
from holdfast.runtime.clock import SystemClock
from tests.api.conftest import Build
from tests.api.house import LEASES, House


class Later(SystemClock):
    """The machine's clock, some days ahead."""

    ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead


def test_what_one_api_writes_every_other_shows_at_once(house: House) -> None:
    core = service.Core(house.conf)
    other = service.application(core, service.api_services(core, house.manager.commands))
    both = [testing.TestClient(app, {"Host": "127.0.0.1:8780"}) for app in (house.app, other)]

    def call(api: int, method: str, path: str, **more: Any) -> testing.Result:
        return both[api].simulate_request(method, path, remote_addr="127.0.0.1", **more)

    path = f"{LEASES}/{house.lease()['id']}"
    for number in range(10):
        changed = call(number % 2, "PUT", path, json={"name": f"name-{number}"}).json["lease"]
        assert changed["name"] == f"name-{number}"
        for api in range(2):
            assert call(api, "GET", path).json == {"lease": changed}
            assert call(api, "GET", LEASES).json == {"leases": [changed]}
    assert call(1, "DELETE", path).status_code == 204
    for api in range(2):
        assert call(api, "GET", path).status_code == 404
        assert call(api, "GET", LEASES).json == {"leases": []}
    core.close()


def test_an_event_prepared_ahead_of_its_time_happens_when_the_time_comes(build: Build) -> None:
    clock = Later()
    house = build(clock=clock)
    lease = house.lease()
    far = datetime.now(UTC) + timedelta(days=300)
    with house.core.store.database.write() as conn:
        conn.execute(
            sa.update(operations)
            .where(operations.c.subject == lease["id"], operations.c.kind == BEFORE_END)
            .values(status="running", owner="x", claim_until=far, next_try_at=far)
        )

    def shown() -> str:
        (found,) = house.call("GET", LEASES).json["leases"]
        (event,) = (e for e in found["events"] if e["event_type"] == "before_end_lease")
        return str(event["status"])

    assert [shown(), shown()] == ["UNDONE", "UNDONE"]
    clock.ahead = timedelta(days=100)
    assert shown() == "IN_PROGRESS"


def test_a_list_of_a_hundred_costs_a_few_times_one_lease(house: House) -> None:
    """Measured: twice; to read and write every lease each time, eleven times."""
    for number in range(100):
        house.lease(name=f"listed-{number}", reservations=[])
    leases = house.call("GET", LEASES).json["leases"]
    assert len(leases) == 100

    def cost(path: str) -> float:
        """Processor time of this thread alone: what else the machine does is no matter."""
        best = float("inf")
        for _ in range(10):
            began = time.thread_time()
            for _ in range(5):
                assert house.call("GET", path).status_code == 200
            best = min(best, time.thread_time() - began)
        return best

    one = cost(f"{LEASES}/{leases[0]['id']}")
    assert cost(LEASES) < 6 * one
