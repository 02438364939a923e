# SPDX-License-Identifier: Apache-2.0
"""`flavor:instance`: slots for servers of a flavor that exists.

The flavor is read when the reservation is made: what a server of it takes, on which hosts it can
be, and which of its extra specs the reservation's own flavor keeps. What happens to it later does
not matter. A flavor that asks for what hosts do not have by themselves (a PCI device, a part of a
GPU, groups of resources) is refused: nobody could promise it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.model.caller import Caller
from holdfast.model.errors import Conflict, InvalidInput, NotFound
from holdfast.model.host import Host
from holdfast.model.lease import Reservation
from holdfast.nova.names import SLOTS_SPEC
from holdfast.ports.cloud import Cloud, Flavor
from holdfast.reserve.conditions import Condition, conditions
from holdfast.reserve.resources.slots import SlotsResource
from holdfast.reserve.resources.slots_cloud import RESOURCES
from holdfast.reserve.resources.slots_plan import Slot
from holdfast.reserve.resources.slots_spec import WHERE, affinity, count, only_more, where

MAX_ID = 255
TRAIT = "trait:"
#: Extra specs that mean the same on the reservation's own flavor. Not those about aggregates: the
#: reservation's pool stands for them; and what is reserved gives way to nobody.
KEPT = (TRAIT, RESOURCES, "hw:", "hw_rng:", "hw_video:", "quota:", "os:")
#: Extra specs that ask for what is not the host's own to give.
_FOREIGN = {
    "pci_passthrough:alias": "PCI devices",
    "accel:device_profile": "accelerators",
    "hw:pmem": "persistent memory",
    "hw:mem_encryption": "encrypted memory",
    f"{RESOURCES}VGPU": "virtual GPUs",
    f"{RESOURCES}PGPU": "GPUs",
    f"{RESOURCES}PCI_DEVICE": "PCI devices",
}
_GROUP = re.compile(r"(resources|trait)[a-zA-Z0-9_-]+:")
_HYPERTHREADS = {"isolate": "forbidden", "require": "required"}


class FlavorResource(SlotsResource):
    type = "flavor:instance"
    keys = frozenset({"flavor_id", "amount", "affinity", "resource_properties"})

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """`resource_properties` is the answer's: it tells of the flavor, and asks for nothing."""
        self.check_names(spec)
        flavor_id = spec.get("flavor_id")
        if isinstance(flavor_id, int) and not isinstance(flavor_id, bool):
            flavor_id = str(flavor_id)  # python-blazarclient takes what looks like a number for one
        if flavor_id is None or flavor_id == "":
            raise InvalidInput(f"Missing parameter flavor_id: reservations of {self.type} need it")
        if not isinstance(flavor_id, str) or len(flavor_id) > MAX_ID:
            raise InvalidInput("Malformed parameter flavor_id: the id of a flavor is wanted")
        return {
            "flavor_id": flavor_id,
            "amount": count(spec, "amount"),
            "affinity": affinity(spec),
            **where(spec),
        }

    def look(self, spec: Mapping[str, Any], cloud: Cloud, caller: Caller) -> dict[str, Any]:
        flavor = _visible(cloud, spec["flavor_id"], caller)
        _check(flavor)
        kept = {key: one for key, one in flavor.extra_specs.items() if key.startswith(KEPT)}
        return {
            **{name: value for name, value in spec.items() if name != "flavor_id"},
            "source_flavor_id": flavor.id,
            "vcpus": flavor.vcpus,
            "memory_mb": flavor.memory_mb,
            "disk_gb": flavor.disk_gb,
            "resource_properties": _dump(flavor),
            "takes": takes(flavor),
            "traits": dict(_traits(flavor)),
            "extra_specs": kept,
        }

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The flavor stays; it may be named by its own id or by the reservation's."""
        old = reservation.spec
        self.check_names(wanted)
        same = (old["source_flavor_id"], reservation.id)
        if wanted.get("flavor_id") and str(wanted["flavor_id"]) not in same:
            raise Conflict("flavor_id: a reservation keeps the flavor that it was made with")
        asked = {name: old[name] for name in ("amount", "affinity", *WHERE) if name in old}
        told = self.validate({**asked, **wanted, "flavor_id": same[0]})
        rest = {name: value for name, value in old.items() if name not in asked}
        new = {**rest, **{name: value for name, value in told.items() if name != "flavor_id"}}
        only_more(reservation, old, new)
        return new

    def slot(self, spec: Mapping[str, Any]) -> Slot:
        asked = {name: spec[name] for name in WHERE if name in spec}
        traits = (_trait(name, word) for name, word in sorted(spec["traits"].items()))
        return Slot(spec["takes"], (*conditions(asked), *traits))

    def flavor(self, spec: Mapping[str, Any]) -> Flavor:
        sizes = spec["vcpus"], spec["memory_mb"], spec["disk_gb"]
        return Flavor("", "", *sizes, extra_specs=spec["extra_specs"])


