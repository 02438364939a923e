# SPDX-License-Identifier: Apache-2.0
"""What a page showed, so that of thousands of pieces only those are sent that have changed.

A rendering has pieces, each with an id, and lists of ids in their order. Its version is made of
what is in it: a page names the one it shows, and hears what differs.

    memory.keep(new)
    memory.difference("a1b2…", new)    # all of it if nobody here remembers a1b2…
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

#: So many renderings are remembered; one of a thousand tiles takes about 100 kB.
REMEMBERED: Final = 64


@dataclass(frozen=True)
class Rendering:
    lists: Mapping[str, Sequence[str]]
    pieces: Mapping[str, str]

    @cached_property
    def marks(self) -> Mapping[str, bytes]:
        return {name: _mark(text) for name, text in self.pieces.items()}

    @cached_property
    def version(self) -> str:
        whole = hashlib.blake2b(repr(sorted(self.lists.items())).encode(), digest_size=16)
        for name, mark in self.marks.items():
            whole.update(name.encode() + mark)
        return whole.hexdigest()


def _mark(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


class Memory:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[Mapping[str, Sequence[str]], Mapping[str, bytes]]]
        self._known = OrderedDict()

    def keep(self, shown: Rendering) -> None:
        with self._lock:
            self._known[shown.version] = shown.lists, shown.marks
            self._known.move_to_end(shown.version)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def difference(self, version: str, new: Rendering) -> dict[str, Any]:
        """What a page that shows that version has to change. A version that another process sent
        is known here only if nothing differs from it."""
        with self._lock:
            lists, marks = self._known.get(version, ({}, {}))
        self.keep(new)
        if version == new.version:
            lists, marks = new.lists, new.marks
        return {
            "version": new.version,
            "lists": {name: list(ids) for name, ids in new.lists.items() if lists.get(name) != ids},
            "pieces": {
                name: text
                for name, text in new.pieces.items()
                if marks.get(name) != new.marks[name]
            },
        }
