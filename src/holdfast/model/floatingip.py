# SPDX-License-Identifier: Apache-2.0
"""A reservable floating IP: an address of a network outside the cloud's allocation pools.

>>> one = FloatingIp.of("public", "lower-half", "203.0.113.7")
>>> one.id == FloatingIp.of("public", "lower-half", "203.0.113.7").id
True
"""

import uuid
from dataclasses import dataclass
from datetime import datetime

_KEY = "address:"
_NAMES = uuid.UUID("6a1f4b0e-5a43-4a2c-8f0d-9a1d1f5d2c77")


@dataclass(frozen=True)
class FloatingIp:
    id: str
    network_id: str
    subnet_id: str
    address: str  # in the canonical form of ipaddress
    reservable: bool = True
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @classmethod
    def of(cls, network_id: str, subnet_id: str, address: str) -> "FloatingIp":
        """Make a floating IP with the fixed id of its address.

        Withdrawn and enrolled again, the address keeps its id, so leases from before and after
        cannot both hold it.
        """
        own = str(uuid.uuid5(_NAMES, f"{subnet_id}/{address}"))
        return cls(own, network_id, subnet_id, address)

    @property
    def thing(self) -> str:
        """The key of the address among resources with a single owner at a time."""
        return f"{_KEY}{self.id}"


def is_key(key: str) -> bool:
    """Whether the key of a resource means a floating IP."""
    return key.startswith(_KEY)


def id_of(key: str) -> str:
    """Return the id of the floating IP with this key."""
    return key.removeprefix(_KEY)
