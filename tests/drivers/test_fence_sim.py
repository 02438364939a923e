# SPDX-License-Identifier: Apache-2.0
"""The fence of the simulated cloud: it cuts power in the cloud's own file, and fails when told."""

import pytest
from tests.drivers.small_cloud import HandClock, small

from holdfast import conf as configuration
from holdfast.drivers import fence
from holdfast.drivers.fence.fences import Fences
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.outage import SimFence
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.errors import DriverError, NotFound


@pytest.fixture
def fences(sim: Simulator, path: str, clock: HandClock) -> Fences:
    conf = configuration.load([], [])
    conf.set_override("database", path, group="sim")
    return fence.connect(conf, clock)


def test_without_a_devices_file_every_host_of_the_simulated_cloud_has_a_fence(
    sim: Simulator, fences: Fences
) -> None:
    server = small(sim)
    assert fences.power("cmp-1") == "on"
    fences.off("cmp-1")
    assert fences.power("cmp-1") == "off"
    assert sim.running(server.id) == []
    fences.off("cmp-1")  # off already
    assert [effect.subject for effect in sim.effects("fence.off")] == ["cmp-1"]
    fences.on("cmp-1")
    assert fences.power("cmp-1") == "on"
    assert fences.power("cmp-2") == "on"
    with pytest.raises(NotFound):
        fences.power("cmp-99")


def test_a_fence_cuts_the_power_of_a_host_that_was_only_cut_off(
    sim: Simulator, fences: Fences
) -> None:
    server = small(sim)
    sim.cut_host("cmp-1")
    assert fences.power("cmp-1") == "on"
    assert sim.running(server.id) == ["cmp-1"]
    fences.off("cmp-1")
    assert fences.power("cmp-1") == "off"
    assert sim.running(server.id) == []


def test_reading_the_power_exposes_a_lying_fence(sim: Simulator, fences: Fences) -> None:
    sim.change(fence_lies=True)
    fences.off("cmp-1")
    assert fences.power("cmp-1") == "on"
    sim.change(fence_lies=False)
    fences.off("cmp-1")
    assert fences.power("cmp-1") == "off"
    sim.change(fence_lies=True)
    fences.on("cmp-1")
    assert fences.power("cmp-1") == "off"


def test_a_fence_fails_where_the_faults_name_it_and_nowhere_else(
    sim: Simulator, fences: Fences, cloud: SimCloud
) -> None:
    sim.change(down=True, failure_rate=1.0)
    assert fences.power("cmp-1") == "on"  # a BMC does not fail because the cloud's API does
    sim.change(down=False, only_calls=["fence.off"])
    with pytest.raises(DriverError) as raised:
        fences.off("cmp-1")
    assert (raised.value.port, raised.value.retryable) == ("fence", True)
    assert raised.value.message == "fence: fence.off: failed, nothing was changed"
    assert fences.power("cmp-1") == "on"
    assert cloud.hosts.find("cmp-1")
    assert sim.calls()["fence.off"] == 1


def test_a_call_to_a_hanging_fence_ends_at_the_timeout(
    sim: Simulator, fences: Fences, clock: HandClock
) -> None:
    sim.change(only_calls=["fence.off"], hang_s=3600.0)
    before = clock.monotonic()
    with pytest.raises(DriverError, match="no answer within 8 s") as raised:
        fences.off("cmp-1")
    assert raised.value.retryable
    assert clock.monotonic() - before <= fences.call_timeout_s


@pytest.mark.parametrize(
    ("fault", "says"), [("fails", "failed, nothing was changed"), ("hangs", "no answer within 5 s")]
)
def test_a_device_can_be_made_to_fail_or_hang_in_the_file(
    sim: Simulator, path: str, clock: HandClock, fault: str, says: str
) -> None:
    broken = SimFence(path, clock, call_timeout_s=5.0, fault=fault)
    for call in (broken.power, broken.off, broken.on):
        with pytest.raises(DriverError, match=says) as raised:
            call("cmp-1")
        assert raised.value.port == "fence"
    assert sim.world()["hosts"][0]["powered"]
    broken.close()


def test_a_device_can_be_made_to_lie_in_the_file(
    sim: Simulator, path: str, clock: HandClock
) -> None:
    liar = SimFence(path, clock, fault="lies")
    liar.off("cmp-1")
    assert liar.power("cmp-1") == "on"
    liar.close()