def takes(flavor: Flavor) -> dict[str, int]:
    """What a server of the flavor takes of its host, by resource class, as Nova reckons it."""
    specs = flavor.extra_specs
    explicit = {
        key.removeprefix(RESOURCES): _amount(flavor, key)
        for key in specs
        if key.startswith(RESOURCES)
    }
    found = {"MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    if specs.get("hw:cpu_policy") == "dedicated":
        apart = specs.get("hw:emulator_threads_policy") == "isolate"
        found["PCPU"] = flavor.vcpus + apart
    elif not {"VCPU", "PCPU"} & explicit.keys():
        found["VCPU"] = flavor.vcpus
    return {name: amount for name, amount in {**found, **explicit}.items() if amount}


def _visible(cloud: Cloud, flavor_id: str, caller: Caller) -> Flavor:
    try:
        flavor = cloud.flavors.show(flavor_id)
    except NotFound:
        flavor = None
    if flavor and (flavor.public or caller.is_admin or caller.project_id in flavor.projects):
        return flavor
    raise InvalidInput(f"flavor_id: there is no flavor {flavor_id} that your project may use")


def _check(flavor: Flavor) -> None:
    """Whether what it asks for can be promised."""
    for key in sorted(flavor.extra_specs):
        what = _FOREIGN.get(key) or (_GROUP.match(key) and "groups of resources")
        if what:
            raise _refused(flavor, f"it asks for {what} ({key})")
    if SLOTS_SPEC in flavor.extra_specs:
        raise _refused(flavor, "it belongs to a reservation itself")
    if flavor.extra_specs.get("hw:cpu_policy") == "mixed":
        raise _refused(flavor, "it mixes dedicated and shared CPUs (hw:cpu_policy)")
    if not takes(flavor):
        raise _refused(flavor, "its servers take nothing of a host")


def _traits(flavor: Flavor) -> Iterator[tuple[str, str]]:
    threads = _HYPERTHREADS.get(flavor.extra_specs.get("hw:cpu_thread_policy", ""))
    if threads:
        yield "HW_CPU_HYPERTHREADING", threads
    for key, word in flavor.extra_specs.items():
        if not key.startswith(TRAIT):
            continue
        if word not in ("required", "forbidden"):
            raise _refused(flavor, f"{key} is {word}, neither required nor forbidden")
        yield key.removeprefix(TRAIT), word


def _trait(name: str, word: str) -> Condition:
    wanted = word == "required"

    def passes(host: Host) -> bool:
        return (name in host.traits) is wanted

    return Condition(f"trait {name} {word}", passes)


def _amount(flavor: Flavor, key: str) -> int:
    text = str(flavor.extra_specs[key])
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise _refused(flavor, f"{key} is {text}, no whole number")
    return int(text)


def _refused(flavor: Flavor, why: str) -> InvalidInput:
    return InvalidInput(f"flavor_id: flavor {flavor.name} cannot be reserved: {why}; name another")


def _dump(flavor: Flavor) -> str:
    """The flavor as the answer tells of it."""
    told = {
        "id": flavor.id,
        "name": flavor.name,
        "vcpus": flavor.vcpus,
        "ram": flavor.memory_mb,
        "disk": flavor.disk_gb,
        "extra_specs": dict(flavor.extra_specs),
    }
    return json.dumps(told, sort_keys=True)
