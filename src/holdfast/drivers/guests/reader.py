# SPDX-License-Identifier: Apache-2.0
"""A reading of all guests for whoever asks, on lines of its own: neither who listens nor a QEMU
that hangs holds it up, and it holds up nobody."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from holdfast.drivers.guests import facts, words
from holdfast.drivers.guests.calls import Line, Lines, failed
from holdfast.drivers.guests.facts import Facts
from holdfast.model.errors import DriverError
from holdfast.ports.clock import Clock
from holdfast.ports.guests import Guest

LOG = logging.getLogger(__name__)
ANSWER_S: Final = 2.0
#: A guest that is healthy is read in a few milliseconds.
GUEST_S: Final = 1.0
#: Guests that do not answer, before it is the daemon rather than they.
MOST_CALLS: Final = 4
#: Questions that only QEMU itself can answer, which it may never do: on lines of their own, and so
#: few that the daemon keeps its workers for the others.
MOST_DISKS: Final = 2


class Reader:
    """`known`: what was read of guests before, by uuid, and is read anew here."""

    def __init__(self, connect: Callable[[], Any], known: dict[str, Facts], clock: Clock) -> None:
        self._known = known
        self._clock = clock
        self._lines = Lines(connect, MOST_CALLS)
        self._disks = Lines(connect, MOST_DISKS)
        self._turn = threading.Lock()

    def read(self, patience: float = 1.0) -> tuple[Sequence[Guest], datetime]:
        """`unknown` is who does not answer. DriverError if all cannot be read; the daemon gets as
        much more time for its list as there is `patience`."""
        import libvirt

        with self._turn:
            try:
                return self._read(patience)
            except libvirt.libvirtError as error:
                raise failed(str(error)) from error

    def learn(self, uuid: str) -> None:
        """What is known of that guest. DriverError, or libvirt's own."""

        def look(line: Line) -> Facts:
            return facts.read(line.domain(uuid).XMLDesc())

        self._known[uuid] = self._lines.ask("facts", look, GUEST_S)

    def close(self) -> None:
        self._lines.close()
        self._disks.close()

    def _read(self, patience: float) -> tuple[Sequence[Guest], datetime]:
        at = self._clock.now()
        names = self._lines.ask("list", _names, ANSWER_S * patience)
        read = [self._guest(uuid, name) for uuid, name in names.items()]
        return [guest for guest in read if guest is not None], at

    def _guest(self, uuid: str, name: str) -> Guest | None:
        """None if it has gone since it was listed."""
        import libvirt

        try:
            (state, reason), known, lasts, autostart = self._lines.ask(
                name, lambda line: _look(line.domain(uuid)), GUEST_S
            )
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise
        except DriverError as error:  # it alone does not answer; all others shall be seen
            LOG.warning("%s cannot be read: %s", name, error)
            about = self._known.get(uuid, Facts()).metadata
            return Guest(uuid, name, "unknown", "no_answer", metadata=dict(about))
        self._known[uuid] = known
        found = Guest(uuid, name, state, reason, lasts, autostart, known.metadata)
        if (state, reason) != ("paused", "ioerror"):
            return found
        what, disk, path = self._error(uuid, name, known)
        return replace(found, error=what, disk=disk, path=path)

    def _error(self, uuid: str, name: str, known: Facts) -> tuple[str, str, str]:
        """What stopped it and on which disk; nothing if its QEMU does not say so in time."""
        import libvirt

        try:
            errors = self._disks.ask(name, lambda line: _errors(line.domain(uuid)), GUEST_S)
        except (DriverError, libvirt.libvirtError) as error:
            LOG.warning("%s: which disk stopped it cannot be asked: %s", name, error)
            return "", "", ""
        return _worst(errors, known)


def _names(line: Line) -> Mapping[str, str]:
    return {uuid: domain.name() for uuid, domain in line.list().items()}


def _errors(domain: Any) -> Mapping[str, int]:
    found: Mapping[str, int] = domain.diskErrors()
    return found


def _worst(errors: Mapping[str, int], known: Facts) -> tuple[str, str, str]:
    """Of one disk that fails; if any of them lacks more than space, of that one."""
    for number, word in sorted(words.DISK_ERROR.items()):
        for disk in sorted(name for name, error in errors.items() if error == number):
            paths = (one.path for one in known.disks.values() if one.name == disk)
            return word, disk, next(paths, "")
    return "", "", ""


def _look(domain: Any) -> tuple[tuple[str, str], Facts, bool, bool]:
    state = words.state(*domain.state())
    known = facts.read(domain.XMLDesc())
    return state, known, bool(domain.isPersistent()), bool(domain.autostart())
