# SPDX-License-Identifier: Apache-2.0
"""The whole API on one screen: method, path, handler, policy rule, what it does."""

from collections.abc import Sequence

from holdfast import console
from holdfast.api import health, versions
from holdfast.api.ask import Ask, Reply, Route
from holdfast.api.holdfast_v1 import (
    availability,
    errors,
    explanation,
    failover,
    incidents,
    observations,
    openapi,
    operations,
    pauses,
    repair,
    reservations,
    silences,
    sim,
)
from holdfast.api.holdfast_v1 import hosts as standings
from holdfast.api.holdfast_v1.openapi import many, one
from holdfast.api.instance_ha_v1 import extensions, notifications, segments, vmoves
from holdfast.api.instance_ha_v1 import hosts as segment_hosts
from holdfast.api.metrics import Metrics
from holdfast.api.reservation_v1 import floatingips, hosts, leases

R, H = "/reservation/v1", "/holdfast/v1"
HA = "/instance-ha/v1"

# fmt: off
ROUTES: Sequence[Route] = (
    # version documents: open to everybody
    Route("GET", "/reservation", versions.reservation_root, None, "Versions", status=300),
    Route("GET", "/reservation/versions", versions.reservation_root, None, "Versions", status=300),
    Route("GET", R, versions.reservation_v1, None, "Reservation v1"),
    Route("GET", "/instance-ha", versions.instance_ha_root, None, "Versions"),
    Route("GET", HA, versions.instance_ha_v1, None, "Instance HA v1"),
    Route("GET", "/instance-ha/healthcheck", health.healthcheck, None, "Whether it answers"),
    Route("GET", "/instance-ha/{other}", versions.instance_ha_choices, None, "Versions",
          status=300),
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

    # instance HA v1; each also as /instance-ha/v1/PROJECT/…
    Route("GET", f"{HA}/extensions", extensions.index, "instance_ha:extension:list",
          "List the parts of this contract"),
    Route("GET", f"{HA}/extensions/{{alias}}", extensions.show, "instance_ha:extension:show",
          "Show a part of this contract"),
    Route("GET", f"{HA}/segments", segments.index, "instance_ha:segment:list", "List segments"),
    Route("POST", f"{HA}/segments", segments.create, "instance_ha:segment:create",
          "Make a segment", schema=segments.CREATE, status=201),
    Route("GET", f"{HA}/segments/{{segment_id}}", segments.show, "instance_ha:segment:show",
          "Show a segment"),
    Route("PUT", f"{HA}/segments/{{segment_id}}", segments.update, "instance_ha:segment:update",
          "Change a segment", schema=segments.UPDATE),
    Route("DELETE", f"{HA}/segments/{{segment_id}}", segments.delete, "instance_ha:segment:delete",
          "Delete a segment", status=204),
    Route("GET", f"{HA}/segments/{{segment_id}}/hosts", segment_hosts.index,
          "instance_ha:host:list", "List the hosts of a segment"),
    Route("POST", f"{HA}/segments/{{segment_id}}/hosts", segment_hosts.create,
          "instance_ha:host:create", "Add a host to a segment", schema=segment_hosts.CREATE,
          status=201),
    Route("GET", f"{HA}/segments/{{segment_id}}/hosts/{{host_id}}", segment_hosts.show,
          "instance_ha:host:show", "Show a host of a segment"),
    Route("PUT", f"{HA}/segments/{{segment_id}}/hosts/{{host_id}}", segment_hosts.update,
          "instance_ha:host:update", "Change a host of a segment", schema=segment_hosts.UPDATE),
    Route("DELETE", f"{HA}/segments/{{segment_id}}/hosts/{{host_id}}", segment_hosts.delete,
          "instance_ha:host:delete", "Take a host out of a segment", status=204),
    Route("GET", f"{HA}/notifications", notifications.index, "instance_ha:notification:list",
          "List notifications"),
    Route("POST", f"{HA}/notifications", notifications.create, "instance_ha:notification:create",
          "Report a failure", schema=notifications.CREATE, status=202),
    Route("GET", f"{HA}/notifications/{{notification_id}}", notifications.show,
          "instance_ha:notification:show", "Show a notification and how its recovery goes"),
    Route("GET", f"{HA}/notifications/{{notification_id}}/vmoves", vmoves.index,
          "instance_ha:vmove:list", "List servers that are moved off a dead host"),
    Route("GET", f"{HA}/notifications/{{notification_id}}/vmoves/{{vmove_id}}", vmoves.show,
          "instance_ha:vmove:show", "Show a server that is moved off a dead host"),

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
    Route("GET", f"{H}/hosts", standings.index, "holdfast:host:list",
          "How every host stands, and why", query=standings.QUERY,
          reply=many("hosts", standings.VIEW)),
    Route("GET", f"{H}/failover", failover.index, "holdfast:failover:list",
          "What segments keep free for the case that hosts fail", query={},
          reply=many("failover", failover.VIEW)),
    Route("PUT", f"{H}/failover/{{segment_id}}", failover.keep, "holdfast:failover:update",
          "Say how many hosts a segment keeps free", schema=failover.KEEP,
          reply=one("failover", failover.VIEW)),
    Route("GET", f"{H}/incidents", incidents.index, "holdfast:incident:list",
          "What died, the newest first", query=incidents.QUERY,
          reply=many("incidents", incidents.VIEW)),
    Route("GET", f"{H}/incidents/{{incident_id}}", incidents.show, "holdfast:incident:show",
          "One incident: guards, steps, servers, reports", query={},
          reply=one("incident", incidents.CASE)),
    Route("GET", f"{H}/incidents/{{incident_id}}/explanation", incidents.explain,
          "holdfast:incident:show", "The story of an incident in sentences", query={},
          reply=one("explanation", explanation.VIEW)),
    Route("POST", f"{H}/incidents/{{incident_id}}/retry", incidents.retry,
          "holdfast:incident:retry", "Try again what failed or was aborted",
          schema=incidents.RETRY, status=202, reply=one("incident", incidents.VIEW)),
    Route("POST", f"{H}/incidents/{{incident_id}}/abort", incidents.abort,
          "holdfast:incident:abort", "Begin nothing more for an incident",
          schema=incidents.ORDER, status=202, reply=one("incident", incidents.VIEW)),
    Route("POST", f"{H}/incidents/{{incident_id}}/confirm-off", incidents.confirm_off,
          "holdfast:incident:confirm-off", "Say that the host of an incident is off",
          schema=incidents.ORDER, status=202, reply=one("incident", incidents.VIEW)),
    Route("POST", f"{H}/approvals", pauses.approve, "holdfast:incident:approve",
          "Say that so much did fail: what is held for that goes on", schema=pauses.APPROVE,
          status=202, reply=one("approval", pauses.APPROVAL)),
    Route("GET", f"{H}/pauses", pauses.index, "holdfast:pause:list",
          "Where recovery is paused", query={}, reply=many("pauses", pauses.VIEW)),
    Route("POST", f"{H}/pauses", pauses.pause, "holdfast:pause:create",
          "Pause recovery, everywhere or in a segment", schema=pauses.PAUSE, status=201,
          reply=one("pause", pauses.VIEW)),
    Route("DELETE", f"{H}/pauses", pauses.resume, "holdfast:pause:delete",
          "Let recovery go on", query=pauses.RESUME, status=204),
    Route("GET", f"{H}/silences", silences.index, "holdfast:silence:list",
          "List silences", query={}, reply=many("silences", silences.VIEW)),
    Route("POST", f"{H}/silences", silences.create, "holdfast:silence:create",
          "Leave alone what dies in a window of maintenance", schema=silences.CREATE, status=201,
          reply=one("silence", silences.VIEW)),
    Route("DELETE", f"{H}/silences/{{silence_id}}", silences.delete, "holdfast:silence:delete",
          "End a silence", query={}, status=204),
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
