# SPDX-License-Identifier: Apache-2.0
"""nginx and HAProxy for tests: each runs a site's configuration, in which PORT is its own port."""

from __future__ import annotations

import os
import socket

from tests.servers.base import Missing, Server, which

_NGINX = """
{user}
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {site}
}}
"""


class Proxy(Server):
    """A reverse proxy in front of a server of the test."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self.site = site

    def find(self) -> None:
        program = which(self.name)
        if program is None:
            raise Missing(self.name, self.name)
        self.program = program

    def prepare(self) -> None:
        """Nothing: the configuration needs the port."""

    def ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def configuration(self) -> str:
        return self.site.replace("PORT", str(self.port))

    def command(self) -> list[str]:
        config = self.folder / "config"
        config.write_text(self.configuration())
        return [self.program, *self.options, str(config)]

    options: tuple[str, ...]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Nginx(Proxy):
    name = "nginx"
    options = ("-e", "stderr", "-c")

    def configuration(self) -> str:
        user = "user root root;" if os.geteuid() == 0 else ""
        return _NGINX.format(user=user, folder=self.folder, site=super().configuration())


class HAProxy(Proxy):
    name = "haproxy"
    options = ("-db", "-f")
