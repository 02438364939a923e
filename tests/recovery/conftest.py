# SPDX-License-Identifier: Apache-2.0
"""Houses for the tests of recovery: files laid out anew for each."""

import contextlib
import gc
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.leases.house import copy, make_template
from tests.recovery.house import HealHouse


@pytest.fixture(scope="session")
def heal_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("heal-template"))


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    """The folder of a house that is laid out hundreds of times; in memory where the OS has that."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder) / "house"


@contextlib.contextmanager
def hurried(*, logged: bool) -> Iterator[None]:
    """Run hundreds of stories without their logs; garbage waits, older objects are not traced."""
    logging.disable(logging.NOTSET if logged else logging.CRITICAL)
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    logging.disable(logging.NOTSET)


@pytest.fixture
def house(heal_template: Path, tmp_path: Path) -> Iterator[HealHouse]:
    made = HealHouse(copy(heal_template, tmp_path / "house"))
    yield made
    made.close()
