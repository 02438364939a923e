# SPDX-License-Identifier: Apache-2.0
"""Access policy by oslo.policy: default rules for every route; policy.yaml overrides the defaults.

Roles: reader sees its own project, member reserves for its project, service reports observations,
admin does the rest. All use project-scoped tokens. For objects of another project handlers return
404.
"""

import logging
import threading
from typing import Any

from oslo_config import cfg
from oslo_policy import policy

from holdfast.api import tokens
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.runtime.clock import Clock

LOG = logging.getLogger(__name__)

ADMIN = "role:admin"
SERVICE = "role:service or role:admin"
#: The agent of a host. Only the host's token gives the role agent; handlers accept the token for
#: that host only.
AGENT = f"role:agent or {SERVICE}"
#: A host monitor. Only the monitor's token gives the role monitor; handlers accept the token for
#: that monitor's name only.
MONITOR = f"role:monitor or {SERVICE}"
MEMBER = "role:member or role:manager or role:admin"
READER = "role:reader or role:member or role:manager or role:admin"


def _rule(name: str, check: str, text: str, *operations: str) -> policy.DocumentedRuleDefault:
    paths: list[Any] = [dict(zip(("method", "path"), o.split(), strict=True)) for o in operations]
    return policy.DocumentedRuleDefault(name, check, text, paths, scope_types=["project"])


_LEASES = "/reservation/v1/leases"
_HOSTS = "/reservation/v1/os-hosts"
_ADDRESSES = "/reservation/v1/floatingips"
_SEGMENTS = "/instance-ha/v1/segments"
_MEMBERS = f"{_SEGMENTS}/{{segment_id}}/hosts"
_REPORTS = "/instance-ha/v1/notifications"
_PARTS = "/instance-ha/v1/extensions"
_INCIDENTS = "/holdfast/v1/incidents"
_ALARM_RULES = "/holdfast/v1/alarm-rules"
_ALARMS = "/holdfast/v1/alarms"

