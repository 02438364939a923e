# SPDX-License-Identifier: Apache-2.0
"""MariaDB for tests."""

from __future__ import annotations

import contextlib

import pymysql

from tests.servers.base import Database, Missing, which


class MariaDB(Database):
    """A private MariaDB; its root has no password."""

    name = "MariaDB"
    account = "mysql"  # it refuses to run as root

    def find(self) -> None:
        """Both the server and the script that makes its tables."""
        server = which("mariadbd", "mysqld")
        installer = which("mariadb-install-db", "mysql_install_db")
        if server is None or installer is None:
            raise Missing(self.name, "mariadb-server")
        self.server, self.installer = server, installer

    def prepare(self) -> None:
        """Make the system tables."""
        self.run(
            [
                self.installer,
                "--no-defaults",
                f"--datadir={self.folder / 'data'}",
                f"--tmpdir={self.folder}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                "--innodb-log-file-size=32M",
            ]
        )

    def command(self) -> list[str]:
        """With Debian's character set, which --no-defaults would lose."""
        return [
            self.server,
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",  # a starting server removes the temporary tables there
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--max-connections=200",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_general_ci",
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-log-file-size=32M",
        ]

    def ready(self) -> bool:
        """Whether it answers a query."""
        with contextlib.suppress(pymysql.OperationalError):
            self.execute("SELECT 1")
            return True
        return False

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database that is always there."""
        return self.database_url("mysql")

    def database_url(self, name: str) -> str:
        """The SQLAlchemy URL of one database."""
        where = f"127.0.0.1:{self.port}/{name}"
        return f"mysql+pymysql://root@{where}?charset=utf8mb4"

    def create(self, name: str) -> None:
        """Make a database."""
        self.execute(f"CREATE DATABASE `{name}`")

    def drop(self, name: str) -> None:
        """Remove a database; a transaction left open on it would block that."""
        for (number,) in self.execute(
            "SELECT id FROM information_schema.processlist"
            f" WHERE db = '{name}' AND id <> connection_id()"
        ):
            with contextlib.suppress(pymysql.Error):
                self.execute(f"KILL {number}")
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def execute(self, statement: str) -> list[tuple[int]]:
        """Run one statement as root."""
        with (
            pymysql.connect(
                host="127.0.0.1", port=self.port, user="root", connect_timeout=10
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())
