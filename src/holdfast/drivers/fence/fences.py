# SPDX-License-Identifier: Apache-2.0
"""The Fence port: finds the device of a host, and reloads the devices file when it changes."""

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.drivers.fence import devices_file
from holdfast.drivers.fence.device import Device, host_name, read_by_others
from holdfast.drivers.fence.devices_file import DeviceFile, Settings
from holdfast.model.errors import HoldfastError
from holdfast.ports.fence import OFF, UNKNOWN, Driver
from holdfast.runtime.clock import Clock
from holdfast.runtime.documents import INVENTORY, Followed

LOG = logging.getLogger(__name__)

Connect = Callable[[Device], Driver]


class Fences:
    """All fences of the devices file behind the Fence port."""

    def __init__(
        self,
        path: str | None,
        settings: Settings,
        connect: Connect,
        *,
        call_timeout_s: float,
        devices: Sequence[Device] = (),
    ) -> None:
        """Read the devices file.

        `devices` are the devices if there is none. Raises InvalidInput if the file is invalid.
        """
        self.call_timeout_s = call_timeout_s
        self._connect = connect
        self._lock = threading.Lock()
        self._made: dict[str, Driver] = {}
        self._file = Followed(
            path,
            "devices",
            lambda: DeviceFile(tuple(devices)),
            functools.partial(devices_file.parse, settings=settings),
            limits=INVENTORY,
        )
        _warn(self._file.value)

    def power(self, host: str) -> str:
        name, device, driver = self._find(host)
        state = driver.power(name)
        if state == OFF and device.action != "off":
            return UNKNOWN  # a reboot was requested: power may return
        return state

    def off(self, host: str) -> None:
        name, device, driver = self._find(host)
        driver.off(name)
        LOG.info("%s: %s was asked for power %s", name, device.kind, device.action)

    def on(self, host: str) -> None:
        name, device, driver = self._find(host)
        driver.on(name)
        LOG.info("%s: %s was asked for power on", name, device.kind)

    def how(self, host: str) -> str | None:
        try:
            device = self.device(host)
        except HoldfastError:  # `power` reports the reason
            return None
        return "none, as was accepted" if device.accepted else device.kind

    def accepts_risk(self, host: str) -> bool:
        return self.device(host).accepted

    def device(self, host: str) -> Device:
        """Return the device of a host; NotFound."""
        return self.device_file().find(host_name(host))

    def device_file(self) -> DeviceFile:
        with self._lock:
            return self._current()

    def close(self) -> None:
        with self._lock:
            drivers, self._made = self._made, {}
        for driver in drivers.values():
            driver.close()

    def _find(self, host: str) -> tuple[str, Device, Driver]:
        name = host_name(host)
        with self._lock:
            device = self._current().find(name)
            if device.hosts not in self._made:
                self._made[device.hosts] = self._connect(device)
            return name, device, self._made[device.hosts]

    def _current(self) -> DeviceFile:
        """Return the present devices; an invalid file leaves the previous devices in force."""
        if self._file.follow():
            # A running call keeps its driver; the next call gets a new driver.
            self._made = {}
            _warn(self._file.value)
        return self._file.value


def _warn(current: DeviceFile) -> None:
    """Log warnings about risky choices in the devices file."""
    for device in current.devices:
        if device.driver == "none":
            LOG.warning(
                "%s: driver none, in line %s: nothing proves that it is off when it seems dead, so"
                " its servers may run twice, as was accepted there",
                device.hosts,
                device.line,
            )
        if device.action != "off":
            LOG.warning(
                "%s: action %s is no proof that it is off: recovery waits for another one",
                device.hosts,
                device.action,
            )
        for path in {device.password_file, *device.secret_files.values()} - {""}:
            if read_by_others(path):
                LOG.warning("%s: %s is readable by every user: chmod 600", device.hosts, path)


class NoFence:
    """The fence driver `none`: reports power as unknown and switches nothing.

    The operator must choose this driver by name and accept the risk in the devices file: nothing
    then proves that a dead host is off, and its servers may run twice.
    """

    def power(self, _host: str) -> str:
        return UNKNOWN

    def off(self, _host: str) -> None:
        """Do nothing: there is no device."""

    def on(self, _host: str) -> None:
        """Do nothing: there is no device."""

    def close(self) -> None:
        """Do nothing: no connection stays open."""


def connect_none(_device: Device, _conf: Any, _clock: Clock) -> NoFence:
    return NoFence()
