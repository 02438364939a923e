# SPDX-License-Identifier: Apache-2.0
"""virtualbmc for tests: an IPMI BMC in front of each of libvirt's machines."""

from __future__ import annotations

import subprocess

from tests.processes import free_port, script
from tests.servers.base import Missing, Server, search_path, which
from tests.servers.libvirt import Libvirt


class Ipmi(Server):
    """One BMC per machine, each on a port of its own, all with one user."""

    name = "IPMI"

    def __init__(self, libvirt: Libvirt, user: str, password: str, *machines: str) -> None:
        """Nothing is started yet."""
        super().__init__()
        self.libvirt = libvirt
        self.login = (user, password)
        self.ports = {name: free_port() for name in machines}

    def find(self) -> None:
        """The daemon is a Python program; ipmitool tells whether it answers."""
        if not script("vbmcd").exists():
            raise Missing("virtualbmc", "libvirt-dev")
        tool = which("ipmitool")
        if tool is None:
            raise Missing("ipmitool", "ipmitool")
        self.tool = tool

    def prepare(self) -> None:
        """What `vbmc add` and `vbmc start` would write."""
        user, password = self.login
        for name, port in self.ports.items():
            about = {
                **{"username": user, "password": password, "address": "127.0.0.1", "port": port},
                **{"domain_name": name, "libvirt_uri": self.libvirt.url, "active": True},
            }
            lines = "".join(f"{key} = {value}\n" for key, value in about.items())
            (self.folder / "machines" / name).mkdir(parents=True)
            config = self.folder / "machines" / name / "config"
            config.write_text(f"[VirtualBMC]\n{lines}")
        (self.folder / "password").write_text(password)

    def launch(self) -> None:
        """The port for `vbmc` is the server's own."""
        (self.folder / "virtualbmc.conf").write_text(
            f"[default]\nconfig_dir = {self.folder / 'machines'}\n"
            f"pid_file = {self.folder / 'pid'}\nserver_port = {self.port}\n"
        )
        super().launch()

    def environment(self) -> dict[str, str]:
        """Where it finds its configuration."""
        return super().environment() | {
            "VIRTUALBMC_CONFIG": str(self.folder / "virtualbmc.conf"),
        }

    def command(self) -> list[str]:
        """In the foreground."""
        return [str(script("vbmcd")), "--foreground"]

    def ready(self) -> bool:
        """Whether every BMC answers."""
        return all(self._answers(port) for port in self.ports.values())

    def _answers(self, port: int) -> bool:
        done = subprocess.run(
            [
                *(self.tool, "-I", "lanplus", "-H", "127.0.0.1", "-p", str(port), "-N", "5"),
                *("-R", "1", "-U", self.login[0], "-f", str(self.folder / "password")),
                *("power", "status"),
            ],
            env={"PATH": search_path()},
            capture_output=True,
            timeout=90,
            check=False,
        )
        return done.returncode == 0

    @property
    def url(self) -> str:
        """Where all of them are."""
        return "127.0.0.1"
