# SPDX-License-Identifier: Apache-2.0
"""A libvirt host whose guests have interfaces: taps in a network of its own, in which its daemon
runs. That daemon may open taps because it sees a device node of its own, which nobody else does.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from typing import Self

from holdfast.drivers.libvirt.connection import Call
from holdfast.model.errors import DriverError
from tests.libvirt.host import GuestHost
from tests.processes import Kept
from tests.servers.base import Missing, which
from tests.servers.networks import Namespace, NotRoot

ATTEMPTS, PATIENCE_S = 3, 60.0  # a busy machine takes 15 s
NIC = """\
<interface type='ethernet'>
  <mac address='{mac}'/><target dev='{tap}' managed='no'/><model type='{model}'/>
</interface>"""
BALLOON = "<memballoon model='virtio'><stats period='10'/></memballoon>"
NO_BALLOON = "<memballoon model='none'/>"
NOVA = """\
<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
  <nova:flavor name="small"><nova:memory>2</nova:memory><nova:disk>1</nova:disk>
    <nova:swap>0</nova:swap><nova:ephemeral>0</nova:ephemeral><nova:vcpus>{vcpus}</nova:vcpus>
  </nova:flavor>
  <nova:owner><nova:project uuid="{project}">shop</nova:project></nova:owner>
</nova:instance>"""


class TapHost(GuestHost):
    """As root only."""

    def __init__(self, taps: Sequence[str]) -> None:
        super().__init__()
        self.taps = taps
        self.network: Namespace | None = None

    def start(self) -> Self:
        """With QEMU known to it: libvirtd 9.0 now and then waits for ever for the first answer of a
        QEMU that it only wants to get to know, and holds a guest while it does."""
        for _ in range(ATTEMPTS):
            super().start()
            try:
                Call("capabilities", self._get_to_know_qemu).result(PATIENCE_S)
            except DriverError:
                self.kill()
                continue
            return self
        raise RuntimeError(f"libvirtd did not get to know QEMU in {ATTEMPTS} attempts")

    def _get_to_know_qemu(self) -> None:
        with contextlib.closing(self.connected()) as way:
            way.getCapabilities()

    def find(self) -> None:
        super().find()
        if os.geteuid() != 0:
            raise NotRoot
        for program, package in (
            ("ip", "iproute2"),
            ("unshare", "util-linux"),
            ("setpriv", "util-linux"),
        ):
            if which(program) is None:
                raise Missing(program, package)

    def prepare(self) -> None:
        super().prepare()
        self.node = self.folder / "tun"
        os.mknod(self.node, stat.S_IFCHR | 0o666, os.makedev(10, 200))
        self.node.chmod(0o666)
        self.network = Namespace()
        for tap in self.taps:
            self.network.ip(f"tuntap add {tap} mode tap user {self.user}", f"link set {tap} up")

    def command(self) -> list[str]:
        identity = f"--reuid {self.user} --regid {self.user} --clear-groups"
        line = f"mount --bind {self.node} /dev/net/tun && exec setpriv {identity} {self.daemon}"
        return [which("unshare") or "unshare", "-m", "sh", "-c", line]

    def launch(self) -> None:
        assert self.network is not None
        self.kept = self.network.do(
            lambda: Kept(
                self.command(),
                log=self.log,
                env=self.environment(),
                cwd=self.folder,
                folder=self.folder,
                polite=self.polite,
            )
        )

    def close(self) -> None:
        super().close()
        if self.network is not None:
            self.network.close()
            self.network = None

    @property
    def links(self) -> str:
        """Its interfaces, as the kernel counts them: those of the network the daemon is in."""
        assert self.network is not None
        return f"/proc/{os.getpid()}/task/{self.network.thread}/net/dev"

    def measured(
        self, name: str, devices: str, *, vcpus: int = 1, mib: int = 2, project: str = ""
    ) -> str:
        """As Nova would write it."""
        text = self.xml(name, devices, metadata=NOVA.format(vcpus=vcpus, project=project))
        text = text.replace("<vcpu>1</vcpu>", f"<vcpu>{vcpus}</vcpu>")
        text = text.replace("<memory unit='KiB'>2048", f"<memory unit='KiB'>{mib * 1024}")
        return text.replace(NO_BALLOON, BALLOON)
