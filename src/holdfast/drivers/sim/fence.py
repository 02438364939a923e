# SPDX-License-Identifier: Apache-2.0
"""The fence of the simulated cloud: cuts the power of a host in the cloud's file.

The fence has its own faults, which can be set at run time. Faults of calls affect it only if
`only_calls` names `fence.power`, `fence.off` or `fence.on`: a BMC does not fail because the
cloud's API does. With `fence_lies` the fence accepts orders and does nothing.

    simulator.change(only_calls=["fence.off"], failure_rate=1.0)
    simulator.change(fence_lies=True)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.drivers.fence.device import PORT, Device
from holdfast.drivers.sim import outage
from holdfast.drivers.sim.file import File
from holdfast.drivers.sim.wire import FINE, FaultDecision, Wire
from holdfast.drivers.sim.world import World
from holdfast.model.errors import DriverError
from holdfast.ports.fence import OFF, ON
from holdfast.runtime.clock import Clock


class FenceWire(Wire):
    """A wire with faults only for calls named in `only_calls`."""

    def _meet(self, world: World, name: str) -> FaultDecision:
        fate = super()._meet(world, name)
        return fate if name in world.settings.only_calls else FINE


class SimFence:
    """A Fence for all hosts of the file; safe from many threads and several processes."""

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        call_timeout_s: float = 30.0,
        fault: str = "",
        seed: int | None = None,
    ) -> None:
        self.call_timeout_s = call_timeout_s
        self._fault = fault
        self._file = File(path, clock)
        self._wire = FenceWire(self._file, clock, call_timeout_s, seed)

    def power(self, host: str) -> str:
        self._break("fence.power")
        with _told(), self._wire.call("fence.power", host) as world:
            return ON if world.host(host)["powered"] else OFF

    def off(self, host: str) -> None:
        self._break("fence.off")
        with _told(), self._wire.call("fence.off", host) as world:
            if not self._lies(world):
                outage.power_off(world, host)

    def on(self, host: str) -> None:
        self._break("fence.on")
        with _told(), self._wire.call("fence.on", host) as world:
            if not self._lies(world) and not world.host(host)["powered"]:
                outage.power_on(world, host)

    def how(self, _host: str) -> str | None:
        return "sim"

    def accepts_risk(self, _host: str) -> bool:
        return False

    def close(self) -> None:
        self._file.close()

    def _lies(self, world: World) -> bool:
        return world.settings.fence_lies or self._fault == "lies"

    def _break(self, name: str) -> None:
        if self._fault == "fails":
            raise DriverError(PORT, f"{name}: failed, nothing was changed", retryable=True)
        if self._fault == "hangs":
            with _told():
                self._wire.time_out(name)


@contextmanager
def _told() -> Iterator[None]:
    """Convert errors of the cloud's file into errors of the fence port."""
    try:
        yield
    except DriverError as error:
        why = error.message.removeprefix(f"{error.port}: ")
        raise DriverError(PORT, why, retryable=error.retryable) from error


def connect(device: Device, conf: Any, clock: Clock) -> SimFence:
    return SimFence(conf.sim.database, clock, call_timeout_s=device.timeout_s, fault=device.fault)
