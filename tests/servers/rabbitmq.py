# SPDX-License-Identifier: Apache-2.0
"""RabbitMQ for tests."""

from __future__ import annotations

import socket

from tests.processes import Kept, eventually, free_port
from tests.servers.base import Missing, Server, which

HELLO = b"AMQP\x00\x00\x09\x01"
METHOD_FRAME = 1


class RabbitMQ(Server):
    """A private broker of one node, with an epmd of its own, without plugins."""

    name = "RabbitMQ"
    patience = 180.0

    def __init__(self) -> None:
        """Nothing is started yet."""
        super().__init__()
        self.epmd: Kept | None = None

    def find(self) -> None:
        """Not Debian's /usr/sbin/rabbitmq-server: that insists on its own user."""
        server = which("rabbitmq-server", places="/usr/lib/rabbitmq/bin")
        daemon = which("epmd", places="/usr/lib/erlang/erts-*/bin")
        if server is None or daemon is None:
            raise Missing(self.name, "rabbitmq-server")
        self.server, self.daemon = server, daemon

    def prepare(self) -> None:
        """Write its configuration and choose the ports of Erlang's distribution."""
        self.epmd_port = free_port()
        self.distribution_port = free_port()
        (self.folder / "env.conf").touch()
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(
            # a full disk or a busy machine is not what these tests are about
            "disk_free_limit.absolute = 1MB\nvm_memory_high_watermark.relative = 0.8\n"
        )

    def environment(self) -> dict[str, str]:
        """Everything that RabbitMQ and Erlang would else share with the machine."""
        return super().environment() | {
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"hf{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            # one scheduler that waits awake: on two shared cores 8 starts took 4.9 to
            # 8.6 s (median 5.6), 6 with the defaults 6.0 to 10.1 s (median 9.5)
            "RABBITMQ_SCHEDULER_BUSY_WAIT_THRESHOLD": "medium",
            # our epmd runs in the foreground, theirs would become a daemon
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ("-start_epmd false +S 1:1 +SDcpu 1:1 +SDio 1"),
        }

    def command(self) -> list[str]:
        """The environment says it all."""
        return [self.server]

    def launch(self) -> None:
        """Start epmd, then the broker."""
        if self.epmd is None:
            port = str(self.epmd_port)
            self.epmd = Kept(
                [self.daemon, "-port", port, "-address", "127.0.0.1"],
                log=self.log,
                env=self.environment(),
                cwd=self.folder,
            )
            eventually(self._epmd_listens, 20, 0.01)
        super().launch()

    def _end(self) -> list[str]:
        left = super()._end()
        if self.epmd is not None:
            self.epmd.close()  # nobody's loss: it knows one node, and that has gone
            self.epmd = None
        return left

    def _epmd_listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.epmd_port), 1):
                return True
        except OSError:
            return False

    def ready(self) -> bool:
        """Whether it speaks AMQP."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                connection.sendall(HELLO)
                return connection.recv(1) == bytes([METHOD_FRAME])
        except OSError:
            return False

    @property
    def url(self) -> str:
        """The transport URL, as oslo.messaging writes it."""
        return f"rabbit://guest:guest@127.0.0.1:{self.port}//"
