# SPDX-License-Identifier: Apache-2.0
"""Never two owners: 64 clients at 4 managers want 50 hosts, on each database.

The figures of a run are printed with `-s`; `make soak` runs the same for as long as one likes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S, Program
from tests.races.audit import Audit
from tests.races.rivals import CAPACITY

pytestmark = pytest.mark.race

ATTEMPTS = int(os.environ.get("RACES_ATTEMPTS", "1500"))
#: A net: on a quiet machine it takes a quarter of a minute.
SECONDS = float(os.environ.get("RACES_SECONDS", "600"))
#: Seconds between two lines of progress; 0: none.
PROGRESS = float(os.environ.get("RACES_PROGRESS", "0"))
#: Tells the wishes of a run; a failure prints it.
SEED = int(os.environ.get("RACES_SEED", "0")) or int.from_bytes(os.urandom(3), "big")


def race(folder: Path, url: str) -> dict[str, Any]:
    """Run it in a process of its own, for it forks."""
    words = [f"--attempts={ATTEMPTS}", f"--seconds={SECONDS}", f"--seed={SEED}"]
    words.append(f"--progress={PROGRESS}")
    command = [sys.executable, "-m", "tests.races.rivals", folder, url, *words]
    root = Path(__file__).parents[2]
    env = {"PYTHONPATH": str(root)}
    with Program(command, folder, env=env, name="race") as program:
        _wait(program)
        report = folder / "report.json"
        assert report.exists(), f"RACES_SEED={SEED}: the race broke off\n{program.tail()}"
    found: dict[str, Any] = json.loads(report.read_text())
    print(f"\nRACES_SEED={SEED} {url.partition(':')[0]}: {found['figures']}")
    return found


def _wait(program: Program) -> None:
    """Until it has ended; where progress is wanted, what it says is passed on."""
    deadline, said = time.monotonic() + SECONDS + 10 * PATIENCE_S, 0
    while program.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        log = program.log.read_text()
        if PROGRESS:
            print(log[said:], end="", flush=True)
        said = len(log)


@pytest.mark.slow("64 clients make 1500 attempts at four managers, each a process, and all meet")
@pytest.mark.timeout(SECONDS + 12 * PATIENCE_S)
def test_64_clients_at_4_managers_never_get_the_same_host_twice(
    database_url: str, tmp_path: Path
) -> None:
    found = race(tmp_path, database_url)
    context = f"RACES_SEED={SEED}\n{found['figures']}"
    assert found["answers"] == [], context
    assert found["findings"] == [], context
    # it was a race: all of it happened, some won, many lost, and nobody was sent away for nothing
    assert found["attempts"] >= ATTEMPTS or PROGRESS, context
    assert all(found["yes"][verb] for verb in ("create", "update", "delete", "repair")), context
    assert found["beaten"] <= found["attempts"] / 100, context
    planted_overlap_is_found(database_url)


def planted_overlap_is_found(url: str) -> None:
    """The audit that found nothing would have found something."""
    audit = Audit(url, CAPACITY)
    assert audit.findings() == []
    audit.drop_exclusions()
    columns = "reservation_id, host_id, held_from, held_until, slots, takes, thing"
    for what in ("slots IS NULL AND thing IS NULL", "slots IS NOT NULL", "thing IS NOT NULL"):
        where = f"WHERE id = (SELECT max(id) FROM allocations WHERE {what})"
        if not audit.count(f"SELECT count(*) FROM allocations WHERE {what}"):
            continue
        again = f"SELECT {columns} FROM (SELECT * FROM allocations {where}) AS one"
        audit.run(f"INSERT INTO allocations ({columns}) {again}")
        assert audit.findings(), f"a second owner was not found: {what}"
        audit.run(
            "DELETE FROM allocations WHERE id = (SELECT max(id) FROM (SELECT id FROM"
            " allocations) AS all_of_them)"
        )
        assert audit.findings() == []
