# SPDX-License-Identifier: Apache-2.0
"""Finds a QEMU that hangs, and one that an order without end keeps all others from: libvirt says
nothing of either by itself.

Something is asked of every QEMU every few seconds; of one that does not answer libvirt then knows
since when it waits, and says so at once to whoever asks (`controlInfo`). On lines of its own: a
question that hangs holds up nothing else, and there are not too many of them: each keeps one of
libvirtd's workers until its QEMU answers or ends. Beyond that many it is said that we cannot ask.

libvirt gives one order at a time to a QEMU. If our question waits though QEMU owes nobody an
answer, somebody's order has not ended. A migration, a save, a dump or a backup may take hours: most
of these let questions pass, and while a guest starts or arrives it is not judged.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.drivers.guests.calls import Call, Line, Lines
from holdfast.model.errors import DriverError
from holdfast.ports.clock import Clock

LOG = logging.getLogger(__name__)
#: libvirtd has twenty workers for ordinary requests: the others' share is what is left of them.
MOST_HANGING = 12
SHORT_S = 2.0
#: What a healthy QEMU answers in; one that needs longer is waited for while others are asked.
QUICK_S = 0.25
#: So long an order may keep others waiting.
HELD_S = 20.0
#: libvirt itself lets a question wait for so long, then answers it as if there were nothing to say.
LOCK_S = 25.0
_JOB, _OCCUPIED = 1, 2

#: uuid, name, (stuck, answering, held or released), and for how many seconds it has been so.
Say = Callable[[str, str, str, float], None]


class Probe:
    def __init__(
        self,
        connect: Callable[[], Any],
        say: Say,
        clock: Clock,
        *,
        every_s: float,
        stuck_s: float,
        held_s: float = HELD_S,
    ) -> None:
        self._say = say
        self._clock = clock
        self._every_s = every_s
        self._stuck_s = stuck_s
        self._held_s = held_s
        self._lines = Lines(connect, MOST_HANGING + 1)
        self._hanging: dict[str, tuple[Call[Any], float]] = {}  # and since when
        self._owed: dict[str, float] = {}  # since when it has not answered us, by uuid
        self._stuck: dict[str, str] = {}  # names by uuid
        self._held: dict[str, str] = {}
        self._complained = ""
        self._full = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._forever, name="guests-probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._lines.close()

    def _forever(self) -> None:
        import libvirt

        while not self._clock.wait(self._stop, self._every_s):
            try:
                self.round()
                self._complained = ""
            except (DriverError, libvirt.libvirtError) as error:
                if not self._complained:
                    LOG.warning("whether QEMUs hang cannot be seen just now: %s", error)
                self._complained = str(error)
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("looking for QEMUs that hang: unforeseen")

    def round(self) -> None:
        import libvirt

        running = self._ask("list", _running)
        # who ended is heard of elsewhere
        self._stuck = {one: name for one, name in self._stuck.items() if one in running}
        self._held = {one: name for one, name in self._held.items() if one in running}
        self._owed = {one: since for one, since in self._owed.items() if one in running}
        for uuid, name in running.items():
            try:
                self._one(uuid, name)
            except libvirt.libvirtError as error:  # it has just ended, or we have lost the way
                LOG.debug("%s: %s", uuid, error)
        self._say_full(len(running))

    def _say_full(self, running: int) -> None:
        """Once: the others are asked when one of those that hang answers or ends."""
        full = len(self._hanging) >= MOST_HANGING
        if full and not self._full:
            LOG.warning(
                "%d QEMUs owe an answer: of the other %d we see only what they owe to others",
                *(len(self._hanging), running - len(self._hanging)),
            )
        self._full = full

    def _one(self, uuid: str, name: str) -> None:
        state, _, waits_ms = self._ask("controlInfo", lambda line: line.domain(uuid).controlInfo())
        if state == _OCCUPIED and waits_ms >= self._stuck_s * 1000:
            self._owed.pop(uuid, None)
            if uuid not in self._stuck:
                self._stuck[uuid] = name
                self._say(uuid, name, "stuck", waits_ms / 1000)
            return
        # that it owes nothing says little: a libvirtd that was restarted has not asked it yet
        if self._answers(uuid) and uuid in self._stuck:
            self._say(uuid, self._stuck.pop(uuid), "answering", 0.0)
        self._judge_held(uuid, name, explained=state in (_JOB, _OCCUPIED))

    def _judge_held(self, uuid: str, name: str, *, explained: bool) -> None:
        if uuid in self._owed and (explained or not self._lives_here(uuid)):
            del self._owed[uuid]
        if uuid not in self._owed:
            if uuid in self._held:
                self._say(uuid, self._held.pop(uuid), "released", 0.0)
            return
        waits_s = self._clock.monotonic() - self._owed[uuid]
        if waits_s >= self._held_s and uuid not in self._held:
            self._held[uuid] = name
            self._say(uuid, name, "held", waits_s)

    def _lives_here(self, uuid: str) -> bool:
        """And neither starts, arrives, nor is stopped for an order of the long kind."""
        import libvirt

        state, reason = self._ask("state", lambda line: line.domain(uuid).state())
        arrives = reason == libvirt.VIR_DOMAIN_RUNNING_POSTCOPY
        return bool(state == libvirt.VIR_DOMAIN_RUNNING and not arrives)

    def _answers(self, uuid: str) -> bool:
        """Asked now; not, if it still owes us an answer, or too many do."""
        import libvirt

        now = self._clock.monotonic()
        for one, (call, since) in list(self._hanging.items()):
            if call.is_done:
                del self._hanging[one]
                if now - since < LOCK_S:
                    self._owed.pop(one, None)
        if uuid in self._hanging or len(self._hanging) >= MOST_HANGING:
            return False
        # of all that can be asked this is the least: QEMU is asked one thing, whatever it has
        what = libvirt.VIR_DOMAIN_STATS_IOTHREAD

        def ask(line: Line) -> Any:
            return line.connection.domainListGetStats([line.domain(uuid)], what)

        call = self._lines.begin("a probe", ask)
        try:
            call.result(QUICK_S)
            self._owed.pop(uuid, None)
            return True
        except DriverError:
            self._hanging[uuid] = call, now
            self._owed.setdefault(uuid, now)
        except libvirt.libvirtError as error:
            LOG.debug("%s: %s", uuid, error)
        return False

    def _ask(self, what: str, do: Callable[[Line], Any]) -> Any:
        return self._lines.ask(what, do, SHORT_S)


def _running(line: Line) -> Mapping[str, str]:
    import libvirt

    found = line.list(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
    return {uuid: domain.name() for uuid, domain in found.items()}
