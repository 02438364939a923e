# SPDX-License-Identifier: Apache-2.0
"""[metrics]: what the agent of a compute host measures, and who looks at it."""

from oslo_config import cfg

GROUP = "metrics"
OPTS = [
    cfg.BoolOpt(
        "enabled",
        default=True,
        help="Whether the agent measures its host and guests (docs/metrics.md). Without rules, "
        "plugins and sinks nothing of it leaves the host. Only guests of libvirt are measured.",
    ),
    cfg.FloatOpt(
        "every_s",
        default=1.0,
        min=0.1,
        max=3600.0,
        help="So often the kernel is asked: processors, network interfaces, the host itself.",
    ),
    cfg.FloatOpt(
        "libvirt_every_s",
        default=30.0,
        min=1.0,
        max=3600.0,
        help="So often libvirt is asked: disks, and what guests do with their memory.",
    ),
    cfg.StrOpt(
        "rules_file",
        help="YAML file of alarm rules (docs/alarms.md). Read again by itself when it changes, and "
        "at SIGHUP. Rules of the same id that are kept centrally, or set by the socket, count "
        "before those of the file. A file that cannot be used leaves the one before it in force.",
    ),
    cfg.ListOpt(
        "groups",
        default=[],
        help="Groups that this host is in, for alarm rules whose `group` names some only. Which "
        "central rules of scope `group:NAME` it gets is for [auth] agent_groups of the API to say.",
    ),
    cfg.StrOpt(
        "plugins_file",
        help="YAML file that names the metric plugins and their configuration "
        "(docs/metric-plugins.md). Read again by itself when it changes. Without it there are "
        "none but those that `holdfast metrics plugins add` adds.",
    ),
    cfg.IntOpt(
        "plugins_memory_mib",
        default=192,
        min=64,
        help="When the agent takes more memory than this, the plugin while whose work it grew most "
        "is switched off.",
    ),
]
