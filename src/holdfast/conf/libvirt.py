# SPDX-License-Identifier: Apache-2.0
"""[libvirt]: hosts without OpenStack, where [cloud] driver is libvirt (docs/libvirt.md)."""

from oslo_config import cfg

GROUP = "libvirt"
OPTS = [
    cfg.DictOpt(
        "hosts",
        default={},
        help="Names of the hosts with the URIs of their libvirt: kvm-1:qemu+ssh://root@kvm-1/system"
        ", … A host that needs more than that is in hosts_file.",
    ),
    cfg.StrOpt(
        "hosts_file",
        default="",
        help="YAML file of hosts: a mapping from name to uri, or to uri, rack and zone.",
    ),
    cfg.ListOpt(
        "shared",
        default=[],
        help="Folders and device paths that all hosts share, and pool:NAME for storage pools. A "
        "guest with a disk elsewhere is never started on another host.",
    ),
    cfg.StrOpt(
        "state",
        default="libvirt.db",
        help="File of what libvirt itself cannot remember: which hosts are closed, the guests as "
        "last seen, moves. All managers of these hosts run on one machine and share it.",
    ),
    cfg.FloatOpt(
        "ram_ratio",
        default=1.0,
        min=0.1,
        help="How much memory guests of a host may have together, as a multiple of what it has.",
    ),
    cfg.FloatOpt(
        "action_timeout_s",
        default=120.0,
        min=5.0,
        help="How long a host may take to start or stop a guest; then it is looked what became of "
        "it.",
    ),
]
