# SPDX-License-Identifier: Apache-2.0
"""[fencing]: how Holdfast powers off a dead host. A separate file lists the fence devices."""

from oslo_config import cfg

GROUP = "fencing"
OPTS = [
    cfg.StrOpt(
        "devices_file",
        help="YAML file that says how each host's power is cut (docs/fencing.md); read again by "
        "itself when it changes. Without it no host can be fenced, but those of the simulated "
        "cloud.",
    ),
    cfg.FloatOpt(
        "call_timeout_s",
        default=10.0,
        min=3.0,
        help="Longest that one call to a fence device takes, one way or the other. A device has 2 "
        "seconds less, unless its timeout_s says less still.",
    ),
    cfg.StrOpt(
        "agents_dir",
        default="/usr/sbin",
        help="Folder with the fence agents of ClusterLabs: fence_ipmilan and so on.",
    ),
]
