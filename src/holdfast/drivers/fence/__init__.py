# SPDX-License-Identifier: Apache-2.0
"""Fence drivers: Redfish, ClusterLabs fence agents, none, and the simulated cloud.

Drivers are found by the entry point group `holdfast.fences`, devices in the file of `[fencing]
devices_file`. A driver is loaded when one of its hosts is first fenced or its power is read.
"""

import importlib.metadata
import importlib.util
import logging

from oslo_config import cfg

from holdfast.drivers.fence.device import PORT, Device
from holdfast.drivers.fence.devices_file import Settings
from holdfast.drivers.fence.fences import Fences
from holdfast.model.errors import DriverError
from holdfast.ports.fence import Driver
from holdfast.runtime.clock import Clock

LOG = logging.getLogger(__name__)
NAMESPACE = "holdfast.fences"
#: Seconds by which a device's timeout is below the call's: time to kill a hanging call.
SPARE_S = 2.0


def connect(conf: cfg.ConfigOpts, clock: Clock) -> Fences:
    """Load all fences of the configuration; DriverError names an invalid setting."""
    options = conf.fencing
    longest_s = options.call_timeout_s - SPARE_S
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=NAMESPACE)}

    def load(device: Device) -> Driver:
        try:
            driver: Driver = entries[device.driver].load()(device, conf, clock)
        except ImportError as error:
            raise DriverError(
                PORT,
                f"{device.hosts}: driver {device.driver}: {error.name or error} is not installed:"
                " pip install holdfast[fence]",
                retryable=False,
            ) from error
        return driver

    devices = []
    if not options.devices_file and conf.cloud.driver == "sim":
        devices = [Device(hosts="*", line=0, driver="sim", timeout_s=longest_s)]
    elif not options.devices_file:
        LOG.warning("[fencing] devices_file is not set: no host can be fenced")
    fences = Fences(
        options.devices_file,
        Settings(longest_s, options.agents_dir, entries.keys()),
        load,
        call_timeout_s=options.call_timeout_s,
        devices=devices,
    )
    if any(device.driver == "redfish" for device in fences.device_file().devices):
        _need_sushy()
    return fences


def _need_sushy() -> None:
    """Check at start that sushy is installed, not when the first host is dead."""
    if importlib.util.find_spec("sushy") is None:
        raise DriverError(
            PORT, "driver redfish needs sushy: pip install holdfast[fence]", retryable=False
        )
