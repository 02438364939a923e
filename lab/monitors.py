# SPDX-License-Identifier: Apache-2.0
"""Masakari's monitors: programs of another project, installed here for whoever runs them against
us."""

from __future__ import annotations

from pathlib import Path

from lab import build
from lab.place import Place
from lab.steps import Progress, Stamps, Step, do_all

NAME = "masakari-monitors"


def install(place: Place) -> Path:
    """Into an environment of their own, once; the folder of the programs. StepFailed if not."""
    place.make()
    done = f"{NAME} installed"
    steps = [
        Step("installer", lambda: build.installer(place), stamp=build.pins()),
        Step(done, lambda: build.peer(place, NAME), ["installer"], build.pins(f"-{NAME}")),
    ]
    do_all(steps, Stamps(place.stamps), Progress(place.folder / "peer.log"))
    return place.peer(NAME) / "bin"
