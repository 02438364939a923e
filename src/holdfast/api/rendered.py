# SPDX-License-Identifier: Apache-2.0
"""JSON that was written once and is right for as long as its stamp is.

A stamp is what the database says of an object at the moment of asking: its id first, then whatever
changes when anything that is shown of it does. Every answer asks for the stamps; only the objects
whose stamp has no text yet are read in full and written. Nothing here goes by time and nobody has
to be told of a change: an old text is never found again, because its stamp never comes back.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")
#: An object's id, and more: a row of the stamps' query.
Stamp = tuple[Hashable, ...]
#: Says of stamps which ids must be read in full.
Missing = Callable[[Sequence[Stamp]], Sequence[str]]
#: Reads the stamps, then those in full that the argument names.
Look = Callable[[Missing], tuple[Sequence[Stamp], Mapping[str, T]]]


class Rendered:
    """At most `most` texts, those used last. One of these per kind of object and way to write it.

    >>> rendered.texts(ledger.stamped, lambda lease: json.dumps(view(lease)).encode())
    """

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._texts: OrderedDict[Stamp, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def texts(
        self,
        look: Look[T],
        write: Callable[[T], bytes],
        lasting: Callable[[T], bool] = lambda _: True,
    ) -> list[bytes]:
        """What `look` finds, written, in its order. Not kept is what is not `lasting`: it would
        change without its stamp.
        """
        known: dict[Stamp, bytes] = {}

        def missing(stamps: Sequence[Stamp]) -> list[str]:
            known.update(self._known(stamps))
            return [str(stamp[0]) for stamp in stamps if stamp not in known]

        stamps, read = look(missing)
        fresh: dict[Stamp, bytes] = {}
        texts = []
        for stamp in stamps:
            text = known.get(stamp)
            if text is None:
                found = read.get(str(stamp[0]))
                if found is None:  # gone since its stamp was read
                    continue
                text = write(found)
                if lasting(found):
                    fresh[stamp] = text
            texts.append(text)
        if fresh:
            self._keep(fresh)
        return texts

    def _known(self, stamps: Sequence[Stamp]) -> dict[Stamp, bytes]:
        with self._lock:
            known = {stamp: self._texts[stamp] for stamp in stamps if stamp in self._texts}
            for stamp in known:
                self._texts.move_to_end(stamp)
        return known

    def _keep(self, fresh: Mapping[Stamp, bytes]) -> None:
        with self._lock:
            self._texts.update(fresh)
            while len(self._texts) > self._most:
                self._texts.popitem(last=False)
