# SPDX-License-Identifier: Apache-2.0
"""The Services port, in every world."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.model.errors import DriverError, NotFound
from holdfast.ports.cloud import Service
from tests.cloud.worlds import World
from tests.processes import eventually


def look(world: World, host: str) -> Service:
    return next(one for one in world.cloud.services.list() if one.host == host)


def test_a_service_is_disabled_forced_down_and_back_however_often_asked(world: World) -> None:
    services, (host, other) = world.cloud.services, world.hosts
    before = look(world, other)
    for spelling in (host, f"{host}.example.org"):
        services.disable(spelling, "fan broken")
        services.force_down(spelling)
    seen = look(world, host)
    assert (seen.enabled, seen.disabled_reason) == (False, "fan broken")
    assert (seen.forced_down, seen.state) == (True, "down")
    services.disable(host, "fan, and disk")
    assert look(world, host).disabled_reason == "fan, and disk"
    for _ in range(2):
        services.unforce(host)
        services.enable(host)
    seen = look(world, host)
    assert (seen.enabled, seen.disabled_reason) == (True, "")
    assert (seen.forced_down, seen.state) == (False, "up")
    assert look(world, other).enabled == before.enabled


def test_a_service_has_the_time_of_its_last_report(world: World) -> None:
    heard = look(world, world.hosts[0]).updated_at
    assert heard is not None
    assert abs(datetime.now(UTC) - heard) < timedelta(minutes=10)


def test_forcing_a_dead_host_down_updates_the_time_of_the_last_report(world: World) -> None:
    services, (host, _) = world.cloud.services, world.hosts
    world.fail(host)
    heard = look(world, host).updated_at
    assert heard is not None
    time.sleep(1.1)  # Nova knows whole seconds
    assert look(world, host).updated_at == heard
    services.force_down(host)
    told = look(world, host).updated_at
    assert told is not None and told > heard
    time.sleep(1.1)
    assert look(world, host).updated_at == told  # it is dead all the same


def test_an_unknown_host_has_no_service(world: World) -> None:
    services = world.cloud.services
    for attempt in (services.enable, services.force_down, services.unforce):
        with pytest.raises(NotFound, match="nobody"):
            attempt("nobody")
    with pytest.raises(NotFound, match="nobody"):
        services.disable("nobody", "why")


def test_disabling_a_dead_host_that_nova_shows_up_times_out_and_takes_effect(world: World) -> None:
    host = world.hosts[0]
    hasty = world.hasty(2.0)
    eventually(lambda: answered(hasty.services.list))
    world.fail(host)
    with pytest.raises(DriverError) as late:
        hasty.services.disable(host, "dead")
    assert late.value.retryable
    eventually(lambda: not look(world, host).enabled)
    eventually(lambda: answered(lambda: hasty.services.disable(host, "dead")))  # done already


def answered(call: Callable[[], object]) -> bool:
    """Whether there was time enough for it: a machine that is busy may need more."""
    try:
        call()
    except DriverError as late:
        assert late.retryable
        return False
    return True


def test_disabling_a_dead_host_that_was_forced_down_first_is_quick(world: World) -> None:
    host = world.hosts[0]
    hasty = world.hasty(20.0)  # who waits for a dead host waits for longer
    world.fail(host)
    hasty.services.force_down(host)
    hasty.services.disable(host, "dead")
    assert not look(world, host).enabled
    hasty.services.enable(host)
    assert look(world, host).enabled
