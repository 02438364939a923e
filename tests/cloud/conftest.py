# SPDX-License-Identifier: Apache-2.0
"""The worlds in which behaviour tests run: the simulated one, and the lab's Nova."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.cloud.worlds import NovaWorld, SimWorld, World
from tests.lab.conftest import lab
from tests.lab.ground import ground

if TYPE_CHECKING:
    from lab.cloud import Lab

__all__ = ["lab"]  # so that tests of this folder may ask for it


@pytest.fixture(scope="session")
def nova_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NovaWorld]:
    """One for all tests: making it takes longer than most of them."""
    running: Lab = request.getfixturevalue("lab")
    with ground(running, "cloud", 0) as hosts:
        made = NovaWorld(running, hosts, tmp_path_factory.mktemp("nova"))
        made.clean(everything=True)  # after a run that was killed
        yield made
        made.close()


@pytest.fixture(params=["sim", pytest.param("nova", marks=pytest.mark.lab)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "sim":
        simulated = SimWorld(request.getfixturevalue("tmp_path"))
        yield simulated
        simulated.close()
        return
    real: NovaWorld = request.getfixturevalue("nova_world")
    yield real
    real.clean()
