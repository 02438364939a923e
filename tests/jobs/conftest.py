# SPDX-License-Identifier: Apache-2.0
"""A workshop: the real table of work on SQLite, toy kinds of work, time by hand."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.db.operations import OperationStore, apply_work
from holdfast.jobs.job import Kind, Run, Step
from holdfast.jobs.loop import Ended, Loop, Runner
from holdfast.model.operation import Operation
from holdfast.ports.ledger import Work
from tests.leases.house import Inline, copy, make_template, open_store
from tests.simclock import SimClock

TTL = timedelta(seconds=30)


@dataclass
class Toy:
    """A kind of work whose steps are given functions, and which remembers its failures."""

    name: str
    actions: dict[str, Callable[[Run], str]]
    early: frozenset[str] = frozenset()
    until: datetime | None = None
    failures: list[str] = field(default_factory=list)
    on_failed: Callable[[], None] = lambda: None
    retry_forever: bool = False

    def steps(self) -> Sequence[Step]:
        return [Step(n, run, pre_due=n in self.early) for n, run in self.actions.items()]

    def give_up_at(self, operation: Operation) -> datetime | None:
        return self.until

    def failed(self, run: Run, why: str) -> None:
        self.on_failed()
        self.failures.append(why)


class Shop:
    """Operations, and as many runners on them as a test wants."""

    def __init__(self, path: Path) -> None:
        self.clock = SimClock()
        self.store = open_store(path, self.clock)
        self.operations: OperationStore = self.store.operations
        self.settings = SimpleNamespace(
            retry_first_s=0.5, retry_most_s=15.0, claim_ahead=0, poll_interval_s=1000.0
        )
        self.ended: list[Ended] = []
        self._ids = count(1)

    def add(self, kind: str = "toy", *, subject: str = "", after_s: float = 0, **more: Any) -> str:
        """A row of work due so many seconds from now; its key."""
        number, due = next(self._ids), self.clock.now() + timedelta(seconds=after_s)
        operation = Operation(
            id=f"op-{number}",
            kind=kind,
            subject=subject or f"subject-{number}",
            key=f"{kind}/{number}",
            due_at=due,
            **{"next_try_at": due, **more},
        )
        self.apply(operation.subject, Work(add=(operation,)))
        return operation.key

    def apply(self, subject: str, work: Work) -> None:
        with self.store.database.write() as conn:
            apply_work(conn, subject, work, self.clock.now())

    def runner(self, *kinds: Kind, operations: Any = None, **more: Any) -> Runner:
        settings: dict[str, Any] = {"owner": "m1", "pool": Inline(), **more}
        return Runner(
            operations or self.operations,
            {kind.name: kind for kind in kinds},
            self.clock,
            patience=self.settings,
            on_ended=self.ended.append,
            claim_s=TTL.total_seconds(),
            **settings,
        )

    def loop(self, runner: Runner, operations: Any = None) -> Loop:
        return Loop(operations or self.operations, runner, self.clock, self.settings)

    def turn(self, *kinds: Kind, **more: Any) -> float:
        """One look of a fresh manager."""
        return self.loop(self.runner(*kinds, **more)).cycle()

    def get(self, key: str) -> Operation:
        return self.operations.by_key(key)


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("work") / "empty")


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where shops are set up, one after the other."""
    return tmp_path_factory.mktemp("yard") / "shop"


@pytest.fixture
def shop(empty: Path, yard: Path) -> Iterator[Shop]:
    made = Shop(copy(empty, yard))
    yield made
    made.store.close()
