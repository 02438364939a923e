# SPDX-License-Identifier: Apache-2.0
"""Cutting a host's power, so that nothing on it runs while its servers start elsewhere.

`off` and `on` ask; what counts is what is read back: only `power(host) == "off"` is evidence. A
device that took the order and left the machine on is a device that lied, and is found out by
reading.

A third party adds a kind of device with one class and one entry point. The factory is given what
the devices file says of it (`drivers/fence/device.py`), and returns its `Driver`:

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
    """One device of the file. Errors: DriverError("fence", …), whose `retryable` says whether a
    later call may succeed. A call ends within the device's `timeout_s`, one way or the other."""

    def power(self, host: str) -> str:
        """What the device reads now: "on", "off" or "unknown". Never from memory."""
        ...

    def off(self, host: str) -> None:
        """Ask for the power to be cut, hard and at once; of what is off already too. Returns when
        the device has taken the order, which proves nothing: read `power`."""
        ...

    def on(self, host: str) -> None:
        """Ask for the power to be switched on; of what is on already too."""
        ...

    def close(self) -> None: ...


class Fence(Protocol):
    """All devices as one, by host. Errors as of a Driver; NotFound where no device is configured
    for that host; InvalidInput for what is no host name."""

    call_timeout_s: float  # longest that any one call takes, one way or the other

    def power(self, host: str) -> str: ...

    def off(self, host: str) -> None: ...

    def on(self, host: str) -> None: ...

    def how(self, host: str) -> str | None:
        """By which kind of device that host is fenced, for people; None where none is configured.
        Nothing is asked of the device."""
        ...

    def accepts_risk(self, host: str) -> bool:
        """Whether `none` was chosen for that host: nobody fences it, and that was accepted."""
        ...
