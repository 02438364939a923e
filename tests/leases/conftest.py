# SPDX-License-Identifier: Apache-2.0
"""A house with its files made once."""

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.leases.house import House, copy, make_template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("template") / "empty")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where houses are built, one after the other."""
    return tmp_path_factory.mktemp("site") / "house"


@pytest.fixture
def house(template: Path, site: Path) -> Iterator[House]:
    """An empty house, clock at 2030-01-01 10:00 UTC."""
    made = House(copy(template, site))
    yield made
    made.close()


@pytest.fixture
def quick() -> Iterator[None]:
    """What is logged of hundreds of deaths is not looked at, and garbage waits."""
    logging.disable(logging.NOTSET if os.environ.get("CRASH_POINTS") else logging.CRITICAL)
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)
