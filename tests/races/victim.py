# SPDX-License-Identifier: Apache-2.0
"""Managers with work at hand, made to be killed.

    python -m tests.races.victim FOLDER URL KILLS SEED

Two live at a time; one is killed (`kill -9`) in the middle of whatever it does, and another takes
its place, so many times. Each books leases of a few seconds of every kind, prolongs and deletes
some, and does what is due, its own and what others left. It says what it did, a word each. How long
one lives is counted in what it did, so that a slow machine kills no manager before it could work.
The last two ask for nothing more once the file `enough` is there, which is so when there is a file
`resting`, and go on working until `enough` is gone again.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast import conf as configuration
from holdfast.app import service
from holdfast.model.errors import Conflict, HoldfastError, InvalidInput, NotFound, Unavailable
from holdfast.model.lease import LeaseChange, NewLease, NewReservation
from holdfast.ports.manager import Caller
from tests.processes import PATIENCE_S, eventually

HOSTS = tuple(f"h{number}" for number in range(6))
CAPACITY = {"VCPU": 32, "MEMORY_MB": 131072, "DISK_GB": 2000}
ADMIN = Caller("root", "admin", ("admin",), is_admin=True)
ANN = Caller("ann", "alpha", ("member",))
RESTS = -1
NETWORK = "0e7a0000-0000-4000-8000-000000000001"
SPECS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("physical:host", {"min": 1, "max": 2}),
    (
        "virtual:instance",
        {"vcpus": 4, "memory_mb": 4096, "disk_gb": 40, "amount": 2, "affinity": False},
    ),
    ("virtual:floatingip", {"network_id": NETWORK, "amount": 1}),
)


def main(folder: Path, url: str, kills: int, seed: int) -> None:
    """Bear and kill. All is imported once: a victim is a fork."""
    dice = random.Random(seed)
    context = multiprocessing.get_context("fork")

    def bear(number: int) -> tuple[Any, Any]:
        acts = context.Value("i", 0)
        words = (folder, url, f"{seed}/{number}", acts)
        child = context.Process(target=live, args=words, daemon=True)
        child.start()
        return child, acts

    living = [bear(0), bear(1)]
    for number in range(2, kills + 2):
        child, acts = living.pop(0)
        wanted = dice.randint(1, 8)
        eventually(lambda acts=acts, wanted=wanted: acts.value >= wanted, 2 * PATIENCE_S, 0.01)
        time.sleep(dice.uniform(0, 0.1))  # in the middle of whatever it does
        child.kill()
        child.join()
        print("killed", flush=True)
        living.append(bear(number))
    (folder / "enough").touch()
    eventually(lambda: all(acts.value == RESTS for _child, acts in living), 2 * PATIENCE_S)
    (folder / "resting").touch()
    while (folder / "enough").exists():
        time.sleep(0.1)
    for child, _acts in living:
        child.kill()
        child.join()


def live(folder: Path, url: str, seed: str, acts: Any) -> None:
    """One manager, until it is killed; `acts` counts what it did, and is RESTS afterwards."""
    dice = random.Random(seed)
    file = folder / "victim.conf"
    file.touch()
    conf = configuration.load([], [str(file)])
    for group, name, value in (
        ("database", "connection", url),
        ("sim", "database", str(folder / "sim.db")),
        ("manager", "name", f"victim-{seed}"),
        # No call begins unless the claim outlasts its limit: a thread that gets no processor for
        # less than these 4 s makes its call while the claim is still its own.
        ("manager", "claim_s", 6.0),
        ("manager", "workers", 16),
        ("manager", "retry_most_s", 1.0),
        ("cloud", "call_timeout_s", 4.0),
        ("reservation", "prepare_s", 1.0),
    ):
        conf.set_override(name, value, group)
    core = service.Core(conf)
    manager = service.ManagerPart(core, service.connect_cloud(conf, core.clock))
    manager.start()
    if seed.endswith("/0"):
        enrol(manager)
    mine: list[str] = []
    while not (folder / "enough").exists():
        act(manager, dice, mine)
        acts.value += 1
        time.sleep(0.02)
    acts.value = RESTS
    while True:
        time.sleep(1)


def enrol(manager: service.ManagerPart) -> None:
    for name in HOSTS:
        tried(lambda name=name: manager.commands.enrol_host(ADMIN, name, {}))
    for last in range(10, 16):
        tried(
            lambda last=last: manager.commands.enrol_floatingip(ADMIN, NETWORK, f"192.0.2.{last}")
        )


def act(manager: service.ManagerPart, dice: random.Random, mine: list[str]) -> None:
    """Book, and with luck prolong or delete what was booked before."""
    start = datetime.now(UTC) + timedelta(seconds=dice.uniform(0.2, 2))
    end = start + timedelta(seconds=dice.uniform(1, 4))
    kind, spec = dice.choice(SPECS)
    lease_id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
    wanted = NewLease(lease_id, "victim", start, end, None, (NewReservation(kind, spec),))
    if tried(lambda: manager.commands.create_lease(ANN, wanted)):
        mine.append(lease_id)
        print("booked", flush=True)
    if mine and dice.random() < 0.3:
        later = LeaseChange(end=datetime.now(UTC) + timedelta(seconds=dice.uniform(1, 5)))
        one = dice.choice(mine)
        if tried(lambda: manager.commands.update_lease(ANN, one, later)):
            print("prolonged", flush=True)
    if mine and dice.random() < 0.2:
        one = mine.pop(dice.randrange(len(mine)))
        if tried(lambda: manager.commands.delete_lease(ANN, one)):
            print("deleted", flush=True)


def tried(action: Any) -> bool:
    """Whether it was accepted; a refusal is fine, anything else is said."""
    try:
        action()
    except (Conflict, NotFound, InvalidInput, Unavailable):
        return False
    except HoldfastError as error:
        print(f"defect {type(error).__name__}: {error}", flush=True)
        return False
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
