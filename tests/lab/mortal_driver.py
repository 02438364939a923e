# SPDX-License-Identifier: Apache-2.0
"""A hypervisor for Nova whose guests are files: what a file says is how its guest is.

Loaded by a nova-compute of `mortal.py`, as nova.virt.mortal_driver; not by Holdfast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nova.conf
from nova.compute import power_state
from nova.virt import fake, hardware

from nova import exception

CONF = nova.conf.CONF
STATES = {
    "running": power_state.RUNNING,
    "shutdown": power_state.SHUTDOWN,
    "crashed": power_state.CRASHED,
}


class MortalDriver(fake.FakeDriverWithoutFakeNodes):  # type: ignore[misc]
    """They outlive nova-compute, as real ones do."""

    @property
    def guests(self) -> Path:
        folder = Path(CONF.state_path) / "guests"
        folder.mkdir(exist_ok=True)
        return folder

    def _say(self, uuid: str, state: str) -> None:
        (self.guests / uuid).write_text(state)

    def spawn(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        super().spawn(context, instance, *args, **kwargs)
        self._say(instance.uuid, "running")

    def get_info(self, instance: Any, use_cache: bool = True) -> Any:
        file = self.guests / instance.uuid
        if not file.exists():
            raise exception.InstanceNotFound(instance_id=instance.uuid)
        return hardware.InstanceInfo(state=STATES[file.read_text()])

    def power_off(self, instance: Any, timeout: int = 0, retry_interval: int = 0) -> None:
        self._say(instance.uuid, "shutdown")

    def power_on(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        self._say(instance.uuid, "running")

    def destroy(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        (self.guests / instance.uuid).unlink(missing_ok=True)

    def resume_state_on_host_boot(self, context: Any, instance: Any, *args: Any) -> None:
        raise exception.InstancePowerOnFailure(reason="its disk is not there yet")

    def list_instance_uuids(self) -> list[str]:
        return [file.name for file in self.guests.iterdir()]

    def list_instances(self) -> list[str]:
        return self.list_instance_uuids()

    def update_provider_tree(
        self, provider_tree: Any, nodename: str, allocations: Any = None
    ) -> None:
        """Nothing that anybody else's servers need: they go elsewhere."""
        one = {"total": 100, "min_unit": 1, "max_unit": 1, "step_size": 1, "reserved": 0}
        resource = f"CUSTOM_{CONF.host.upper().replace('-', '_')}"
        provider_tree.update_inventory(nodename, {resource: {**one, "allocation_ratio": 1.0}})
