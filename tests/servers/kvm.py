# SPDX-License-Identifier: Apache-2.0
"""Three machines with libvirt and QEMU that share their disks, each with a plug to pull.

kvm = Kvm(); kvm.start()
guest = kvm.boot("cmp-1", "web")
kvm.cut("cmp-1"); kvm.power("cmp-2"); kvm.runs(guest)
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import psutil

from holdfast.drivers.libvirt.settings import Host
from tests.processes import PATIENCE_S, Kept, eventually
from tests.servers.libvirt import Libvirt, remove

GUEST = """\
<domain type='qemu'>
  <name>{name}</name><uuid>{uuid}</uuid>
  <metadata><hf:guest xmlns:hf='urn:holdfast:guest' ha='yes' project='{project}'/></metadata>
  <memory unit='MiB'>{memory_mb}</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <emulator>{emulator}</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{disk}'/><target dev='vda' bus='virtio'/>
    </disk>
    <controller type='usb' model='none'/><memballoon model='none'/>
  </devices>
</domain>"""


UUID = re.compile(r" -uuid ([0-9a-f-]{36})")


class Machine(Libvirt):
    """One of them. What QEMU can do, which takes seconds to find out, all learn from the first."""

    def __init__(self, cache: Path) -> None:
        super().__init__()
        self._cache = cache
        self._before: list[Kept] = []  # daemons that died; their keepers still keep the guests

    def environment(self) -> dict[str, str]:
        return super().environment() | {"XDG_CACHE_HOME": str(self._cache)}

    def lose_daemon(self) -> None:
        """Its libvirtd is killed, its guests live on; `start` brings another one."""
        assert self.kept is not None
        self.kept.signal(signal.SIGKILL)
        self.kept.wait(PATIENCE_S)
        self._before.append(self.kept)
        self.kept = None

    def tree(self) -> list[psutil.Process]:
        """All that runs on it."""
        keepers = [*self._before, *([self.kept] if self.kept else [])]
        return [process for keeper in keepers for process in keeper.tree()]

    def kill(self) -> None:
        super().kill()
        self._end_before()

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._end_before()

    def _end_before(self) -> None:
        while self._before:
            process = self._before.pop()
            process.signal_tree(signal.SIGKILL)
            process.close(keep=True)


class Kvm:
    names = ("cmp-1", "cmp-2", "cmp-3")

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hf-kvm-"))
        self.folder.chmod(0o755)
        self.shared = self.folder / "shared"
        self.machines = {name: Machine(self.folder / "cache") for name in self.names}

    def _start(self) -> Self:
        for path in (self.shared, self.folder / "cache"):
            path.mkdir(exist_ok=True)
            path.chmod(0o777)
        first, *others = self.machines.values()
        first.start()
        with first.connected() as connection:
            connection.getDomainCapabilities(None, "x86_64", "pc", "qemu")
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda machine: machine.start(), others))
        return self

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """As the driver is told of them."""
        return tuple(Host(name, machine.url, rack="r1") for name, machine in self.machines.items())

    # guests

    def boot(
        self,
        host: str,
        name: str,
        *,
        project: str = "red",
        disk: Path | None = None,
        memory_mb: int = 16,
    ) -> str:
        """A guest that runs there; its uuid."""
        machine = self.machines[host]
        path = disk or self.shared / f"{name}.raw"
        if not path.exists():
            path.write_bytes(b"\0" * 65536)
            path.chmod(0o666)
        guest_id = str(uuid.uuid4())
        xml = GUEST.format(
            name=name,
            uuid=guest_id,
            project=project,
            emulator=machine.emulator,
            disk=path,
            memory_mb=memory_mb,
        )
        with machine.connected() as connection:
            connection.defineXML(xml).create()
        return guest_id

    def running(self) -> dict[str, dict[str, psutil.Process]]:
        """The QEMUs that there really are, by guest and machine."""
        processes: dict[str, dict[str, psutil.Process]] = {}
        for name, machine in self.machines.items():
            for process in machine.tree():
                with contextlib.suppress(psutil.Error):
                    if match := UUID.search(" ".join(process.cmdline())):
                        processes.setdefault(match[1], {})[name] = process
        return processes

    def runs(self, guest: str) -> list[str]:
        """Machines on which it really runs."""
        return list(self.running().get(guest, {}))

    def kill(self, guest: str) -> None:
        """-9."""
        for process in self.running().get(guest, {}).values():
            os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not self.runs(guest), every=0.01)

    def domain(self, host: str, guest: str) -> str:
        """What that machine says of it: running, off or missing."""
        import libvirt

        with self.machines[host].connected() as connection:
            try:
                is_on = connection.lookupByUUIDString(guest).isActive()
            except libvirt.libvirtError as error:  # it may go between the two calls
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                    raise
                return "missing"
            return "running" if is_on else "off"

    def start(self, host: str = "", guest: str = "") -> Self:
        """The machines; or a guest, by hand."""
        if not guest:
            return self._start()
        with self.machines[host].connected() as connection:
            connection.lookupByUUIDString(guest).create()
        return self

    def autostart(self, host: str, guest: str) -> None:
        with self.machines[host].connected() as connection:
            connection.lookupByUUIDString(guest).setAutostart(1)

    def definition(self, host: str, guest: str) -> str:
        with self.machines[host].connected() as connection:
            return str(connection.lookupByUUIDString(guest).XMLDesc())

    def define(self, host: str, xml: str) -> None:
        with self.machines[host].connected() as connection:
            connection.defineXML(xml)

    def let_run_twice(self, host: str, guest: str) -> None:
        """Its disk is shared on purpose, so that nothing locks it."""
        xml = self.definition(host, guest)
        assert "<target dev=" in xml
        self.define(host, xml.replace("<target dev=", "<shareable/><target dev=", 1))

    def remove(self, *guests: str) -> None:
        """These or all, of machines that are on."""
        for machine in self.machines.values():
            with machine.connected() as connection:
                for domain in connection.listAllDomains():
                    if guests and domain.UUIDString() not in guests:
                        continue
                    remove(domain)

    def restore(self) -> None:
        """All machines are on, and have no guests."""
        for machine in self.machines.values():
            machine.start()
        self.remove()

    # power

    def power(self, host: str) -> str:
        return "on" if self.machines[host].tree() else "off"

    def cut(self, host: str) -> None:
        """As a power cut does, libvirtd and guests together."""
        self.machines[host].kill()

    def switch_on(self, host: str) -> None:
        self.machines[host].start()
