# SPDX-License-Identifier: Apache-2.0
"""What is remembered of an alarm centrally, beside what its agent says of it.

    known = recall(row)
    known.told            # "": nobody was told yet, it was silent when it was raised
    known.asked           # ("repair_ahead",): taken back at its end, whatever the rule says now

It is kept in the alarm's own row, for operations are removed after a while and alarms can stand for
longer. Agents say all of their part again with each message; this part is carried over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from holdfast.model.alarm import (
    AGAIN,
    CLEARED,
    DEEDS,
    FIRING,
    OVER,
    RAISED,
    Said,
)

#: Where it is in the details of an alarm.
CENTRAL: Final = "central"
_AHEAD: Final = "repair_ahead"


@dataclass(frozen=True)
class Memory:
    told: str = ""  # the state of which people heard last; empty: of none yet
    asked: tuple[str, ...] = ()  # deeds that were begun for it
    moved_at: str = ""  # when its server was asked to leave the host because of it


def recall(row: Mapping[str, Any]) -> Memory:
    """Of one that was written by an older version: it was told, and asked for what it says."""
    kept = row["details"].get(CENTRAL)
    if not isinstance(kept, Mapping):
        asked = row["details"].get("actions", ())
        return Memory(told=row["state"], asked=tuple(one for one in DEEDS if one in asked))
    known = {one.name: kept[one.name] for one in fields(Memory) if one.name in kept}
    return replace(Memory(**known), asked=tuple(known.get("asked", ())))


def plain(memory: Memory) -> dict[str, Any]:
    return {"told": memory.told, "asked": list(memory.asked), "moved_at": memory.moved_at}


def as_heard(said: Said, known: Memory) -> Said:
    """What is said again of an alarm that nobody has heard of is news: it counts as raised."""
    is_news = said.event == AGAIN and said.state == FIRING and known.told != FIRING
    return replace(said, event=RAISED) if is_news else said


def deeds(said: Said, known: Memory) -> tuple[str, ...]:
    """What is to be done, now that this was said and heard, in one order for all. What was begun
    is not begun again; it is taken back by what was begun, for the rule may be another one now."""
    if said.event == RAISED:
        return tuple(one for one in DEEDS if one in said.actions and one not in known.asked)
    return (OVER,) if said.event == CLEARED and _AHEAD in known.asked else ()


def after(said: Said, known: Memory) -> Memory:
    """What is remembered when that was heard."""
    begun = tuple(one for one in deeds(said, known) if one != OVER)
    return replace(known, told=said.state, asked=(*known.asked, *begun))
