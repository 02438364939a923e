# SPDX-License-Identifier: Apache-2.0
"""Names shared with Nova: what is written on pools, flavors and requests, and read by the filter.

They are Blazar's wherever Blazar has one, so that its leases, filter and users' habits carry over.
"""

#: Scheduler hint of a request: the reservations whose hosts it wants.
HINT = "reservation"

#: Scheduler hint of a request: the lease that the new server itself is to get.
LEASE_HINT = "lease_params"

#: Metadata of a server: the lease it is to get, until it has one.
WISH = "holdfast:lease"

#: The resource type of a lease on one server.
SERVER_LEASE = "virtual:server"

#: The pool of hosts that can be reserved, unless configured otherwise.
FREEPOOL = "freepool"

#: Metadata of a reservation's pool: the project it belongs to. It marks a pool as a reservation's.
OWNER = "blazar:owner"

#: Metadata of a reservation's pool: the door. Absent or OPENED lets the owner in; all else is shut.
OPEN = "holdfast:open"
OPENED = "yes"
CLOSED = "no"

#: Metadata of a pool, any value: its hosts are kept for reservations like those of the free pool.
#: For a pool that hosts never leave: Nova's scheduler may miss one of two changes made to an
#: aggregate at the same moment, and then believe that a host between two pools is in neither.
KEPT = "holdfast:kept"
KEPT_POOL = "holdfast"

#: Metadata of the pool of a capacity reservation (slots on hosts that stay in the free pool).
SLOTS = "reservation"

#: Extra spec of the flavor of a capacity reservation: the reservation's id.
SLOTS_SPEC = "aggregate_instance_extra_specs:reservation"

#: Metadata of the pool of a leased server: the server's id. The pool's host keeps room for it, and
#: stays in the free pool.
SERVER = "holdfast:server"

#: And how large it is: vCPUs, MiB of memory, GB of root disk, joined by commas. Resized beyond that
#: the server would take what others hold of the host.
SIZE = "holdfast:size"

#: Extra spec of flavors whose servers give way when their host is reserved, if configured so.
PREEMPTIBLE_SPEC = "blazar:preemptible"

#: Pools of host reservations made by Blazar itself have an availability zone named like this.
ZONE = "availability_zone"
ZONE_PREFIXES = ("blazar_", "blazar:")
