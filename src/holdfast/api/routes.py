# SPDX-License-Identifier: Apache-2.0
"""The whole API on one screen: method, path, handler, policy rule, what it does."""

from collections.abc import Sequence

from holdfast import console
from holdfast.api import health, versions
from holdfast.api.ask import Ask, Reply, Route
from holdfast.api.holdfast_v1 import (
    availability,
    errors,
    observations,
    openapi,
    operations,
    repair,
    reservations,
    sim,
)
from holdfast.api.holdfast_v1.openapi import many, one
from holdfast.api.metrics import Metrics
from holdfast.api.reservation_v1 import floatingips, hosts, leases

R, H = "/reservation/v1", "/holdfast/v1"

# fmt: off
ROUTES: Sequence[Route] = (
    # version documents: open to everybody
    Route("GET", "/reservation", versions.reservation_root, None, "Versions", status=300),
    Route("GET", "/reservation/versions", versions.reservation_root, None, "Versions", status=300),
    Route("GET", R, versions.reservation_v1, None, "Reservation v1"),
    Route("GET", "/instance-ha", versions.instance_ha_root, None, "Versions"),
    Route("GET", "/instance-ha/v1", versions.instance_ha_v1, None, "Instance HA v1"),
    Route("GET", "/holdfast", versions.holdfast_root, None, "Versions"),
    Route("GET", H, versions.holdfast_v1, None, "Holdfast v1",
          reply=one("version", {"type": "object"})),

    # reservation v1
    Route("GET", f"{R}/leases", leases.index, "reservation:lease:list", "List leases"),
    Route("POST", f"{R}/leases", leases.create, "reservation:lease:create", "Create a lease",
          schema=leases.CREATE, status=201),
    Route("GET", f"{R}/leases/{{lease_id}}", leases.show, "reservation:lease:show", "Show a lease"),
    Route("PUT", f"{R}/leases/{{lease_id}}", leases.update, "reservation:lease:update",
          "Update a lease", schema=leases.UPDATE),
    Route("DELETE", f"{R}/leases/{{lease_id}}", leases.delete, "reservation:lease:delete",
          "Delete a lease", status=204),
    Route("GET", f"{R}/os-hosts", hosts.index, "reservation:host:list", "List hosts"),
    Route("POST", f"{R}/os-hosts", hosts.create, "reservation:host:create", "Enrol a host",
          schema=hosts.ENROL, status=201),
    Route("GET", f"{R}/os-hosts/allocations", hosts.allocations, "reservation:host:allocations",
          "Who holds hosts when"),
    Route("GET", f"{R}/os-hosts/properties", hosts.properties, "reservation:property:list",
          "List properties"),
    Route("PATCH", f"{R}/os-hosts/properties/{{name}}", hosts.set_property,
          "reservation:property:update", "Make a property private", schema=hosts.PROPERTY),
    Route("GET", f"{R}/os-hosts/{{host_id}}", hosts.show, "reservation:host:show", "Show a host"),
    Route("PUT", f"{R}/os-hosts/{{host_id}}", hosts.update, "reservation:host:update",
          "Set and unset extra capabilities", schema=hosts.DESCRIBE),
    Route("DELETE", f"{R}/os-hosts/{{host_id}}", hosts.delete, "reservation:host:delete",
          "Withdraw a host", status=204),
    Route("GET", f"{R}/os-hosts/{{host_id}}/allocation", hosts.allocation,
          "reservation:host:allocations", "Who holds one host when"),
    Route("GET", f"{R}/floatingips", floatingips.index, "reservation:floatingip:list",
          "List floating IPs"),
    Route("POST", f"{R}/floatingips", floatingips.create, "reservation:floatingip:create",
          "Enrol a floating IP", schema=floatingips.ENROL, status=201),
    Route("GET", f"{R}/floatingips/{{floatingip_id}}", floatingips.show,
          "reservation:floatingip:show", "Show a floating IP"),
    Route("DELETE", f"{R}/floatingips/{{floatingip_id}}", floatingips.delete,
          "reservation:floatingip:delete", "Withdraw a floating IP", status=204),

    # our own
    Route("GET", f"{H}/availability", availability.show, "holdfast:availability:show",
          "What could be had, and when", query=availability.QUERY, needs=["reservation"],
          reply=one("availability", availability.VIEW)),
    Route("POST", f"{H}/observations", observations.create, "holdfast:observation:create",
          "Report what a monitor saw", schema=observations.SCHEMA, status=202,
          reply=one("observation", observations.VIEW)),
    Route("GET", f"{H}/observations", observations.index, "holdfast:observation:list",
          "List what monitors saw", query=observations.QUERY,
          reply=many("observations", observations.VIEW)),
    Route("POST", f"{H}/leases/{{lease_id}}/reservations/{{reservation_id}}/replace-host",
          reservations.replace_host, "holdfast:reservation:replace",
          "Give a reservation that has not started another host", schema=reservations.REPLACE,
          status=204),
    Route("POST", f"{H}/leases/{{lease_id}}/acknowledge", repair.acknowledge,
          "holdfast:lease:acknowledge", "Say that it was seen that a lease got something else",
          status=204),
    Route("POST", f"{H}/repair/plan", repair.plan, "holdfast:repair:plan",
          "What a repair would do, also if more hosts failed", schema=repair.PLAN,
          reply=one("repair", repair.VIEW)),
    Route("POST", f"{H}/repair", repair.run, "holdfast:repair:run",
          "Repair now, or approve what is held", schema=repair.RUN, status=202,
          reply=one("repair", repair.VIEW)),
    Route("GET", f"{H}/operations", operations.index, "holdfast:operation:list",
          "List durable work", query=operations.QUERY, reply=many("operations", operations.VIEW)),
    Route("GET", f"{H}/errors/{{code}}", errors.show, None, "What an error code means",
          query={}, reply=one("error", errors.VIEW)),
    Route("GET", f"{H}/sim", sim.show, "holdfast:sim:show", "The simulated world",
          query={}, reply=one("sim", {"type": "object"})),
    Route("PUT", f"{H}/sim/settings", sim.change, "holdfast:sim:change",
          "Change latency and faults", schema=sim.SETTINGS,
          reply=one("settings", {"type": "object"})),
    Route("POST", f"{H}/sim/hosts/{{name}}/fail", sim.fail_host, "holdfast:sim:change",
          "Take the power from a host", status=202, reply=sim.SAID),
    Route("POST", f"{H}/sim/hosts/{{name}}/recover", sim.recover_host, "holdfast:sim:change",
          "Power a host on again", status=202, reply=sim.SAID),
    Route("POST", f"{H}/sim/servers/{{ref}}/crash", sim.crash_server, "holdfast:sim:change",
          "Crash a server", status=202, reply=sim.SAID),
    Route("GET", "/", console.front_page, None, "Console"),
)
# fmt: on


def table(metrics: Metrics) -> Sequence[Route]:
    """Every route of this process."""

    def show(_ask: Ask) -> Reply:
        return Reply(openapi.document(routes))

    document = Route("GET", f"{H}/openapi.json", show, None, "This document")
    routes = (*ROUTES, *health.routes(metrics), document)
    return routes
