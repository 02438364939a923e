# SPDX-License-Identifier: Apache-2.0
"""A site for each test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hoststatus.site import Site


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes a site of these monitors, beside the one for computes."""
    with contextlib.ExitStack() as stack:
        yield lambda *monitors, **more: Site(tmp_path, stack, *monitors, **more)


@pytest.fixture
def site(build: Callable[..., Site]) -> Site:
    return build()
