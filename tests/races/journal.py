# SPDX-License-Identifier: Apache-2.0
"""What the clients of a race were told, and what therefore must be so in the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Window = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    """One attempt of one client and how it was answered.

    `window` is the lease's after a create or an update that went well. Answers: `yes`; `no`,
    refused for a reason that a client can expect; `beaten`, too many others at the same time;
    `unsure`, it may have happened; `defect`, what must not be said.
    """

    client: int
    verb: str
    lease_id: str
    answer: str
    said: str = ""
    window: Window | None = None
    took_s: float = 0.0


@dataclass
class Told:
    """What everybody was told, by lease."""

    accepted: dict[str, list[Window]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)


def write(path: Path, entries: Iterable[Entry]) -> None:
    with path.open("w") as file:
        for entry in entries:
            file.write(json.dumps(vars(entry)) + "\n")


def read(paths: Iterable[Path]) -> list[Entry]:
    found = []
    for path in paths:
        for line in path.read_text().splitlines():
            values: dict[str, Any] = json.loads(line)
            window = values.pop("window")
            found.append(Entry(**values, window=tuple(window) if window else None))
    return found


def told(entries: Iterable[Entry]) -> Told:
    """Entries of one client are in their order, those of several in none: a lease that only its
    owner changed has the last window he was told, another one of those that anybody was told."""
    made = Told()
    by_lease: dict[str, list[Entry]] = {}
    for entry in entries:
        by_lease.setdefault(entry.lease_id, []).append(entry)
    for lease_id, those in by_lease.items():
        if any(e.answer in ("unsure", "defect") for e in those):
            made.unsure.add(lease_id)
        elif any(e.verb == "create" and e.answer != "yes" for e in those):
            made.refused.add(lease_id)
        elif any(e.verb == "delete" and e.answer == "yes" for e in those):
            made.deleted.add(lease_id)
        else:
            windows = [e.window for e in those if e.answer == "yes" and e.window]
            alone = len({e.client for e in those if e.answer == "yes" and e.window}) == 1
            if windows:
                made.accepted[lease_id] = windows[-1:] if alone else windows
    return made


def figures(entries: Iterable[Entry], seconds: float) -> str:
    """How many, how fast, how often yes, in a few lines."""
    everything = list(entries)
    lines = [
        f"{len(everything)} attempts in {seconds:.1f} s: {len(everything) / seconds:.0f} a second"
    ]
    for verb in sorted({entry.verb for entry in everything}):
        those = [entry for entry in everything if entry.verb == verb]
        answers = Counter(entry.answer for entry in those)
        took = sorted(entry.took_s for entry in those)
        lines.append(
            f"  {verb}: {len(those)}, "
            + ", ".join(f"{name} {n}" for name, n in answers.most_common())
            + f"; p50 {took[len(took) // 2] * 1000:.0f} ms,"
            + f" p99 {took[int(len(took) * 0.99)] * 1000:.0f} ms"
        )
    return "\n".join(lines)
