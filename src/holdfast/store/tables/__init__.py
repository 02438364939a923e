# SPDX-License-Identifier: Apache-2.0
"""The whole data model: one noun, one table. Rules live in `model`, queries beside this folder.

Times are UTC without a zone, to the microsecond, on every database. What a resource type, a step or
an observation has of its own is JSON; what is searched, ordered or kept unique is a column.
"""

from holdfast.store.tables.alarms import agents, alarm_rules, alarms
from holdfast.store.tables.base import UtcDateTime, metadata
from holdfast.store.tables.console import samples, sessions
from holdfast.store.tables.hosts import host_capabilities, host_traits, hosts, properties
from holdfast.store.tables.instance_ha import notifications, segment_hosts, segments, vmoves
from holdfast.store.tables.leases import (
    allocations,
    floatingips,
    leases,
    projects,
    reservations,
    things,
)
from holdfast.store.tables.operations import audit, duties, operations, steps
from holdfast.store.tables.watch import (
    incidents,
    monitors,
    observations,
    pauses,
    registered_monitors,
    set_aside,
    silences,
    verdicts,
)

__all__ = [
    "UtcDateTime",
    "agents",
    "alarm_rules",
    "alarms",
    "allocations",
    "audit",
    "duties",
    "floatingips",
    "host_capabilities",
    "host_traits",
    "hosts",
    "incidents",
    "leases",
    "metadata",
    "monitors",
    "notifications",
    "observations",
    "operations",
    "pauses",
    "projects",
    "properties",
    "registered_monitors",
    "reservations",
    "samples",
    "segment_hosts",
    "segments",
    "sessions",
    "set_aside",
    "silences",
    "steps",
    "things",
    "verdicts",
    "vmoves",
]
