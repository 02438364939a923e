# SPDX-License-Identifier: Apache-2.0
"""[cloud]: which cloud, and how patient we are with it."""

from oslo_config import cfg

GROUP = "cloud"
OPTS = [
    cfg.StrOpt(
        "driver",
        default="sim",
        help="Entry point of the group holdfast.cloud: sim, nova, libvirt, …",
    ),
    cfg.FloatOpt(
        "call_timeout_s",
        default=10.0,
        min=0.1,
        help="Longest a single call may take; a claim always outlasts it.",
    ),
    cfg.IntOpt("parallel_calls", default=128, min=1, help="Calls under way at once."),
    cfg.StrOpt("freepool", default="freepool", help="Name of the pool of unreserved hosts."),
]
