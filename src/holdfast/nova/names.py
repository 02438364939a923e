# SPDX-License-Identifier: Apache-2.0
"""Names shared with Nova: metadata of aggregates and servers, extra specs, scheduler hints.

Holdfast uses Blazar's name wherever there is one, so that Blazar's leases, filter and users can
move to Holdfast unchanged. A pool is a host aggregate.
"""

#: Scheduler hint of a request: ids of the reservations whose hosts the server may use.
HINT = "reservation"

#: Scheduler hint of a request: the lease for the new server itself.
LEASE_HINT = "lease_params"

#: Metadata of a server: the wished lease, until the lease exists.
WISH = "holdfast:lease"

#: The resource type of a lease on one server.
SERVER_LEASE = "virtual:server"

#: The pool of hosts that can be reserved, unless configured otherwise.
FREEPOOL = "freepool"

#: The pool of an ended reservation is called this plus the reservation's id until its deletion.
CLOSED_POOL = "holdfast-closed-"

#: Metadata of a reservation's pool: the project that owns it. Marks a pool as a reservation's.
OWNER = "blazar:owner"

#: Metadata of a reservation's pool: whether the owner may use it. Absent or OPENED: yes; other
#: values: no.
OPEN = "holdfast:open"
OPENED = "yes"
CLOSED = "no"

#: Metadata of a pool, any value: its hosts are kept for reservations like those of the free pool.
#: Hosts never leave this pool: Nova's scheduler may miss one of two changes made to an aggregate at
#: the same moment, and then believe that a host that moves between two pools is in neither.
KEPT = "holdfast:kept"
KEPT_POOL = "holdfast"

#: Metadata of the pool of a capacity reservation (slots on hosts that stay in the free pool).
SLOTS = "reservation"

#: Extra spec of the flavor of a capacity reservation: the reservation's id.
SLOTS_SPEC = "aggregate_instance_extra_specs:reservation"

#: Metadata of the pool of a leased server: the server's id. The pool's host keeps room for it, and
#: stays in the free pool.
SERVER = "holdfast:server"

#: Metadata of the same pool: the server's size as vCPUs, MiB of memory and GB of root disk, joined
#: by commas. A server resized beyond that would use room that others hold on the host.
SIZE = "holdfast:size"

#: Extra spec of preemptible flavors: their servers yield when the host is reserved, if enabled.
PREEMPTIBLE_SPEC = "blazar:preemptible"

#: Pools of host reservations made by Blazar itself have an availability zone named like this.
ZONE = "availability_zone"
ZONE_PREFIXES = ("blazar_", "blazar:")
