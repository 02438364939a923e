# SPDX-License-Identifier: Apache-2.0
"""[agent]: what the agent of a compute host watches, and whom it tells."""

from oslo_config import cfg

GROUP = "agent"
OPTS = [
    cfg.StrOpt(
        "host",
        help="What the cloud calls this host. Default: the machine's name.",
    ),
    cfg.StrOpt(
        "guests",
        default="libvirt",
        help="Entry point of the group holdfast.guests: libvirt, sim, …",
    ),
    cfg.StrOpt(
        "guests_address",
        default="qemu:///system",
        help="Where the hypervisor is asked: a URI of libvirt's; for sim, HOST@FILE of the cloud.",
    ),
    cfg.StrOpt(
        "filters_file",
        help="YAML file that says what counts as a failure of a guest (docs/guests.md). Read again "
        "by itself when it changes. Without it: the default set, which `holdfast guests filters "
        "check` shows.",
    ),
    cfg.ListOpt(
        "services",
        default=[],
        help="Services of the host that must run, as the names of their processes: libvirtd, "
        "nova-compute, … Each is restarted by `systemctl restart NAME` a few times before it is "
        "reported.",
    ),
    cfg.FloatOpt("services_every_s", default=5.0, min=0.5, help="So often they are looked at."),
    cfg.StrOpt(
        "spool",
        default="/var/lib/holdfast/agent.spool",
        help="File in which reports wait until they are delivered.",
    ),
    cfg.StrOpt(
        "api_url",
        help="Where Holdfast is: http://controller:8780. Default: HOLDFAST_URL.",
    ),
    cfg.StrOpt(
        "token_file",
        help="File whose first line is the token of this host, made on a controller by `holdfast "
        "agent token HOST`. It is good for this host alone. Without it: HOLDFAST_USER and its "
        "companions from the environment.",
    ),
    cfg.FloatOpt(
        "api_timeout_s", default=10.0, min=1.0, help="Longest that one call to the API takes."
    ),
]
