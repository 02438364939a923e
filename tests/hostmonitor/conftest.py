# SPDX-License-Identifier: Apache-2.0
"""One site for all of them: eighteen agents take seconds to find each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import serve
from tests.hostmonitor.house import House, built
from tests.servers.consul import Site
from tests.servers.postgresql import PostgreSQL


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Three controllers, three computes, three networks."""
    yield from serve(Site())


@pytest.fixture(scope="session")
def standing(
    site: Site,
    postgresql: PostgreSQL,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    """Holdfast at that site."""
    url = postgresql.new_database()
    with built(site, tmp_path_factory.mktemp("house"), url) as house:
        yield house
    postgresql.drop_database(url)


@pytest.fixture
def house(standing: House) -> Iterator[House]:
    """Whole, whatever the test before has done to it."""
    standing.site.whole()
    yield standing
    standing.site.whole()
