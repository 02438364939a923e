# SPDX-License-Identifier: Apache-2.0
"""The Fence port: finds the device of a host, and reloads the device file when it changes."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.drivers.fence import devices_file
from holdfast.drivers.fence.device import PORT, Device, host_name, read_by_others
from holdfast.drivers.fence.devices_file import DeviceFile, Settings
from holdfast.model.errors import DriverError, HoldfastError
from holdfast.ports.fence import OFF, UNKNOWN, Driver

LOG = logging.getLogger(__name__)

Connect = Callable[[Device], Driver]
_Stamp = tuple[int, int, int]


class Fences:
    """All fences of the device file behind the Fence port."""

    def __init__(
        self,
        path: str | None,
        settings: Settings,
        connect: Connect,
        *,
        call_timeout_s: float,
        given: Sequence[Device] = (),
    ) -> None:
        """Read the device file.

        `given` are the devices if there is none. Raises DriverError if the file is invalid.
        """
        self.call_timeout_s = call_timeout_s
        self._path = path
        self._settings = settings
        self._connect = connect
        self._lock = threading.Lock()
        self._made: dict[str, Driver] = {}
        self._stamp: _Stamp | None = None
        self._book = DeviceFile(tuple(given))
        if path:
            self._stamp = _stamp(path)
            self._book = self._read(path)
        _warn(self._book)

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
        return self.book().find(host_name(host))

    def book(self) -> DeviceFile:
        with self._lock:
            return self._current()

    def close(self) -> None:
        with self._lock:
            made, self._made = self._made, {}
        for driver in made.values():
            driver.close()

    def _find(self, host: str) -> tuple[str, Device, Driver]:
        name = host_name(host)
        with self._lock:
            device = self._current().find(name)
            if device.hosts not in self._made:
                self._made[device.hosts] = self._connect(device)
            return name, device, self._made[device.hosts]

    def _current(self) -> DeviceFile:
        """Return the present device file; an invalid file leaves the previous devices in force."""
        if not self._path:
            return self._book
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return self._book
        self._stamp = stamp  # log an error once, not at every call
        try:
            self._book = self._read(self._path)
        except DriverError as error:
            LOG.error("%s; the devices that were read before stay in force", error.message)
            return self._book
        # A running call keeps its driver; the next call gets a new driver.
        self._made = {}
        LOG.info("%s read again: %d devices", self._path, len(self._book.devices))
        _warn(self._book)
        return self._book

    def _read(self, path: str) -> DeviceFile:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise DriverError(
                PORT, f"[fencing] devices_file: {path} cannot be read: {why}", retryable=False
            ) from error
        return devices_file.read(path, text, self._settings)


def _stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _warn(current: DeviceFile) -> None:
    """Log warnings about risky choices in the device file."""
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
                LOG.warning("%s: %s can be read by everybody: chmod 600", device.hosts, path)
