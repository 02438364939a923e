# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests: real servers, started by the first test that asks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest
from oslo_context import context as oslo_context

from tests.processes import Kept, end_all
from tests.servers.base import Missing, Server
from tests.servers.mariadb import MariaDB
from tests.servers.postgresql import PostgreSQL
from tests.servers.rabbitmq import RabbitMQ

S = TypeVar("S", bound=Server)


# An example may take as long as it takes: the machine may be busy. (CI has a profile that says so.)
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
if os.environ.get("CI") != "true":
    hypothesis.settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make check` runs without servers."""
    text = "skip tests that start a server, a program of ours or a browser"
    parser.addoption("--no-servers", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Every server and program of the tests is started by Kept: there they are refused."""
    if config.getoption("--no-servers"):
        Kept.__init__ = _skip  # type: ignore[method-assign]


def _skip(*_: object, **__: object) -> None:
    pytest.skip("starts a server or a program: `make test` runs it")


@pytest.fixture(autouse=True)
def no_request_left() -> Iterator[None]:
    """Forget the request that a test made on this thread: its caller is written into the audit."""
    yield
    oslo_context._request_store.context = None


def serve(server: S) -> Iterator[S]:
    """Run a server until the end of the session; skip where it is not installed."""
    with contextlib.closing(server):
        try:
            server.start()
        except Missing as missing:
            if os.environ.get("CI") == "true":
                pytest.fail(str(missing), pytrace=False)
            pytest.skip(str(missing))
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """A PostgreSQL server."""
    yield from serve(PostgreSQL())


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """A MariaDB server."""
    yield from serve(MariaDB())


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """A RabbitMQ broker."""
    yield from serve(RabbitMQ())


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for `localhost`, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    paths = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-out", paths[0], "-keyout", paths[1]),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return paths


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database, on each kind of server in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'x.db'}"
        return
    server: PostgreSQL | MariaDB = request.getfixturevalue(request.param)
    url = server.new_database()
    yield url
    server.drop_database(url)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hand the reasons of slow tests to the report, from which tools/test prints them."""
    for item in items:
        slow = item.get_closest_marker("slow")
        if slow is not None:
            item.user_properties.append(("slow", slow.args[0]))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if something that a test started still runs."""
    left = end_all()
    if left:
        session.config.stash[LEFT] = left
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


LEFT = pytest.StashKey[list[str]]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what still ran, if anything did."""
    for line in config.stash.get(LEFT, []):
        terminalreporter.write_line(f"left running by a test, ended now: {line}", red=True)


@pytest.fixture(scope="session")
def promtool() -> str:
    """What judges rules and pages of Prometheus."""
    found = shutil.which("promtool")
    if found is None:
        missing = "promtool is not here: install Debian's package prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    return found
