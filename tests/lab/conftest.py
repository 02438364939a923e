# SPDX-License-Identifier: Apache-2.0
"""The running lab, for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.cloud import Lab, NotRunning

from tests.lab.ground import Ground, ground

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, so that `-m 'not lab'` leaves them out."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.lab)


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The lab of this checkout; tests are skipped where it does not run."""
    try:
        return Lab.running()
    except NotRunning as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def our_ground(lab: Lab) -> Iterator[Ground]:
    """The two hosts of the tests of this folder."""
    with ground(lab, "lab", 2) as made:
        yield made
