# SPDX-License-Identifier: Apache-2.0
"""A house with its files made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reserve.house import House, copy, make_template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template") / "empty")


@pytest.fixture
def house(template: Path, tmp_path: Path) -> Iterator[House]:
    """An empty house, clock at 2030-01-01 10:00 UTC."""
    made = House(copy(template, tmp_path / "house"))
    yield made
    made.close()
