# SPDX-License-Identifier: Apache-2.0
"""sushy-tools' emulator for tests: a Redfish BMC in front of libvirt's machines."""

from __future__ import annotations

import socket
import subprocess

import bcrypt

from tests.processes import script
from tests.servers.base import Missing, Server, which
from tests.servers.libvirt import Libvirt


class Redfish(Server):
    """By TLS, with a certificate for 127.0.0.1 and a user of its own."""

    name = "Redfish"

    def __init__(self, libvirt: Libvirt, user: str, password: str) -> None:
        """Nothing is started yet."""
        super().__init__()
        self.libvirt = libvirt
        self.login = (user, password)

    def find(self) -> None:
        """The emulator is a Python program, openssl makes its certificate."""
        if not script("sushy-emulator").exists():
            raise Missing("sushy-tools", "libvirt-dev")
        openssl = which("openssl")
        if openssl is None:
            raise Missing("openssl", "openssl")
        self.openssl = openssl

    def prepare(self) -> None:
        """Certificate, user, configuration."""
        subject = ("-subj", "/CN=bmc", "-addext", "subjectAltName=IP:127.0.0.1")
        subprocess.run(
            [
                *(self.openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *(*subject, "-keyout", str(self.folder / "key.pem"), "-out", self.certificate),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
        user, password = self.login
        digest = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        (self.folder / "htpasswd").write_text(f"{user}:{digest}\n")
        (self.folder / "emulator.conf").write_text(
            f"SUSHY_EMULATOR_AUTH_FILE = {str(self.folder / 'htpasswd')!r}\n"
        )

    @property
    def certificate(self) -> str:
        """The file of the authority to be trusted."""
        return str(self.folder / "cert.pem")

    def environment(self) -> dict[str, str]:
        """It keeps what it remembers in the temporary folder."""
        return super().environment() | {"TMPDIR": str(self.folder)}

    def command(self) -> list[str]:
        """Everything on loopback."""
        return [
            *(str(script("sushy-emulator")), "-i", "127.0.0.1", "-p", str(self.port)),
            *("--config", str(self.folder / "emulator.conf"), "--libvirt-uri", self.libvirt.url),
            *("--ssl-certificate", self.certificate, "--ssl-key", str(self.folder / "key.pem")),
        ]

    def ready(self) -> bool:
        """Whether it listens."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 10):
                return True
        except OSError:
            return False

    @property
    def url(self) -> str:
        """Its address."""
        return f"https://127.0.0.1:{self.port}"
