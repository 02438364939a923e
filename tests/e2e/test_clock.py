# SPDX-License-Identifier: Apache-2.0
"""A clock that jumps and flutters, by libfaketime: no crash, no event twice, no event skipped."""

from __future__ import annotations

import contextlib
import glob
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.client.client import Client
from tests.e2e.deployment import all_in_one, host_lease, separate, wire_date
from tests.processes import Program, eventually
from tests.servers.postgresql import PostgreSQL
from tests.servers.rabbitmq import RabbitMQ

LIBRARY = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
HOUR, YEAR_S = 3600.0, 400 * 86_400.0
FAR = timedelta(hours=3)  # beyond the interval of every periodic job


class FalseClock:
    """The time of day of programs started from now on; monotonic time stays."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "offset"
        self.offset_s = 0.0
        self.set(0.0)
        monkeypatch.setenv("LD_PRELOAD", LIBRARY[0])
        monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(self._file))
        monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
        monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")

    def set(self, offset_s: float) -> None:
        self.offset_s = offset_s
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{offset_s:+.3f}\n")
        fresh.replace(self._file)

    @contextlib.contextmanager
    def flutter(self) -> Iterator[None]:
        """Step by a second ten times a second: half a second ahead, half a second behind."""
        stop = threading.Event()

        def run() -> None:
            ahead = 0.5
            while not stop.wait(0.1):
                self.set(ahead)
                ahead = -ahead

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.set(0.0)


@pytest.fixture
def false_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FalseClock:
    if not LIBRARY:
        pytest.skip("libfaketime is not installed: tools/debian-parts installs it")
    return FalseClock(tmp_path, monkeypatch)


def book(client: Client, name: str, now: datetime, start_s: float, lasts_s: float) -> str:
    start = now + timedelta(seconds=start_s)
    lease = client.leases.create(
        name,
        start_date=wire_date(start),
        end_date=wire_date(start + timedelta(seconds=lasts_s)),
        reservations=[host_lease(1, 1)],
    )
    return str(lease["id"])


def over(client: Client, *leases: str) -> Callable[[], bool]:
    return lambda: all(client.leases.show(one)["status"] == "TERMINATED" for one in leases)


def live(client: Client, clock: FalseClock, now: Callable[[], datetime]) -> None:
    """Run leases under every clock; each starts and ends once, and periodic jobs go on."""
    leases = [book(client, "far", now(), 600 * 86_400, 60), book(client, "soon", now(), 1800, 60)]
    seen: dict[str, dict[int, str]] = {}  # under a clock far ahead old lines are deleted
    for offset_s in (HOUR, -HOUR, YEAR_S, 0.0):
        clock.set(offset_s)
        leases.append(book(client, f"at {offset_s}", now(), 2, 2))
        eventually(over(client, leases[-1]))
        note(client, leases, seen)
    with clock.flutter():
        leases += [book(client, f"flutter {n}", now(), 2 + n / 2, 2) for n in range(3)]
        eventually(over(client, *leases[-3:]))
    eventually(lambda: not late(client))
    note(client, leases, seen)
    for lease_id in leases:
        counted = Counter(seen[lease_id].values())
        status = client.leases.show(lease_id)["status"]
        expected = (0, 0) if status == "PENDING" else (1, 1)
        assert (counted["ACTIVE"], counted["TERMINATED"]) == expected, counted
        assert status == "TERMINATED" or lease_id in leases[:2]
    assert client.leases.show(leases[0])["status"] == "PENDING"


def note(client: Client, leases: Sequence[str], seen: dict[str, dict[int, str]]) -> None:
    """Add the states that the audit log has of these leases, by the number of the line."""
    for lease_id in leases:
        for line in client.audit.list(subject=lease_id):
            state = str(line["sentence"]).rpartition(" is ")[2]
            seen.setdefault(lease_id, {})[int(line["id"])] = state


def late(client: Client) -> list[str]:
    """Periodic jobs whose next try lies further ahead than any of their intervals."""
    rows = client.operations.list(status="retrying")
    limit = datetime.now(UTC) + FAR
    times = {str(row["kind"]): datetime.fromisoformat(str(row["next_try_at"])) for row in rows}
    return [kind for kind, at in times.items() if at.replace(tzinfo=at.tzinfo or UTC) > limit]


def check(program: Program) -> None:
    assert program.poll() is None, program.tail()


@pytest.mark.slow("leases under five clocks")
def test_leases_of_holdfast_up_start_and_end_once_while_the_clock_jumps(
    tmp_path: Path, false_clock: FalseClock
) -> None:
    def now() -> datetime:
        return datetime.now(UTC) + timedelta(seconds=false_clock.offset_s)

    with all_in_one(tmp_path) as (program, client):
        live(client, false_clock, now)
        check(program)
    assert "Traceback" not in (tmp_path / "state" / "holdfast.log").read_text()


@pytest.mark.slow("leases under five clocks, by API and two managers")
def test_leases_of_separate_programs_start_and_end_once_while_their_clock_jumps(
    tmp_path: Path, postgresql: PostgreSQL, rabbitmq: RabbitMQ, false_clock: FalseClock
) -> None:
    """The clock of the database is right, and counts."""
    with separate(tmp_path, postgresql.new_database(), rabbitmq.url, apis=1, hosts=3) as made:
        client = made.client()
        for number in range(3):
            client.hosts.create(f"host-{number:03d}", {})
        live(client, false_clock, lambda: datetime.now(UTC))
        for program in (*made.apis, *made.managers):
            check(program)
            assert "Traceback" not in program.log.read_text(), program.tail()
