# SPDX-License-Identifier: Apache-2.0
"""[fencing]: how Holdfast powers off a dead host. A separate file lists the fence devices."""

from oslo_config import cfg

GROUP = "fencing"
OPTS = [
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
