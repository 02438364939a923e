# SPDX-License-Identifier: Apache-2.0
"""`virtual:instance`: slots of so many vCPUs, so much memory and disk."""

from collections.abc import Mapping
from typing import Any

from holdfast.model import expression
from holdfast.model.errors import InvalidInput
from holdfast.model.lease import Reservation
from holdfast.ports.cloud import Flavor
from holdfast.reserve.conditions import conditions
from holdfast.reserve.resources.slots import SlotsResource
from holdfast.reserve.resources.slots_plan import Slot
from holdfast.reserve.resources.slots_spec import WHERE, affinity, count, only_more, where

#: The largest number that Nova takes in a flavor.
_LARGEST = 2**31 - 1
_PROPERTIES = "resource_properties"
#: A field of the request: the least it may be, and what Placement calls it.
_SIZES = {"vcpus": (1, "VCPU"), "memory_mb": (1, "MEMORY_MB"), "disk_gb": (0, "DISK_GB")}


class InstanceResource(SlotsResource):
    type = "virtual:instance"
    keys = frozenset({*_SIZES, "amount", "affinity", _PROPERTIES})

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        self.check_names(spec)
        sizes = {name: count(spec, name, least, _LARGEST) for name, (least, _) in _SIZES.items()}
        properties = spec.get(_PROPERTIES) or ""
        if not isinstance(properties, str):
            raise InvalidInput(f"Malformed parameter {_PROPERTIES}: a JSON expression is wanted")
        expression.parse(properties, _PROPERTIES)
        return {
            **sizes,
            "amount": count(spec, "amount"),
            "affinity": affinity(spec),
            _PROPERTIES: properties,
            **where(spec),
        }

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        old = reservation.spec
        new = self.validate({**old, **wanted})
        only_more(reservation, old, new)
        return new

    def slot(self, spec: Mapping[str, Any]) -> Slot:
        size = {known: spec[name] for name, (_, known) in _SIZES.items() if spec[name]}
        asked = {name: spec[name] for name in (*WHERE, _PROPERTIES) if name in spec}
        return Slot(size, conditions(asked))

    def flavor(self, spec: Mapping[str, Any]) -> Flavor:
        return Flavor("", "", spec["vcpus"], spec["memory_mb"], spec["disk_gb"])
