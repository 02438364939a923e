# SPDX-License-Identifier: Apache-2.0
"""What guests are, read one after the other from libvirt.

    reader = Reader(lines, took)
    reader.again(uuid)          # of any thread
    reader.turn()               # reads whom it was asked for

A guest that does not answer takes nothing from the others: its call is left to hang, which keeps
its line and a worker of libvirtd's, and while it does that guest is not asked again; what comes
late is taken all the same. Of such calls there are a few at most: others have to wait then.
"""

import functools
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.drivers.guests import words
from holdfast.drivers.guests.calls import Call, Line, Lines
from holdfast.model.errors import DriverError

LOG = logging.getLogger(__name__)
ANSWER_S: Final = 2.0
#: With those of `libvirt_bulk` one line is left at least.
MOST_LATE: Final = 2


class Answer(NamedTuple):
    number: int  # -1 if it does not run
    xml: str
    state: str
    reason: str


#: None: it does not answer, or is gone.
Took = Callable[[str, Answer | None], None]


class Reader:
    """One thread at a time, but for `again`."""

    def __init__(self, lines: Lines, took: Took, *, within_s: float = ANSWER_S) -> None:
        self._lines = lines
        self._took = took
        self._within_s = within_s
        self._wanted: set[str] = set()
        self._late: dict[str, Call[Answer]] = {}
        self._complained: set[str] = set()

    def again(self, uuid: str) -> None:
        self._wanted.add(uuid)

    @property
    def is_behind(self) -> bool:
        """Whether there is somebody who could not be read."""
        return bool(self._complained)

    def turn(self) -> None:
        """DriverError or libvirtError if nobody can be asked."""
        for uuid, call in list(self._late.items()):
            if call.is_done:
                del self._late[uuid]
                self._take(uuid, call, 0.0)
        for uuid in list(self._wanted):
            if len(self._late) >= MOST_LATE:
                return
            if uuid not in self._late:
                self._wanted.discard(uuid)  # before it is asked: what happens then is asked for
                self._take(uuid, self._asked(uuid), self._within_s)

    def _asked(self, uuid: str) -> Call[Answer]:
        try:
            return self._lines.begin("facts", functools.partial(_read, uuid))
        except DriverError:
            self._wanted.add(uuid)
            raise

    def _take(self, uuid: str, call: Call[Answer], within_s: float) -> None:
        import libvirt

        answer = None
        try:
            answer = call.result(within_s)
            self._complained.discard(uuid)
        except DriverError as error:
            self._late[uuid] = call
            self._complain(uuid, error)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                self._complained.discard(uuid)  # it has gone; the next list says so
            else:
                self._wanted.add(uuid)
                if error.get_error_domain() == libvirt.VIR_FROM_RPC:  # it is the way that is broken
                    raise
                self._complain(uuid, error)
        self._took(uuid, answer)

    def _complain(self, uuid: str, error: Exception) -> None:
        """Said once, until it is read."""
        if uuid not in self._complained:
            LOG.warning("guest %s: what it is cannot be read: %s; it is tried again", uuid, error)
        self._complained.add(uuid)


def _read(uuid: str, line: Line) -> Answer:
    domain = line.domains[uuid] = line.connection.lookupByUUIDString(uuid)
    return Answer(domain.ID(), domain.XMLDesc(), *words.state(*domain.state()))
