# SPDX-License-Identifier: Apache-2.0
"""The house of recovery on real machines: three libvirtd, real guests, real time.

house = PlainHouse(path, kvm); house.segment(*kvm.names)
guest = kvm.boot("cmp-1", "web"); house.m.cloud.services.list()
kvm.cut("cmp-1"); report = house.report("cmp-1")
house.until(lambda: house.incident(report).status == "recovered")
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from holdfast.app.manager import kinds
from holdfast.drivers.libvirt.settings import Settings
from holdfast.runtime.clock import SystemClock
from tests.leases.house import Manager, Points
from tests.processes import PATIENCE_S
from tests.recovery.house import HealHouse
from tests.servers.kvm import Kvm

if TYPE_CHECKING:
    from holdfast.drivers.libvirt.cloud import LibvirtCloud


class RealClock(SystemClock):
    """Time that passes by itself: to advance is to wait."""

    def advance(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


class Plugs:
    """The fence: the machines' plugs."""

    call_timeout_s = 60.0

    def __init__(self, kvm: Kvm) -> None:
        self._kvm = kvm

    def power(self, host: str) -> str:
        return self._kvm.power(host)

    def off(self, host: str) -> None:
        self._kvm.cut(host)

    def on(self, host: str) -> None:
        self._kvm.switch_on(host)

    def how(self, host: str) -> str | None:
        return "plug"

    def accepts_risk(self, host: str) -> bool:
        return False


@dataclass(frozen=True)
class Patient(Settings):
    """A host that is well is waited for, however busy the machine. One that is off says so at once;
    one that is frozen never does."""

    call_timeout_s: float = 240.0

    @property
    def poll_timeout_s(self) -> float:
        return 30.0


def connect(kvm: Kvm, state: Path, kind: type[Settings] = Settings, **more: Any) -> LibvirtCloud:
    from holdfast.drivers.libvirt.cloud import LibvirtCloud

    return LibvirtCloud(kind(kvm.hosts, str(state), (str(kvm.shared),), **more), SystemClock())


class PlainHouse(HealHouse):
    def __init__(self, path: Path, kvm: Kvm) -> None:
        self.kvm = kvm
        clock: Any = RealClock()
        super().__init__(path, clock)
        self.recovery.bring_back_after_s = 0.5
        self.recovery.start_timeout_s = 60.0

    def more_kinds(self, manager: Manager, points: Points | None) -> dict[str, Any]:
        """Recovery works on the machines; the simulated cloud stays for what else a house does."""
        self._spare = manager.cloud
        manager.cloud = connect(self.kvm, self.path / "libvirt.db", Patient)
        found = super().more_kinds(manager, points)
        self.context = replace(self.context, fence=Plugs(self.kvm))
        return {**found, **kinds(self.context)}

    def close(self) -> None:
        super().close()
        self._spare.close()

    def until(self, so: Callable[[], object], seconds: float = PATIENCE_S) -> None:
        """Work until it is so."""
        deadline = time.monotonic() + seconds
        while not _holds(so):
            assert time.monotonic() < deadline, [
                (one.kind, one.subject, one.status, one.sentence)
                for one in self.m.store.operations.list_all()
            ]
            self.run(seconds=0.1)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _holds(so: Callable[[], object]) -> bool:
    try:
        return bool(so())
    except AssertionError:  # there is no incident yet
        return False


class Watchman:
    """Looks all the time whether a guest runs on two machines."""

    def __init__(self, kvm: Kvm) -> None:
        self._kvm = kvm
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.twice: list[tuple[str, list[str]]] = []
        self.looks = 0

    def __enter__(self) -> Watchman:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.looks > 0
        assert not self.twice

    def _look(self) -> None:
        while not self._stop.wait(0.2):
            for guest, running in self._kvm.running().items():
                # one after the other was looked at: it may have ended before the next began
                alive = [host for host, process in running.items() if _runs(process)]
                if len(alive) > 1:
                    self.twice.append((guest, alive))
            self.looks += 1
