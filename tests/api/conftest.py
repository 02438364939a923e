# SPDX-License-Identifier: Apache-2.0
"""Houses for the tests of the API: one migrated template, one copy per house."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.api.house import House, basic_config, copy, template
from tests.servers import MariaDB, PostgreSQL

Build = Callable[..., House]


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def build(furnished: Path, tmp_path: Path) -> Iterator[Build]:
    """Builds houses: `build(config, **changes of the services)`."""
    numbers = count(1)
    with contextlib.ExitStack() as stack:

        def make(config: str = "", **changes: object) -> House:
            state = copy(furnished, tmp_path / f"state-{next(numbers)}")
            return stack.enter_context(House(state, config, **changes))

        yield make


@pytest.fixture
def house(build: Build) -> House:
    """A house of one's own, with noauth."""
    return build()


@pytest.fixture(scope="module")
def shared(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A house for a file of tests that leave nothing behind."""
    with House(copy(furnished, tmp_path_factory.mktemp("shared"))) as house:
        yield house


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def on_server(
    request: pytest.FixtureRequest, furnished: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """A house on a database that, unlike SQLite, refuses values too large for a column."""
    server: PostgreSQL | MariaDB = request.getfixturevalue(request.param)
    url, state = server.new_database(), copy(furnished, tmp_path_factory.mktemp(request.param))
    with House(state, database_url=url) as house:
        yield house
    server.drop_database(url)


@pytest.fixture
def guarded(build: Build, tmp_path: Path) -> House:
    """A house with http_basic and the people of `house.PEOPLE`."""
    return build(basic_config(tmp_path))
