# SPDX-License-Identifier: Apache-2.0
"""[recovery]: recovery of failed hosts and guests, its limits and guards.

All options can change at run time: edit the file and send SIGHUP.
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
        help=f"Steps of your own that run {when} one of ours: `move:mail`, where mail is an entry"
        " point of holdfast.recovery_steps. Ours are, of a host: fence, tell, repair, prepare,"
        " move, verify; of a guest: stop, start, confirm, elsewhere; of a process: disable,"
        " confirm; of all: guards, report.",
    )


OPTS = [
    _b("dry_run", False, "Decide and record, and touch nothing."),
    _s("duplicate_interval_s", 180.0, "A report like one that is being worked on is a duplicate."),
    _s("give_up_s", 86_400.0, "A recovery that has not ended by then has failed.", 60.0),
    # selection of servers
    _b(
        "evacuate_all",
        True,
        "Move all servers of a dead host but those with ha_key false; off: those with ha_key true.",
    ),
    _b(
        "restart_all",
        False,
        "Restart every guest that dies but those with ha_key false; off: those with ha_key true.",
    ),
    cfg.StrOpt(
        "ha_key",
        default="HA_Enabled",
        mutable=True,
        help="Whether a server is kept running, in the metadata of the server, its image, its "
        "flavor or an aggregate of its host, in this order: true comes first, or alone; false is "
        "left alone, whatever evacuate_all and restart_all say.",
    ),
    cfg.StrOpt(
        "priority_key",
        default="HA_Priority",
        mutable=True,
        help="A number in a server's metadata: the higher the sooner it is moved.",
    ),
    cfg.StrOpt(
        "group_key",
        default="HA_Group",
        mutable=True,
        help="Servers with the same word here in their metadata are moved together.",
    ),
    cfg.ListOpt(
        "leave_names",
        default=["amphora-*"],
        mutable=True,
        help="Servers with such names are left alone, of all hosts: who made them replaces them.",
    ),
    _b("ignore_error_state", False, "Leave servers in ERROR where they are."),
    # parallelism and timeouts
    _n("parallel_moves", 32, "Servers under way at once, of all incidents together.", 1),
    _n("parallel_per_target", 10, "Servers under way at once to one host that we name.", 1),
    _s("move_timeout_s", 300.0, "One attempt to move a server may take so long.", 1.0),
    _s("move_give_up_s", 3600.0, "A server that was not moved by then stays.", 1.0),
    _s("move_pause_s", 1.0, "First pause after a failed attempt; doubles, to a minute.", 0.05),
    _s(
        "migrate_away_rest_s",
        3600.0,
        "A server that an alarm has moved away is not moved by another one for so long: one that is"
        " busy wherever it is would never rest. 0: at once.",
    ),
    _s("stop_timeout_s", 180.0, "How long a guest may take to be stopped.", 1.0),
    _s("start_timeout_s", 60.0, "How long a server may take to run.", 1.0),
    _s("repair_wait_s", 5.0, "How long servers wait until reservations have other hosts."),
    # votes
    _n(
        "host_votes",
        1,
        "So many registered host monitors at least must say that a host has failed. In any case a"
        " majority of those that see must, and 2 where 3 or more are registered.",
        1,
    ),
    cfg.StrOpt(
        "heartbeat_network",
        default="management",
        mutable=True,
        help="The network of the HA matrix over which agents' heartbeats and Nova's reports come: a"
        " heartbeat contradicts the failure of a host only where the failure includes it.",
    ),
    _s(
        "nova_report_interval_s",
        10.0,
        "report_interval of nova-compute: without an agent, a report that nobody else confirms"
        " waits for so long, and 2 s, whether Nova hears of the host.",
        0.1,
    ),
    _s(
        "report_max_age_s",
        600.0,
        "A notification that was generated earlier than so long before it came in opens no incident"
        " by itself: the host's agent, Nova, the monitors and its power are asked first.",
        1.0,
    ),
    # guards
    _n(
        "guest_budget",
        3,
        "A guest is restarted so often at once, then once per guest_window_s / guest_budget.",
    ),
    _s("guest_window_s", 3600.0, "See guest_budget.", 1.0),
    _n(
        "guest_restarts_here",
        0,
        "So often of these where it is; after that on another host. 0: always where it is, unless "
        "that fails.",
    ),
    _n("host_budget", 3, "A host is recovered so often per host_window_s."),
    _s("host_window_s", 3600.0, "See host_budget.", 1.0),
    _s("slow_start_s", 10.0, "Some of a failure domain is down: one host per so long."),
    _n("slow_burst", 3, "So many of them at once.", 1),
    _s("slower_start_s", 100.0, "Much of a failure domain is down: one host per so long."),
    # evidence
    _s(
        "watchdog_s",
        0.0,
        "Hosts reset themselves by a watchdog: so long after a host was last seen it is sure to be"
        " off. 0: there is no such watchdog.",
    ),
    _n("fence_escalate_after", 3, "So many failed attempts to fence, and people are called.", 1),
    cfg.StrOpt(
        "disable_reason",
        default="Holdfast: the host failed",
        mutable=True,
        help="What Nova shows as the reason why a service is disabled.",
    ),
    # return of a host
    _b("bring_back", True, "Put a host that came back into use again."),
    _s("bring_back_after_s", 60.0, "It must have been well for so long."),
    _b("move_back", False, "And move its servers back, by live migration."),
    cfg.Opt(
        "power_on_after",
        type=types.Dict(types.String(regex=r"^(never|empty|[1-9][0-9]{0,5})$")),
        default={},
        mutable=True,
        help="When a host that Holdfast fenced is switched on again, by the name or id of its"
        " segment: `never`; `empty`, once no server is left on it; or a number of minutes after its"
        " power read off, also while servers of it wait for room elsewhere: they start in place."
        " `*` stands for all other segments; never where none is named. Example:"
        " `north:empty,south:30,*:never`.",
    ),
    _b("add_spare_to_aggregates", False, "A spare host joins the aggregates of the failed one."),
    _steps("steps_before", "before"),
    _steps("steps_after", "after"),
    _steps("steps_instead", "instead of"),
]
