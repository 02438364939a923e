# SPDX-License-Identifier: Apache-2.0
"""Finds a QEMU that hangs, of which libvirt says nothing by itself.

Something is asked of every QEMU every few seconds; of one that does not answer libvirt then knows
since when it waits, and says so at once to whoever asks (`controlInfo`). On a connection of its
own: a question that hangs holds up nothing else, and there are few of them.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from holdfast.drivers.guests.calls import Call, Calls, Opening
from holdfast.model.errors import DriverError
from holdfast.ports.clock import Clock

LOG = logging.getLogger(__name__)
#: libvirtd serves five requests of one connection at a time.
MOST_HANGING = 3
SHORT_S = 2.0
#: What a healthy QEMU answers in; one that needs longer is waited for while others are asked.
QUICK_S = 0.25
_OCCUPIED = 2

Say = Callable[[str, str, str], None]  # uuid, name, stuck or answering


class Probe:
    def __init__(
        self, connect: Callable[[], Any], say: Say, clock: Clock, *, every_s: float, stuck_s: float
    ) -> None:
        self._say = say
        self._clock = clock
        self._every_s = every_s
        self._stuck_s = stuck_s
        self._calls = Calls(MOST_HANGING + 1)
        self._hanging: dict[str, Call[Any]] = {}
        self._stuck: dict[str, str] = {}  # names by uuid
        self._connection: Any = None
        self._opening = Opening(connect)
        self._complained = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._forever, name="guests-probe", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._connection = None

    def _forever(self) -> None:
        import libvirt

        while not self._clock.wait(self._stop, self._every_s):
            try:
                self.round()
                self._complained = ""
            except (DriverError, libvirt.libvirtError) as error:
                self._connection = None
                if not self._complained:
                    LOG.warning("whether QEMUs hang cannot be seen just now: %s", error)
                self._complained = str(error)
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("looking for QEMUs that hang: unforeseen")

    def round(self) -> None:
        import libvirt

        connection = self._connected()
        active = libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
        domains = self._ask("list", lambda: connection.listAllDomains(active))
        running = {domain.UUIDString(): domain for domain in domains}
        for uuid in [one for one in self._stuck if one not in running]:
            del self._stuck[uuid]  # it ended, which is heard elsewhere
        for uuid, domain in running.items():
            try:
                self._one(connection, uuid, domain)
            except libvirt.libvirtError as error:  # it has just ended, or we have lost the way
                LOG.debug("%s: %s", uuid, error)

    def _one(self, connection: Any, uuid: str, domain: Any) -> None:
        state, _, waits_ms = self._ask("controlInfo", domain.controlInfo)
        if state == _OCCUPIED and waits_ms >= self._stuck_s * 1000:
            if uuid not in self._stuck:
                self._stuck[uuid] = domain.name()
                self._say(uuid, domain.name(), "stuck")
            return
        if state != _OCCUPIED and uuid in self._stuck:
            self._say(uuid, self._stuck.pop(uuid), "answering")
        self._provoke(connection, uuid, domain)

    def _provoke(self, connection: Any, uuid: str, domain: Any) -> None:
        """Ask it something, unless it still owes us an answer."""
        import libvirt

        self._hanging = {one: call for one, call in self._hanging.items() if not call.is_done}
        if uuid in self._hanging or len(self._hanging) >= MOST_HANGING:
            return
        # of all that can be asked this is the least: QEMU is asked one thing, whatever it has
        what = libvirt.VIR_DOMAIN_STATS_IOTHREAD
        call = Call("a probe", lambda: connection.domainListGetStats([domain], what))
        try:
            call.result(QUICK_S)
        except DriverError:
            self._hanging[uuid] = call
        except libvirt.libvirtError as error:
            LOG.debug("%s: %s", uuid, error)

    def _ask(self, what: str, do: Callable[[], Any]) -> Any:
        return self._calls.ask(what, do, SHORT_S)

    def _connected(self) -> Any:
        if self._connection is None or not self._connection.isAlive():
            self._connection = self._opening.result(SHORT_S)
        return self._connection
