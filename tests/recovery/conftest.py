# SPDX-License-Identifier: Apache-2.0
"""Houses for the tests of recovery: files laid out anew for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.leases.house import copy, make_template
from tests.recovery.house import HealHouse


@pytest.fixture(scope="session")
def heal_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("heal-template"))


@pytest.fixture
def house(heal_template: Path, tmp_path: Path) -> Iterator[HealHouse]:
    made = HealHouse(copy(heal_template, tmp_path / "house"))
    yield made
    made.close()
