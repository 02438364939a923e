# SPDX-License-Identifier: Apache-2.0
"""Other projects' services in the same cloud, to be measured beside us. `up` starts none.

Each has a module with its recipes, which must not have the name of its package (lab/inside.py), an
environment and a database of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from lab import build, config, peer_blazar, peer_masakari
from lab.part import Part, Recipe
from lab.place import Place, digest
from lab.steps import Progress, Stamps, Step, do_all

if TYPE_CHECKING:
    from lab.cloud import Lab


class Peer(Protocol):
    """What the module of a peer has."""

    def url(self, place: Place) -> str:
        """Where its API answers."""
        ...

    def schema(self, place: Place) -> None:
        """Its tables, from nothing."""
        ...

    def user(self, lab: Lab) -> None:
        """Its user, and what else it wants of the cloud."""
        ...

    def write_config(self, place: Place, settings: config.Settings) -> None:
        """Its file; `settings` are options of its [DEFAULT]."""
        ...

    def recipes(self, place: Place) -> Iterator[Recipe]:
        """Its parts."""
        ...


PEERS: Mapping[str, Peer] = {"blazar": peer_blazar, "masakari": peer_masakari}


def recipes(place: Place) -> Iterator[Recipe]:
    """The parts of all of them."""
    for one in PEERS.values():
        yield from one.recipes(place)


def bring_up(lab: Lab, name: str, progress: Progress, settings: config.Settings) -> str:
    """Run it beside the running lab with these settings; where it answers."""
    place, one = lab.place, PEERS[name]
    pins = build.pins(f"-{name}")
    data = digest(pins, place.made_with)
    steps = [
        Step(f"{name} installed", lambda: build.peer(place, name), stamp=pins),
        Step(f"{name} schema", lambda: one.schema(place), [f"{name} installed"], stamp=data),
        Step(f"{name} user", lambda: one.user(lab), stamp=data),
    ]
    needs = [f"{name} schema", f"{name} user"]
    one.write_config(place, settings)
    for recipe in one.recipes(place):
        part = lab.part(recipe.name)
        steps.append(Step(recipe.name, lambda part=part: start(part), needs))
    do_all(steps, Stamps(place.stamps), progress)
    return one.url(place)


def start(part: Part) -> None:
    """Start it; again if it runs as another file said."""
    if part.running and not part.current:
        part.stop()
    part.start()
