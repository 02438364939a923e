# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL for tests."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psycopg

from tests.servers.base import Database, Missing, which


class PostgreSQL(Database):
    """A private PostgreSQL; it trusts everybody on this machine."""

    name = "PostgreSQL"
    account = "postgres"  # it refuses to run as root
    polite = signal.SIGINT  # ends sessions; SIGTERM would wait for them

    def find(self) -> None:
        """Debian has each version in a folder of its own, outside PATH."""
        program = which("postgres", places="/usr/lib/postgresql/*/bin")
        if program is None or not Path(program).with_name("initdb").exists():
            raise Missing(self.name, "postgresql")
        self.bin = Path(program).parent

    def prepare(self) -> None:
        """Make the cluster."""
        command = [str(self.bin / "initdb"), "--pgdata=data", "--username=postgres"]
        rest = ["--auth=trust", "--no-sync", "--encoding=UTF8", "--no-locale"]
        self.run(command + rest)

    def command(self) -> list[str]:
        """Fast and careless: the data need not survive the machine."""
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
            "max_connections": 200,
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
        }
        words = [f"--{name}={value}" for name, value in settings.items()]
        return [str(self.bin / "postgres"), "-D", str(self.folder / "data"), *words]

    def ready(self) -> bool:
        """Whether it answers a query."""
        with contextlib.suppress(psycopg.OperationalError):
            self.execute("SELECT 1")
            return True
        return False

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database that is always there."""
        return self.database_url("postgres")

    def database_url(self, name: str) -> str:
        """The SQLAlchemy URL of one database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{name}"

    def create(self, name: str) -> None:
        """Make a database."""
        self.execute(f'CREATE DATABASE "{name}"')

    def drop(self, name: str) -> None:
        """Remove a database."""
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, statement: str) -> None:
        """Run one statement as the superuser."""
        with psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            dbname="postgres",
            connect_timeout=10,
            autocommit=True,
        ) as connection:
            connection.execute(statement)
