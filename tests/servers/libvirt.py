# SPDX-License-Identifier: Apache-2.0
"""libvirt with QEMU for tests: machines whose power can be switched."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import uuid
from pathlib import Path
from typing import Any

from tests.processes import eventually
from tests.servers.base import Missing, Server, which

#: As little of a machine as runs: it finds nothing to boot and waits.
MACHINE = """\
<domain type='qemu'>
  <name>{name}</name><uuid>{uuid}</uuid>
  <memory unit='MiB'>16</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot>
  <devices>
    <emulator>{emulator}</emulator>
    <controller type='usb' model='none'/><memballoon model='none'/>
  </devices>
</domain>"""


class Libvirt(Server):
    """A libvirtd of one's own: a session's, so that it needs no root and touches nothing else."""

    name = "libvirt"
    account = "daemon"

    def find(self) -> None:
        """The daemon, its hypervisor, and the library that speaks to it."""
        daemon, emulator = which("libvirtd"), which("qemu-system-x86_64")
        if daemon is None:
            raise Missing(self.name, "libvirt-daemon")
        if emulator is None:
            raise Missing("QEMU", "qemu-system-x86")
        if importlib.util.find_spec("libvirt") is None:
            raise Missing("libvirt-python", "libvirt-dev, then pip install libvirt-python")
        self.daemon, self.emulator = daemon, emulator

    def prepare(self) -> None:
        """Folders and configuration of a session."""
        settings = self.folder / "config" / "libvirt" / "qemu.conf"
        settings.parent.mkdir(parents=True)
        # a file each: no virtlogd that stays behind
        settings.write_text('stdio_handler = "file"\n')
        for name in ("run", "cache", "data"):
            (self.folder / name).mkdir(mode=0o700)
        if self.user:
            self._give_away()

    def _give_away(self) -> None:
        for path in (self.folder, *self.folder.rglob("*")):
            shutil.chown(path, self.user, self.user)

    def environment(self) -> dict[str, str]:
        """Where a session keeps what is its own."""
        return super().environment() | {
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "XDG_DATA_HOME": str(self.folder / "data"),
        }

    def command(self) -> list[str]:
        """In the foreground."""
        return [self.daemon]

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "run" / "libvirt" / "libvirt-sock"

    def stop(self) -> None:
        """With its machines: they outlive their daemon."""
        if self.running and self.ready():
            with self.connected() as connection:
                for domain in connection.listAllDomains():
                    end(domain)
        super().stop()

    def ready(self) -> bool:
        """Whether the hypervisor answers."""
        import libvirt

        if not self.socket.exists():
            return False
        try:
            with self.connected() as connection:
                connection.getType()
        except libvirt.libvirtError:
            return False
        return True

    @property
    def url(self) -> str:
        """As libvirt writes it."""
        return f"qemu+unix:///session?socket={self.socket}"

    def connected(self) -> Any:
        """A connection, closed at the end of a `with`."""
        import libvirt

        libvirt.registerErrorHandler(lambda *_: None, None)  # it prints what it raises as well
        return libvirt.open(self.url)

    def machine(self, name: str) -> str:
        """Define a machine, switched off; its uuid."""
        machine_id = str(uuid.uuid4())
        with self.connected() as connection:
            connection.defineXML(MACHINE.format(name=name, uuid=machine_id, emulator=self.emulator))
        return machine_id

    def runs(self, name: str) -> bool:
        """Whether it really runs: what the emulators say is no proof."""
        with self.connected() as connection:
            return bool(connection.lookupByName(name).isActive())

    def switch(self, name: str, on: bool) -> None:
        """Behind everybody's back."""
        with self.connected() as connection:
            domain = connection.lookupByName(name)
            if not on:
                end(domain)
            elif not domain.isActive():
                domain.create()


def end(domain: Any) -> None:
    """It runs no more. libvirt gives up on a QEMU that takes longer than 15 s to end, which one
    that gets no processor may; and it may end by itself just now."""
    import libvirt

    def gone() -> bool:
        with contextlib.suppress(libvirt.libvirtError):
            if domain.isActive():
                domain.destroy()
            return not domain.isActive()
        try:
            return not domain.isActive()
        except libvirt.libvirtError as error:  # one that is not kept is forgotten when it ends
            return bool(error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN)

    eventually(gone)


def remove(domain: Any) -> None:
    """It runs no more, and is not kept."""
    import libvirt

    end(domain)
    with contextlib.suppress(libvirt.libvirtError):  # it was not kept in the first place
        domain.undefine()
