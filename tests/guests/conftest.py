# SPDX-License-Identifier: Apache-2.0
"""One host for all tests of guests, with who listens to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import serve
from tests.guests.host import GuestHost


@pytest.fixture(scope="session")
def host() -> Iterator[GuestHost]:
    yield from serve(GuestHost())
