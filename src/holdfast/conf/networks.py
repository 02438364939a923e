# SPDX-License-Identifier: Apache-2.0
"""[network_manage], [network_tenant], [network_storage], …: where the cluster of each network of
`[hostmonitor] networks` is asked."""

import re

from oslo_config import cfg

#: Those of `[hostmonitor] networks` where it is not set.
USUAL = ("manage", "tenant", "storage")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
OPTS = [
    cfg.StrOpt(
        "driver",
        default="consul",
        help="Entry point of the group holdfast.membership: consul, sim, …",
    ),
    cfg.StrOpt(
        "url",
        default="http://127.0.0.1:8500",
        help="Where this host's own Consul agent of that network listens: http://…, https://…, or "
        "unix:///path of a socket. Each network has an agent of its own (docs/consul.md).",
    ),
    cfg.StrOpt(
        "token_file",
        default="",
        help="File whose first line is an ACL token that may read nodes and agents; read anew for "
        "every question.",
    ),
    cfg.StrOpt(
        "ca_file",
        default="",
        help="Whom to trust where the url is https: a file of certificates. Empty: whom the "
        "system trusts.",
    ),
    cfg.StrOpt("cert_file", default="", help="Our own certificate, where the agent wants one."),
    cfg.StrOpt("key_file", default="", help="Its key; empty if it is in cert_file."),
    cfg.BoolOpt(
        "watch_servers",
        default=False,
        help="Whether the servers of the cluster, which run on controllers, are watched like any "
        "other node.",
    ),
]


def group(network: str) -> str:
    return f"network_{network}"


def register(conf: cfg.ConfigOpts) -> None:
    """The groups of the networks that the configuration names, once it has been read. ValueError
    for a name that cannot be one."""
    names = list(conf.hostmonitor.networks)
    if not names or len(set(names)) != len(names):
        raise ValueError(f"[hostmonitor] networks = {', '.join(names)}: name each network once")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"[hostmonitor] networks: {name!r} is no name of a network: a small letter, then"
                " small letters, digits, '-' and '_', 32 at most"
            )
        conf.register_opts(OPTS, group=group(name))
