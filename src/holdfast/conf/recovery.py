# SPDX-License-Identifier: Apache-2.0
"""[recovery], [mass_failure], [fencing]: recovery of failed hosts and guests, limits, power-off.

The options of [recovery] and [mass_failure] can change at run time: edit the file and send SIGHUP.
"""

from oslo_config import cfg, types

GROUP = "recovery"


def _s(name: str, default: float, help_: str, least: float = 0.0) -> cfg.Opt:
    return cfg.FloatOpt(name, default=default, min=least, mutable=True, help=help_)


def _n(name: str, default: int, help_: str, least: int = 0) -> cfg.Opt:
    return cfg.IntOpt(name, default=default, min=least, mutable=True, help=help_)


def _b(name: str, default: bool, help_: str) -> cfg.Opt:
    return cfg.BoolOpt(name, default=default, mutable=True, help=help_)


def _steps(name: str, when: str) -> cfg.Opt:
    return cfg.DictOpt(
        name,
        default={},
        mutable=True,
        help=f"Custom steps that run {when} a built-in step: `move:mail`, where mail is an entry"
        " point of the group holdfast.recovery_steps. Built-in steps of a host: fence, force_down,"
        " repair, prepare, move, verify; of a guest: stop, start, confirm, elsewhere; of a"
        " process: disable, confirm; of all incidents: guards, report.",
    )


OPTS = [
    _b(
        "dry_run",
        False,
        "Decide and record what recovery would do. Holdfast fences, moves and restarts nothing.",
    ),
    _s(
        "duplicate_interval_s",
        180.0,
        "Seconds within which a second report about the same host or guest is a duplicate of "
        "the first.",
    ),
    _s("give_up_s", 86_400.0, "Seconds after which an unfinished recovery counts as failed.", 60.0),
    # selection of servers
    _b(
        "evacuate_all",
        True,
        "Evacuate every server of a dead host, except servers with ha_key false. Off: only "
        "servers with ha_key true.",
    ),
    _b(
        "restart_all",
        False,
        "Restart every guest that dies, except guests with ha_key false. Off: only guests "
        "with ha_key true.",
    ),
    cfg.StrOpt(
        "ha_key",
        default="HA_Enabled",
        mutable=True,
        help="Metadata key that switches recovery of a server on or off. Holdfast reads it from "
        "the server, its image, its flavor and the aggregates of its host, in this order. Servers "
        "with true are recovered first. Servers with false are never recovered, whatever "
        "evacuate_all and restart_all say.",
    ),
    cfg.StrOpt(
        "priority_key",
        default="HA_Priority",
        mutable=True,
        help="Metadata key with the priority of a server, a number. Servers with a higher number "
        "are evacuated earlier.",
    ),
    cfg.StrOpt(
        "group_key",
        default="HA_Group",
        mutable=True,
        help="Metadata key with the group of a server. Servers of the same group are evacuated "
        "together.",
    ),
    cfg.ListOpt(
        "leave_names",
        default=["amphora-*"],
        mutable=True,
        help="Name patterns of servers that Holdfast never recovers, on all hosts, because "
        "another service replaces them (Octavia replaces its amphorae).",
    ),
    _b("ignore_error_state", False, "Leave servers in state ERROR on the failed host."),
    # parallelism and timeouts
    _n("parallel_moves", 32, "Servers that all incidents together evacuate at the same time.", 1),
    _n(
        "parallel_per_target",
        10,
        "Servers that are evacuated at the same time to one target host, when Holdfast "
        "chooses the target.",
        1,
    ),
    _s("move_timeout_s", 300.0, "Seconds that one attempt to evacuate a server may take.", 1.0),
    _s(
        "move_give_up_s",
        3600.0,
        "Seconds after which Holdfast stops trying to evacuate a server.",
        1.0,
    ),
    _s(
        "move_pause_s",
        1.0,
        "Seconds before the second attempt to evacuate a server. The pause doubles with each "
        "attempt, up to 60 s.",
        0.05,
    ),
    _s(
        "migrate_away_rest_s",
        3600.0,
        "Seconds during which a server that an alarm migrated is not migrated by another "
        "alarm, so that a busy server does not wander from host to host. 0: no rest.",
    ),
    _s("stop_timeout_s", 180.0, "Seconds that stopping a guest may take.", 1.0),
    _s("start_timeout_s", 60.0, "Seconds that starting a server may take.", 1.0),
    _s("repair_wait_s", 5.0, "Seconds that evacuation waits for reservations to get other hosts."),
    # votes
    _n(
        "host_votes",
        1,
        "Registered host monitors that must report a host as failed, at least. A majority of "
        "the monitors that see the host must agree in any case, and at least 2 where 3 or more "
        "are registered.",
        1,
    ),
    cfg.StrOpt(
        "heartbeat_network",
        default="manage",
        mutable=True,
        help="Network of the HA matrix that carries heartbeats of agents and reports of "
        "nova-compute, a name of [hostmonitor] networks. A heartbeat contradicts the failure of a "
        "host only if the failure includes this network.",
    ),
    _s(
        "nova_report_interval_s",
        10.0,
        "report_interval of nova-compute. A host without an agent whose failure only one "
        "source reports is not recovered before this time plus 2 s, so that a report of "
        "nova-compute can contradict.",
        0.1,
    ),
    _s(
        "report_max_age_s",
        600.0,
        "Seconds. A notification that was generated earlier than this before its receipt "
        "opens no incident alone: Holdfast first asks the agent, Nova, the host monitors and the "
        "fence device.",
        1.0,
    ),
    # guards
    _n(
        "guest_max_recoveries",
        3,
        "Recoveries of one guest that may follow each other at once. After them one recovery "
        "is allowed per guest_window_s / guest_max_recoveries.",
    ),
    _s("guest_window_s", 3600.0, "Seconds. See guest_max_recoveries.", 1.0),
    _n(
        "guest_restarts_in_place",
        0,
        "Restarts of a guest on its host before Holdfast moves the guest to another host. 0: "
        "always restart on its host, and move only if that fails.",
    ),
    _n("host_max_recoveries", 3, "Recoveries of one host that are allowed within host_window_s."),
    _s("host_window_s", 3600.0, "Seconds. See host_max_recoveries.", 1.0),
    _s(
        "throttle_interval_s",
        10.0,
        "Seconds between the recoveries of two hosts of a failure domain while more than "
        "[mass_failure] free_hosts and less than throttle_ratio of its hosts are down.",
    ),
    _n(
        "throttle_burst", 3, "Hosts of such a failure domain that are recovered without a pause.", 1
    ),
    _s(
        "heavy_throttle_interval_s",
        100.0,
        "The same interval while throttle_ratio or more, and less than hold_ratio, of the "
        "hosts are down.",
    ),
    # evidence
    _s(
        "watchdog_s",
        0.0,
        "Seconds after the last sign of life at which a hardware watchdog has reset an "
        "unreachable host for certain. 0: hosts have no such watchdog.",
    ),
    _n(
        "fence_escalate_after",
        3,
        "Failed attempts to fence a host before Holdfast calls an operator.",
        1,
    ),
    cfg.StrOpt(
        "disable_reason",
        default="Holdfast: the host failed",
        mutable=True,
        help="Reason that Nova shows for the disabled compute service.",
    ),
    # return of a host
    _b("bring_back", True, "Enable the compute service of a host that returned after a failure."),
    _s(
        "bring_back_after_s",
        60.0,
        "Seconds that a returned host must be healthy before bring_back enables it.",
    ),
    _b("move_back", False, "Live-migrate the servers back to a returned host."),
    cfg.Opt(
        "power_on_after",
        type=types.Dict(types.String(regex=r"^(never|empty|[1-9][0-9]{0,5})$")),
        default={},
        mutable=True,
        help="When Holdfast switches a fenced host on again, by segment name or id: `never`; "
        "`empty`, when no server is left on the host; or minutes after its power read off, even "
        "while servers wait for room elsewhere (they start in place). `*` stands for all other "
        "segments; a segment without an entry has `never`. Example: "
        "`north:empty,south:30,*:never`.",
    ),
    _b("add_spare_to_aggregates", False, "Add a spare host to the aggregates of the failed host."),
    _steps("steps_before", "before"),
    _steps("steps_after", "after"),
    _steps("steps_instead", "instead of"),
]


