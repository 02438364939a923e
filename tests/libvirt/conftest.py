# SPDX-License-Identifier: Apache-2.0
"""A host for all tests of guests of one file: others use the same names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import serve
from tests.libvirt.host import GuestHost


@pytest.fixture(scope="module")
def host() -> Iterator[GuestHost]:
    yield from serve(GuestHost())
