# SPDX-License-Identifier: Apache-2.0
"""[hostmonitor], [network_NAME]: watched networks, HA matrix, and where the monitor reports."""

import re

from oslo_config import cfg

# [network_manage], [network_tenant], [network_storage], …: the membership cluster of each network
# in `[hostmonitor] networks`.


#: Default of `[hostmonitor] networks`.
USUAL = ("manage", "tenant", "storage")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
NETWORKS_OPTS = [
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
    """Register the group of each network in `[hostmonitor] networks`, after reading the files.

    Raises ValueError for an invalid or repeated network name.
    """
    names = list(conf.hostmonitor.networks)
    if not names or len(set(names)) != len(names):
        raise ValueError(f"[hostmonitor] networks = {', '.join(names)}: name each network once")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"[hostmonitor] networks: {name!r} is no name of a network: a small letter, then"
                " small letters, digits, '-' and '_', 32 at most"
            )
        conf.register_opts(NETWORKS_OPTS, group=group(name))


GROUP = "hostmonitor"
HOLDFAST, INSTANCE_HA = "holdfast", "instance_ha"
OPTS = [
    cfg.ListOpt(
        "networks",
        default=list(USUAL),
        help="Names of the networks that are watched, in the order in which they are shown. Each "
        "has a group [network_NAME] of its own.",
    ),
    cfg.StrOpt(
        "strategy_file",
        help="YAML file that says what is done about a host, by what is seen of it on each network "
        "(docs/strategy.md). Read again by itself when it changes. Without it: recovery when the "
        "storage network is down, or the only one.",
    ),
    cfg.StrOpt(
        "name",
        help="Under which this monitor is registered and votes; one name per monitor. Default: the "
        "machine's.",
    ),
    cfg.StrOpt(
        "spool",
        default="/var/lib/holdfast/hostmonitor.spool",
        help="File in which reports wait until they are delivered.",
    ),
    cfg.FloatOpt(
        "heartbeat_s",
        default=5.0,
        min=0.5,
        max=60.0,
        help="So often at least the monitor says what it sees. One that is silent for three times "
        "that long does not count when votes are counted.",
    ),
    cfg.FloatOpt(
        "proof_every_s",
        default=1.0,
        min=0.1,
        max=30.0,
        help="So often the monitor proves, on each network, that it sees at all.",
    ),
    cfg.FloatOpt(
        "proof_fresh_s",
        default=3.0,
        min=0.5,
        max=120.0,
        help="Without a proof for that long nothing that a network shows is believed.",
    ),
    cfg.FloatOpt(
        "well_for_s",
        default=10.0,
        min=0.0,
        help="A host that was reported counts as well again after that long without a fault.",
    ),
    cfg.StrOpt(
        "report_to",
        default=HOLDFAST,
        choices=[
            (HOLDFAST, "its own API: with evidence, votes are counted"),
            (INSTANCE_HA, "the instance HA API v1 of Holdfast or of Masakari: notifications only"),
        ],
        help="Who is told.",
    ),
    cfg.StrOpt(
        "api_url",
        help="Where that is: of Holdfast its address, http://controller:8780; of an instance HA "
        "API its endpoint with the version. Default: HOLDFAST_URL, or what the catalog of Keystone "
        "says.",
    ),
    cfg.StrOpt(
        "token_file",
        help="File whose first line is the token of this monitor, which `holdfast monitor register "
        "NAME` prints. It is good for this monitor's name alone. Without it the monitor is not "
        "registered: what it sees is listed, and does not count as a vote.",
    ),
    cfg.StrOpt(
        "api_user",
        help="Where there is no token: user for http_basic. Without it: HOLDFAST_USER, or OS_CLOUD "
        "or OS_AUTH_URL and companions for Keystone, from the environment.",
    ),
    cfg.StrOpt("api_password_file", help="File whose first line is that user's password."),
    cfg.FloatOpt(
        "api_timeout_s", default=10.0, min=1.0, help="Longest that one call to the API takes."
    ),
]
