# SPDX-License-Identifier: Apache-2.0
"""A day of a few guests, made up: walks along the edge, spikes, gaps, counters that begin anew."""

from __future__ import annotations

import random
from collections.abc import Iterator

STEP_S = 60
STEPS = 24 * 60
GUESTS = ("calm", "edge", "spiky", "gappy", "late", "wild")

#: Of each guest its numbers, step by step; None where nothing was read.
Day = dict[str, dict[str, list[float | None]]]


def day(seed: int, steps: int = STEPS) -> Day:
    made: Day = {}
    for guest in GUESTS:
        chance = random.Random(f"{seed} {guest}")
        there = list(_there(guest, chance, steps))
        series = {
            "cpu": _cpu(guest, chance),
            "steal": _walk(chance, 8.0, 1.5, 0.0, 30.0),
            "sent": _counter(chance),
            "used": _disk(chance),
        }
        made[guest] = {
            name: [round(next(values), 3) if here else _skip(values) for here in there]
            for name, values in series.items()
        }
        made[guest]["even"] = [round(next(cpu), 3) for cpu in [_cpu(guest, chance)] * steps]
    return made


def _skip(values: Iterator[float]) -> None:
    next(values)


def _there(guest: str, chance: random.Random, steps: int) -> Iterator[bool]:
    """Whether anything is read: in gaps of a minute to half an hour nothing is."""
    left, here = (90, False) if guest == "late" else (0, True)
    for _ in range(steps):
        if left == 0:
            here = True
            if guest in ("gappy", "wild") and chance.random() < 0.04:
                left, here = chance.choice((1, 1, 2, 5, 30)), False
        else:
            left -= 1
        yield here if left == 0 else False


def _cpu(guest: str, chance: random.Random) -> Iterator[float]:
    walk = _walk(chance, 88.0, 4.0, 40.0, 100.0)
    while True:
        value = next(walk)
        if guest == "calm":
            value = min(value, 89.0)
        if guest in ("edge", "wild"):  # exactly on it, and just beside
            value = chance.choice((69.999, 70.0, 70.001, 89.999, 90.0, 90.001, value))
        if guest == "spiky" and chance.random() < 0.1:
            value = 100.0
        yield value


def _walk(
    chance: random.Random, begin: float, step: float, low: float, high: float
) -> Iterator[float]:
    value = begin
    while True:
        value = min(high, max(low, value + chance.gauss(0, step)))
        yield value


def _counter(chance: random.Random) -> Iterator[float]:
    total, pace = chance.choice((0.0, 1e6)), _walk(chance, 100.0, 15.0, 0.0, 300.0)
    while True:
        total = 0.0 if chance.random() < 0.01 else total + next(pace) * STEP_S
        yield total


def _disk(chance: random.Random) -> Iterator[float]:
    used, pace = 300.0, _walk(chance, 1.0, 0.5, -3.0, 5.0)
    while True:
        used = max(100.0, used + next(pace))
        if used > 900:
            used = 300.0  # somebody tidied up
        yield used