RULES = [
    policy.RuleDefault("context_is_admin", ADMIN, "Read and change the objects of every project."),
    policy.RuleDefault(
        "console:look", READER, "Read pages of the console.", scope_types=["project"]
    ),
    _rule("reservation:lease:list", READER, "List leases", f"GET {_LEASES}"),
    _rule("reservation:lease:show", READER, "Show a lease", f"GET {_LEASES}/{{lease_id}}"),
    _rule("reservation:lease:create", MEMBER, "Create a lease", f"POST {_LEASES}"),
    _rule("reservation:lease:update", MEMBER, "Update a lease", f"PUT {_LEASES}/{{lease_id}}"),
    _rule("reservation:lease:delete", MEMBER, "Delete a lease", f"DELETE {_LEASES}/{{lease_id}}"),
    _rule("reservation:host:list", ADMIN, "List hosts", f"GET {_HOSTS}"),
    _rule("reservation:host:show", ADMIN, "Show a host", f"GET {_HOSTS}/{{host_id}}"),
    _rule("reservation:host:create", ADMIN, "Enrol a host", f"POST {_HOSTS}"),
    _rule(
        "reservation:host:update",
        ADMIN,
        "Update the properties of a host",
        f"PUT {_HOSTS}/{{host_id}}",
    ),
    _rule("reservation:host:delete", ADMIN, "Withdraw a host", f"DELETE {_HOSTS}/{{host_id}}"),
    _rule(
        "reservation:host:allocations",
        ADMIN,
        "List allocations of hosts, with reservation and time",
        f"GET {_HOSTS}/allocations",
        f"GET {_HOSTS}/{{host_id}}/allocation",
    ),
    _rule("reservation:property:list", READER, "List properties", f"GET {_HOSTS}/properties"),
    _rule(
        "reservation:property:update",
        ADMIN,
        "Make a property private or public",
        f"PATCH {_HOSTS}/properties/{{name}}",
    ),
    _rule("reservation:floatingip:list", READER, "List floating IPs", f"GET {_ADDRESSES}"),
    _rule(
        "reservation:floatingip:show",
        READER,
        "Show a floating IP",
        f"GET {_ADDRESSES}/{{floatingip_id}}",
    ),
    _rule("reservation:floatingip:create", ADMIN, "Enrol a floating IP", f"POST {_ADDRESSES}"),
    _rule(
        "reservation:floatingip:delete",
        ADMIN,
        "Withdraw a floating IP",
        f"DELETE {_ADDRESSES}/{{floatingip_id}}",
    ),
    _rule("instance_ha:extension:list", ADMIN, "List the contract's parts", f"GET {_PARTS}"),
    _rule(
        "instance_ha:extension:show",
        ADMIN,
        "Show a part of the contract",
        f"GET {_PARTS}/{{alias}}",
    ),
    _rule("instance_ha:segment:list", ADMIN, "List segments", f"GET {_SEGMENTS}"),
    _rule("instance_ha:segment:show", ADMIN, "Show a segment", f"GET {_SEGMENTS}/{{segment_id}}"),
    _rule("instance_ha:segment:create", ADMIN, "Create a segment", f"POST {_SEGMENTS}"),
    _rule(
        "instance_ha:segment:update", ADMIN, "Update a segment", f"PUT {_SEGMENTS}/{{segment_id}}"
    ),
    _rule(
        "instance_ha:segment:delete",
        ADMIN,
        "Delete a segment",
        f"DELETE {_SEGMENTS}/{{segment_id}}",
    ),
    _rule("instance_ha:host:list", ADMIN, "List the hosts of a segment", f"GET {_MEMBERS}"),
    _rule(
        "instance_ha:host:show", ADMIN, "Show a host of a segment", f"GET {_MEMBERS}/{{host_id}}"
    ),
    _rule("instance_ha:host:create", ADMIN, "Add a host to a segment", f"POST {_MEMBERS}"),
    _rule(
        "instance_ha:host:update",
        ADMIN,
        "Update a host of a segment",
        f"PUT {_MEMBERS}/{{host_id}}",
    ),
    _rule(
        "instance_ha:host:delete",
        ADMIN,
        "Remove a host from a segment",
        f"DELETE {_MEMBERS}/{{host_id}}",
    ),
    _rule("instance_ha:notification:list", ADMIN, "List notifications", f"GET {_REPORTS}"),
    _rule(
        "instance_ha:notification:show",
        ADMIN,
        "Show a notification and the progress of its recovery",
        f"GET {_REPORTS}/{{notification_id}}",
    ),
    _rule("instance_ha:notification:create", SERVICE, "Report a failure", f"POST {_REPORTS}"),
    _rule(
        "instance_ha:vmove:list",
        ADMIN,
        "List the server moves off a failed host",
        f"GET {_REPORTS}/{{notification_id}}/vmoves",
    ),
    _rule(
        "instance_ha:vmove:show",
        ADMIN,
        "Show a server move off a failed host",
        f"GET {_REPORTS}/{{notification_id}}/vmoves/{{vmove_id}}",
    ),
    _rule(
        "holdfast:availability:show",
        READER,
        "Show free capacity over time",
        "GET /holdfast/v1/availability",
    ),
    _rule(
        "holdfast:observation:create",
        f"role:monitor or {AGENT}",
        "Report observations of a monitor or an agent",
        "POST /holdfast/v1/observations",
    ),
    _rule(
        "holdfast:monitor:report",
        MONITOR,
        "Report the complete view of a host monitor",
        "PUT /holdfast/v1/monitors/{observer}",
    ),
    _rule(
        "holdfast:monitor:register",
        ADMIN,
        "Register a host monitor: grant a vote and issue a token",
        "POST /holdfast/v1/monitors",
    ),
    _rule(
        "holdfast:monitor:unregister",
        ADMIN,
        "Unregister a host monitor: revoke its vote and its token",
        "DELETE /holdfast/v1/monitors/{observer}",
    ),
    _rule(
        "holdfast:observation:list",
        SERVICE,
        "List observations of monitors and agents",
        "GET /holdfast/v1/observations",
    ),
    _rule(
        "holdfast:reservation:replace",
        ADMIN,
        "Replace a host of a reservation that has not started",
        "POST /holdfast/v1/leases/{lease_id}/reservations/{reservation_id}/replace-host",
    ),
    _rule(
        "holdfast:lease:acknowledge",
        MEMBER,
        "Acknowledge that repair changed the resources of a lease",
        "POST /holdfast/v1/leases/{lease_id}/acknowledge",
    ),
    _rule(
        "holdfast:repair:plan",
        ADMIN,
        "Preview repair and recovery, also for further host failures",
        "POST /holdfast/v1/repair/plan",
        "POST /holdfast/v1/what-if",
    ),
    _rule(
        "holdfast:repair:run",
        ADMIN,
        "Repair now, or approve a held repair",
        "POST /holdfast/v1/repair",
    ),
    _rule(
        "holdfast:host:list",
        ADMIN,
        "List host status and the reports of monitors",
        "GET /holdfast/v1/hosts",
        "GET /holdfast/v1/hosts/health",
        "GET /holdfast/v1/hosts/{host}/health",
    ),
    _rule(
        "holdfast:host:samples",
        ADMIN,
        "Read live metrics of a host and its guests, and request new samples",
        "GET /holdfast/v1/hosts/{host}/samples",
        "POST /holdfast/v1/hosts/{host}/samples",
    ),
    _rule(
        "holdfast:host:expected",
        AGENT,
        "List the servers expected on a host; agents: their own host",
        "GET /holdfast/v1/hosts/{host}/expected",
    ),
    _rule(
        "holdfast:monitor:list",
        ADMIN,
        "List host monitors and show the HA matrix",
        "GET /holdfast/v1/monitors",
        "GET /holdfast/v1/matrix",
    ),
    _rule("holdfast:agent:list", ADMIN, "List agents and their state", "GET /holdfast/v1/agents"),
    _rule(
        "holdfast:agent:report",
        AGENT,
        "Send the heartbeat of an agent; agents: their own host",
        "PUT /holdfast/v1/agents/{host}",
    ),
    _rule(
        "holdfast:agent:samples",
        AGENT,
        "Send live metrics of a host; agents: their own host",
        "PUT /holdfast/v1/agents/{host}/samples",
    ),
    _rule(
        "holdfast:agent:rules",
        AGENT,
        "Read the merged alarm rules of a host; agents: their own host",
        "GET /holdfast/v1/agents/{host}/alarm-rules",
    ),
    _rule("holdfast:alarm:list", READER, "List alarms", f"GET {_ALARMS}"),
    _rule("holdfast:alarm:show", READER, "Show an alarm", f"GET {_ALARMS}/{{alarm_id}}"),
    _rule(
        "holdfast:alarm:answer",
        ADMIN,  # operators write all alarm rules: an owner must not switch off an alarm about him
        "Acknowledge, mute or end an alarm",
        f"POST {_ALARMS}/{{alarm_id}}/ack",
        f"POST {_ALARMS}/{{alarm_id}}/mute",
        f"POST {_ALARMS}/{{alarm_id}}/end",
    ),
    _rule("holdfast:alarm_rules:list", ADMIN, "List alarm rules", f"GET {_ALARM_RULES}"),
    _rule(
        "holdfast:alarm_rules:show",
        ADMIN,
        "Show a document of alarm rules and earlier versions",
        f"GET {_ALARM_RULES}/{{rules_name}}",
        f"GET {_ALARM_RULES}/{{rules_name}}/history",
    ),
    _rule(
        "holdfast:alarm_rules:preview",
        ADMIN,
        "Preview alarm rules on the samples of the last hour",
        "POST /holdfast/v1/alarm-rules-preview",
    ),
    _rule(
        "holdfast:alarm_rules:update",
        ADMIN,
        "Create, update, roll back or delete alarm rules",
        f"PUT {_ALARM_RULES}/{{rules_name}}",
        f"POST {_ALARM_RULES}/{{rules_name}}/rollback",
        f"DELETE {_ALARM_RULES}/{{rules_name}}",
    ),
    _rule(
        "holdfast:failover:list",
        ADMIN,
        "List spare hosts per segment",
        "GET /holdfast/v1/failover",
    ),
    _rule(
        "holdfast:failover:update",
        ADMIN,
        "Set the number of spare hosts of a segment",
        "PUT /holdfast/v1/failover/{segment_id}",
    ),
    _rule("holdfast:incident:list", ADMIN, "List incidents", f"GET {_INCIDENTS}"),
    _rule(
        "holdfast:incident:show",
        ADMIN,
        "Show an incident and its timeline",
        f"GET {_INCIDENTS}/{{incident_id}}",
        f"GET {_INCIDENTS}/{{incident_id}}/explanation",
    ),
    _rule(
        "holdfast:incident:retry",
        ADMIN,
        "Retry a failed or aborted recovery",
        f"POST {_INCIDENTS}/{{incident_id}}/retry",
    ),
    _rule(
        "holdfast:incident:abort",
        ADMIN,
        "Abort the recovery of an incident",
        f"POST {_INCIDENTS}/{{incident_id}}/abort",
    ),
    _rule(
        "holdfast:incident:confirm-off",
        ADMIN,
        "Confirm that a host is off: recovery evacuates its servers without a fence",
        f"POST {_INCIDENTS}/{{incident_id}}/confirm-off",
    ),
    _rule(
        "holdfast:incident:approve",
        ADMIN,
        "Approve a mass failure: recovery held by the mass-failure guard continues",
        "POST /holdfast/v1/approvals",
    ),
    _rule("holdfast:pause:list", ADMIN, "List pauses of recovery", "GET /holdfast/v1/pauses"),
    _rule("holdfast:pause:create", ADMIN, "Pause recovery", "POST /holdfast/v1/pauses"),
    _rule("holdfast:pause:delete", ADMIN, "Resume recovery", "DELETE /holdfast/v1/pauses"),
    _rule(
        "holdfast:maintenance:list",
        ADMIN,
        "List maintenance windows",
        "GET /holdfast/v1/maintenance-windows",
    ),
    _rule(
        "holdfast:maintenance:create",
        ADMIN,
        "Create a maintenance window: failures within start no recovery",
        "POST /holdfast/v1/maintenance-windows",
    ),
    _rule(
        "holdfast:maintenance:delete",
        ADMIN,
        "End a maintenance window",
        "DELETE /holdfast/v1/maintenance-windows/{window_id}",
    ),
    _rule(
        "holdfast:operation:list",
        ADMIN,
        "List durable work",
        "GET /holdfast/v1/operations",
        "GET /holdfast/v1/operations/{operation_id}",
    ),
    _rule(
        "holdfast:audit:list",
        READER,
        "List audit entries of the own project; admins: of all projects",
        "GET /holdfast/v1/audit",
    ),
    _rule("holdfast:sim:show", ADMIN, "Show the simulated cloud", "GET /holdfast/v1/sim"),
    _rule(
        "holdfast:sim:change",
        ADMIN,
        "Inject faults into the simulated cloud, and end them",
        "PUT /holdfast/v1/sim/settings",
        "POST /holdfast/v1/sim/hosts/{name}/fail",
        "POST /holdfast/v1/sim/hosts/{name}/recover",
        "POST /holdfast/v1/sim/hosts/{name}/cut",
        "POST /holdfast/v1/sim/hosts/{name}/reconnect",
        "POST /holdfast/v1/sim/servers/{ref}/crash",
    ),
]


