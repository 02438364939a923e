# SPDX-License-Identifier: Apache-2.0
"""MariaDB and RabbitMQ as the quick tests run them, with folders and ports of the lab.

Only what they are is taken from `tests.servers`, not their life: the lab's outlive us.
"""

from __future__ import annotations

import os
import shutil

import amqp
from tests.servers.mariadb import MariaDB
from tests.servers.rabbitmq import RabbitMQ

from lab.place import Place


class LabMariaDB(MariaDB):
    """The database server of all services, and of Holdfast under test."""

    def __init__(self, place: Place) -> None:
        """Find it, or raise Missing."""
        super().__init__()
        self.folder = place.folder / "mariadb"
        self.port = place.ports["mariadb"]
        self.find()

    @property
    def user(self) -> str:
        """Whoever we are: another account may not reach into the checkout."""
        return ""

    def prepare(self) -> None:
        """Make the system tables; what an interrupted attempt left is removed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        super().prepare()

    def command(self) -> list[str]:
        """More connections than tests need; a socket whose name is never too long."""
        words = ["--socket=socket", "--max-connections=600", "--innodb-buffer-pool-size=256M"]
        return super().command() + words + self._as_root()

    def run(self, command: list[str]) -> None:
        """The installer too is told that root is meant."""
        super().run(command + self._as_root())

    def _as_root(self) -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []

    def renew(self, name: str) -> None:
        """An empty database of a service, whatever was there."""
        self.drop(name)
        self.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb3")


class LabRabbitMQ(RabbitMQ):
    """The broker."""

    def __init__(self, place: Place) -> None:
        """Find it, or raise Missing."""
        super().__init__()
        self.folder = place.folder / "rabbitmq"
        self.port = place.ports["rabbitmq"]
        self._ports = place.ports
        self._keep_ports()
        self.find()

    def prepare(self) -> None:
        """Write its configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        super().prepare()
        self._keep_ports()

    def _keep_ports(self) -> None:
        self.epmd_port = self._ports["epmd"]
        self.distribution_port = self._ports["erlang"]

    def epmd_command(self) -> list[str]:
        """Erlang's name server, in the foreground."""
        return [self.daemon, "-port", str(self.epmd_port), "-address", "127.0.0.1"]

    def epmd_ready(self) -> bool:
        """Whether epmd listens."""
        return self._epmd_listens()

    def consumers(self, queue: str) -> int:
        """How many read this queue; 0 too if there is no such queue or no broker."""
        try:
            with amqp.Connection(
                f"127.0.0.1:{self.port}", "guest", "guest", connect_timeout=5
            ) as connection:
                declared = connection.channel().queue_declare(queue, passive=True)
        except (OSError, amqp.AMQPError):
            return 0
        return int(declared.consumer_count)
