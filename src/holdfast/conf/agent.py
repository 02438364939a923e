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
    cfg.StrOpt(
        "services_file",
        help="YAML file that says more about services (docs/agent.md): how each is known, checked "
        "and restarted; masakari-monitors' process_list.yaml is taken too. Read again by itself "
        "when it changes. What it says about a service of the list above counts.",
    ),
    cfg.FloatOpt("services_every_s", default=5.0, min=0.5, help="So often they are looked at."),
    cfg.FloatOpt(
        "heartbeats_every_s",
        default=10.0,
        min=0.0,
        help="So often the agents of guests that want it are asked whether the guest hangs "
        "(docs/guests.md). 0: never. Needs to write to libvirt once a guest wants it.",
    ),
    cfg.IntOpt(
        "heartbeats_missed",
        default=3,
        min=1,
        help="So many questions a guest may leave unanswered.",
    ),
    cfg.FloatOpt(
        "heartbeats_quiet_s",
        default=30.0,
        min=1.0,
        help="And for so long it must have done nothing, before it hangs.",
    ),
    cfg.FloatOpt(
        "stalled_s",
        default=30.0,
        min=0.0,
        help="A processor of a guest that wants to run and gets no time of the host's for so long "
        "is stalled. Looked at three times in that while. 0: not looked at.",
    ),
    cfg.FloatOpt(
        "expectation_every_s",
        default=60.0,
        min=0.0,
        help="So often what should run on this host is asked of Holdfast and compared with what "
        "does (docs/guests.md). 0: never.",
    ),
    cfg.IntOpt(
        "expectation_looks",
        default=2,
        min=1,
        help="In so many looks, one after the other, a difference must be seen before it counts.",
    ),
    cfg.FloatOpt(
        "expectation_grace_s",
        default=30.0,
        min=0.0,
        help="And for so long.",
    ),
    cfg.StrOpt(
        "spool",
        default="/var/lib/holdfast/agent.spool",
        help="File in which reports wait until they are delivered.",
    ),
    cfg.StrOpt(
        "socket",
        default="/run/holdfast/agent.sock",
        help="Unix socket on which `holdfast guests list`, `watch`, `simulate` and `status` ask "
        "the agent; for its own user and root alone. Its folder is made if it is missing. "
        "Empty: none.",
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
