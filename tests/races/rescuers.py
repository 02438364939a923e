# SPDX-License-Identifier: Apache-2.0
"""Managers that recover hosts, made to be killed.

    python -m tests.races.rescuers FOLDER URL SEED

Three live at a time; one after the other is killed (`kill -9`) in the middle of whatever it does,
and another takes its place, until the file `enough` is there. The last three go on working until it
is gone again.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import conf as configuration
from holdfast.app import service
from tests.processes import PATIENCE_S

MANAGERS = 3


def main(folder: Path, url: str, seed: int) -> None:
    """Bear and kill. All is imported once: a manager is a fork."""
    dice = random.Random(seed)
    context = multiprocessing.get_context("fork")
    born = 0

    def bear() -> tuple[Any, Any]:
        nonlocal born
        born += 1
        ready = context.Event()
        child = context.Process(target=live, args=(folder, url, f"{seed}-{born}", ready))
        child.daemon = True
        child.start()
        return child, ready

    living = [bear() for _ in range(MANAGERS)]
    for _child, ready in living:
        assert ready.wait(2 * PATIENCE_S), "a manager did not start"
    (folder / "ready").touch()
    while not (folder / "enough").exists():
        child, ready = living.pop(dice.randrange(MANAGERS))
        assert ready.wait(2 * PATIENCE_S), "a manager did not start"
        time.sleep(dice.uniform(0.1, 1.0))
        child.kill()
        child.join()
        print("killed", flush=True)
        living.append(bear())
    while (folder / "enough").exists():
        time.sleep(0.1)
    for child, _ready in living:
        child.kill()
        child.join()


def live(folder: Path, url: str, name: str, ready: Any) -> None:
    """One manager, until it is killed."""
    file = folder / "rescuers.conf"
    file.touch()
    conf = configuration.load([], [str(file)])
    for group, option, value in (
        ("database", "connection", url),
        ("sim", "database", str(folder / "sim.db")),
        ("manager", "name", name),
        # No call begins unless the claim outlasts its limit: a thread that gets no processor for
        # less than these 4 s makes its call while the claim is still its own.
        ("manager", "claim_s", 6.0),
        ("manager", "workers", 16),
        ("manager", "retry_most_s", 1.0),
        ("cloud", "call_timeout_s", 4.0),
        ("fencing", "call_timeout_s", 4.0),
        ("recovery", "bring_back_after_s", 1.0),
        ("monitors", "poll", False),
        ("monitors", "push", False),
    ):
        conf.set_override(option, value, group)
    core = service.Core(conf)
    service.ManagerPart(core, service.connect_cloud(conf, core.clock)).start()
    ready.set()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
