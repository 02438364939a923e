# SPDX-License-Identifier: Apache-2.0
"""One host for all tests of real guests' numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import serve
from tests.metrics.host import TapHost


@pytest.fixture(scope="session")
def host() -> Iterator[TapHost]:
    yield from serve(TapHost(["hf-t0", "hf-t1", "hf-t2", "hf-t3"]))