def list_rules() -> list[Any]:
    """Return all rules, for oslopolicy-sample-generator."""
    return RULES


#: Prefixes of rules in a policy file written for Blazar or Masakari. oslo.policy ignores unknown
#: names, and the operator would believe in rules that nobody checks.
FOREIGN = ("blazar:", "os_masakari_api:")

#: oslo.policy raises these for a file that is not YAML, holds no rules, or cannot be read.
_BROKEN = (ValueError, TypeError, AttributeError, cfg.Error, OSError)
_RELOAD_EVERY_S = 1.0


class Policy:
    """The rules in force: the defaults above and the operator's policy.yaml.

    An invalid file at the start raises Unavailable. If the file becomes invalid later, the policy
    logs an error and keeps the previous rules. The policy checks the file once a second instead
    of twice per request.
    """

    def __init__(self, conf: cfg.ConfigOpts, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._enforcer = policy.Enforcer(conf)
        self._enforcer.suppress_deprecation_warnings = True
        self._enforcer.register_defaults(RULES)
        try:
            self._load()
        except _BROKEN as error:
            raise Unavailable(f"[oslo_policy] policy_file cannot be used: {error}") from error

    def is_admin(self, credentials: dict[str, Any]) -> bool:
        return self._allows("context_is_admin", {}, credentials)

    def allows(self, rule: str, credentials: dict[str, Any]) -> bool:
        return self._allows(rule, {"project_id": credentials["project_id"]}, credentials)

    def check(self, rule: str, credentials: dict[str, Any]) -> None:
        if not self.allows(rule, credentials):
            raise Forbidden(f"Policy doesn't allow {rule} to be performed by your roles")

    def _allows(self, rule: str, target: dict[str, Any], credentials: dict[str, Any]) -> bool:
        whole = tokens.without_monitor_role(tokens.without_agent_role(credentials))
        with self._lock:  # a reload clears the rules before it loads the new ones
            if self._clock.monotonic() >= self._reload_at:
                try:
                    self._load()
                except _BROKEN as error:
                    LOG.error("[oslo_policy] policy_file: %s; the old rules stay", error)
            return bool(self._enforcer.authorize(rule, target, whole))

    def _load(self) -> None:
        self._reload_at = self._clock.monotonic() + _RELOAD_EVERY_S
        self._enforcer.use_conf = True
        try:
            self._enforcer.load_rules()
        finally:
            self._enforcer.use_conf = False  # until the next reload
        foreign = [name for name in self._enforcer.file_rules if name.startswith(FOREIGN)]
        if foreign:
            raise ValueError(
                f"{', '.join(sorted(foreign))}: Holdfast has no such rule; write the names of"
                " docs/reference/routes.md (reservation:lease:create for blazar:leases:post)"
            )
