# SPDX-License-Identifier: Apache-2.0
"""Fencing ports: cut a host's power before its servers start elsewhere.

`off` and `on` only request; the state read back counts: only `power(host) == "off"` is
evidence. A device may accept the order and leave the machine on; reading the power state
reveals this.

A third party adds a kind of device with a class and an entry point. The factory gets the
device's section of the devices file (`drivers/fence/device.py`) and returns a `Driver`:

    [project.entry-points."holdfast.fences"]
    acme = "acme_fence:connect"

    def connect(device, conf, clock):
        return AcmePdu(device.address, device.timeout_s)
"""

from typing import Final, Protocol

ON: Final = "on"
OFF: Final = "off"
UNKNOWN: Final = "unknown"  # the device cannot tell, or there is none


class Driver(Protocol):
    """A fencing device of the devices file.

    Errors are DriverError("fence", …), whose `retryable` says whether a later call may succeed.
    A call returns or fails within the device's `timeout_s`.
    """

    def power(self, host: str) -> str:
        """Read the power state from the device now: "on", "off" or "unknown". Never from memory."""
        ...

    def off(self, host: str) -> None:
        """Order the device to cut the power, hard and at once, also if the power is off already.

        The call returns when the device accepts the order, which proves nothing: read `power`.
        """
        ...

    def on(self, host: str) -> None:
        """Order the device to switch the power on, also if the power is on already."""
        ...

    def close(self) -> None: ...


class Fence(Protocol):
    """All fencing devices behind an interface keyed by host.

    Errors are those of `Driver`, NotFound if no device is configured for the host, and
    InvalidInput if the value is no host name.
    """

    call_timeout_s: float  # the longest that a call takes until it returns or fails

    def power(self, host: str) -> str: ...

    def off(self, host: str) -> None: ...

    def on(self, host: str) -> None: ...

    def how(self, host: str) -> str | None:
        """Return the kind of device that fences the host, for people; None if not configured.

        The call does not contact the device.
        """
        ...

    def accepts_risk(self, host: str) -> bool:
        """Tell whether the operator chose `none` for the host and accepts the missing fence."""
        ...
