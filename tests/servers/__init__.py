# SPDX-License-Identifier: Apache-2.0
"""Real servers for tests, private to the session that starts them."""

from tests.servers.base import Missing, Server
from tests.servers.mariadb import MariaDB
from tests.servers.postgresql import PostgreSQL
from tests.servers.rabbitmq import RabbitMQ

__all__ = ["MariaDB", "Missing", "PostgreSQL", "RabbitMQ", "Server"]
