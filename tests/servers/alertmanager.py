# SPDX-License-Identifier: Apache-2.0
"""Alertmanager for tests: a single one, told by nobody but us, that tells nobody."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any

from tests.servers.base import Missing, Server, which

CONFIG = """
route: {receiver: nobody, group_wait: 1s}
receivers: [{name: nobody}]
"""
USER, PASSWORD = "holdfast", "not a secret"
#: What it knows of the password, by bcrypt at its cheapest.
WEB = f"""
basic_auth_users: {{{USER}: $2b$04$RFMdKxw2oR3V0j1d4NDBjOWct0s6TxOQQ1zQukgKFl505iieU/Ivm}}
"""


class Alertmanager(Server):
    """One without a cluster. It forgets its alerts when it ends."""

    name = "Alertmanager"

    def find(self) -> None:
        """The one program, by Debian's name or its own."""
        program = which("prometheus-alertmanager", "alertmanager")
        if program is None:
            raise Missing(self.name, "prometheus-alertmanager")
        self.program = program

    def prepare(self) -> None:
        """Its configuration."""
        (self.folder / "config.yml").write_text(CONFIG)
        (self.folder / "web.yml").write_text(WEB)

    def command(self) -> list[str]:
        """In the foreground."""
        return [
            self.program,
            f"--config.file={self.folder / 'config.yml'}",
            f"--web.config.file={self.folder / 'web.yml'}",
            f"--storage.path={self.folder}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.route-prefix=/alerts",
            "--cluster.listen-address=",
        ]

    @property
    def url(self) -> str:
        """As our configuration has it."""
        return f"http://127.0.0.1:{self.port}/alerts"

    @property
    def authorization(self) -> str:
        """By which it knows its friends."""
        return "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return self._get("/alerts/-/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def alerts(self) -> list[dict[str, Any]]:
        """Those that stand."""
        status, said = self._get("/alerts/api/v2/alerts")
        assert status == 200, said
        alerts: list[dict[str, Any]] = json.loads(said)
        return alerts

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60.0)
        try:
            connection.request("GET", path, headers={"Authorization": self.authorization})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
