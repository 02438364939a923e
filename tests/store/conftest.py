# SPDX-License-Identifier: Apache-2.0
"""A migrated, empty store on each database in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.ports.clock import SystemClock
from holdfast.store import Store, migrations


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    made = Store(database_url, SystemClock())
    migrations.sync(made.database)
    yield made
    made.close()
