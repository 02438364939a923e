# SPDX-License-Identifier: Apache-2.0
"""The Volumes port. The lab has no block storage, and that is told apart from an outage."""

from __future__ import annotations

import pytest

from holdfast.model.errors import DriverError
from tests.cloud.worlds import SimWorld, World


def test_volumes_are_listed_or_the_cloud_has_none(world: World) -> None:
    if isinstance(world, SimWorld):
        server = world.boot(host=world.hosts[0])
        attached = world.sim.add_volume("data", "red", 10, server.id)
        loose = world.sim.add_volume("spare", "blue", 5)
        assert list(world.cloud.volumes.list()) == [attached, loose]
        assert list(world.cloud.volumes.list(server_id=server.id)) == [attached]
        return
    with pytest.raises(DriverError, match="the catalog has no block storage") as error:
        world.cloud.volumes.list()
    assert not error.value.retryable
