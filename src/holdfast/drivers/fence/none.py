# SPDX-License-Identifier: Apache-2.0
"""No device at all. It must be chosen by name and accepted in writing: nothing proves then that a
dead host is off, and its servers may run twice."""

from typing import Any

from holdfast.drivers.fence.device import Device
from holdfast.ports.fence import UNKNOWN
from holdfast.runtime.clock import Clock


class NoFence:
    """Says that it does not know, and switches nothing."""

    def power(self, _host: str) -> str:
        return UNKNOWN

    def off(self, _host: str) -> None:
        """There is nothing to ask."""

    def on(self, _host: str) -> None:
        """There is nothing to ask."""

    def close(self) -> None:
        """Nothing stays open."""


def connect(_device: Device, _conf: Any, _clock: Clock) -> NoFence:
    return NoFence()