# [mass_failure]: when many hosts fail at once; for recovery and for the repair of reservations.

MASS_FAILURE_GROUP = "mass_failure"
MASS_FAILURE_OPTS = [
    cfg.IntOpt(
        "free_hosts",
        default=2,
        min=0,
        mutable=True,
        help="Failed hosts of a rack that never count as a mass failure (of a zone, where racks "
        "are unknown).",
    ),
    cfg.FloatOpt(
        "throttle_ratio",
        default=0.30,
        min=0.0,
        max=1.0,
        mutable=True,
        help="Share of failed hosts of a rack or zone from which recovery is throttled to "
        "[recovery] heavy_throttle_interval_s.",
    ),
    cfg.FloatOpt(
        "hold_ratio",
        default=0.55,
        min=0.0,
        max=1.0,
        mutable=True,
        help="Share of failed hosts of a rack or zone from which Holdfast holds repair and "
        "recovery until an operator approves: `holdfast recovery approve`, `holdfast repair run "
        "--approve`.",
    ),
]


# [fencing]: how Holdfast powers off a dead host. A separate file lists the fence devices.

FENCING_GROUP = "fencing"
FENCING_OPTS = [
    cfg.StrOpt(
        "devices_file",
        help="YAML file of fence devices: how each host is powered off (docs/install/fencing.md). "
        "The manager reloads the file when it changes. Without it only hosts of the simulated "
        "cloud can be fenced.",
    ),
    cfg.FloatOpt(
        "call_timeout_s",
        default=10.0,
        min=3.0,
        help="Seconds that one call to a fence device may take. The device driver gets 2 s less, "
        "or its own timeout_s if that is shorter.",
    ),
    cfg.StrOpt(
        "agents_dir",
        default="/usr/sbin",
        help="Directory of ClusterLabs' fence agents: fence_ipmilan and others.",
    ),
]
