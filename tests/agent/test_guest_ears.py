# SPDX-License-Identifier: Apache-2.0
"""What Nova said, on a real broker, to managers that share it and die: written once, never lost."""

from __future__ import annotations

import contextlib
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.drivers.test_notices import World
from tests.e2e.deployment import write_config
from tests.hoststatus.recorded import CRASHED, FAILED, OFF, envelope, message
from tests.hoststatus.site import empty_database
from tests.processes import Program, eventually
from tests.servers.rabbitmq import RabbitMQ

from holdfast.db import Store
from holdfast.runtime.clock import SystemClock

ROOT = Path(__file__).parents[2]


class Office:
    def __init__(self, world: World, folder: Path, stack: contextlib.ExitStack) -> None:
        self.world, self.folder, self._stack = world, folder, stack
        url = f"sqlite:///{folder}/holdfast.db"
        (folder / "holdfast.db").write_bytes(empty_database())
        self.store = stack.enter_context(contextlib.closing(Store(url, SystemClock())))
        self.file = write_config(
            folder / "holdfast.conf",
            {
                "database": {"connection": url},
                "cloud": {"driver": "nova"},
                "monitors": {"enabled": "compute, guests", "poll": False, "push_timeout_s": 60},
                "notifications": {
                    "transport_url": world.server.url,
                    "exchange": world.exchange,
                    "topics": world.topic,
                    "pool": world.pool,
                },
            },
        )

    def ear(self, how: str = "") -> Program:
        """A manager that listens, and dies as it is told."""
        command = [sys.executable, "-m", "tests.hoststatus.hearing", str(self.file), how]
        program = Program(command, self.folder, name=f"ear-{how}-{uuid.uuid4().hex[:4]}")
        program.env["PYTHONPATH"] = str(ROOT)
        self._stack.enter_context(program)
        return program

    def readers(self) -> int:
        with self.world.channel() as channel:
            found = channel.queue_declare(self.world.pool, durable=True, passive=True)
        return int(found.consumer_count)

    def rows(self) -> list[str]:
        return [row["state"] for row in self.store.observations.list_all(limit=1000)]

    def work(self) -> int:
        return sum(
            one.subject.startswith("observation:") for one in self.store.operations.list_all()
        )


@pytest.fixture
def office(rabbitmq: RabbitMQ, tmp_path: Path) -> Iterator[Office]:
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(contextlib.closing(World(rabbitmq.start(), tmp_path)))
        world.declare_exchange()
        with world.channel() as channel:  # as the first manager made it, with these options
            arguments = {"x-max-length": 100_000, "x-expires": 7 * 24 * 3600 * 1000}
            channel.queue_declare(world.pool, durable=True, auto_delete=False, arguments=arguments)
        yield Office(world, tmp_path, stack)


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_manager_killed_between_hearing_and_storing_or_acknowledging_loses_nothing(
    office: Office, how: str
) -> None:
    dying = office.ear(how)
    dying.wait_until(lambda: office.readers() == 1)
    office.world.say_raw(envelope(message(FAILED)))
    eventually(lambda: dying.poll() == -signal.SIGKILL)
    assert office.rows() == ([] if how == "before" else ["failed"])
    eventually(lambda: office.world.waiting() == 1)
    next_one = office.ear()
    office.world.say_raw(envelope(message(OFF)))  # heard when all before it is done
    next_one.wait_until(lambda: sorted(office.rows()) == ["failed", "noted"])
    next_one.terminate()
    assert office.world.waiting() == 0  # all of it was acknowledged
    assert (sorted(office.rows()), office.work()) == (["failed", "noted"], 1)


def test_two_managers_share_the_reports_and_each_is_written_once(office: Office) -> None:
    ears = [office.ear(), office.ear()]
    ears[0].wait_until(lambda: office.readers() == 2)
    owner = {"action_initiator_user": "u-1"}
    for number in range(20):
        for what, more in ((FAILED, {}), (CRASHED, {}), (OFF, {}), (OFF, owner)):
            name = f"m-{number}-{what}-{bool(more)}"
            said = envelope(message(what, message_id=name, uuid=str(uuid.uuid4()), **more))
            for _ in range(2):  # as a broker does whose answer was lost
                office.world.say_raw(said)
    ears[0].wait_until(lambda: len(office.rows()) == 60)
    ears[0].wait_until(lambda: office.world.waiting() == 0)
    for ear in ears:
        ear.terminate()
    rows = office.rows()
    assert (rows.count("failed"), rows.count("noted"), len(rows)) == (40, 20, 60)
    assert office.work() == 40
