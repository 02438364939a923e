# SPDX-License-Identifier: Apache-2.0
"""The fence driver `none`: a host without a fence device.

The operator must choose this driver by name and accept the risk in the file: nothing then proves
that a dead host is off, and its servers may run twice.
"""

from typing import Any

from holdfast.drivers.fence.device import Device
from holdfast.ports.fence import UNKNOWN
from holdfast.runtime.clock import Clock


class NoFence:
    """Reports power as unknown and switches nothing."""

    def power(self, _host: str) -> str:
        return UNKNOWN

    def off(self, _host: str) -> None:
        """Do nothing: there is no device."""

    def on(self, _host: str) -> None:
        """Do nothing: there is no device."""

    def close(self) -> None:
        """Do nothing: no connection stays open."""


def connect(_device: Device, _conf: Any, _clock: Clock) -> NoFence:
    return NoFence()
