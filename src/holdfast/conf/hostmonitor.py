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
        help="Membership driver: an entry point of the group holdfast.membership (consul, sim, …).",
    ),
    cfg.StrOpt(
        "url",
        default="http://127.0.0.1:8500",
        help="Address of this host's Consul agent of the network: http://…, https://…, or "
        "unix:///path of a socket. Each network has its own Consul agent "
        "(docs/install/consul.md).",
    ),
    cfg.StrOpt(
        "token_file",
        default="",
        help="File whose first line is an ACL token with read access to nodes and agents. The "
        "monitor reads the file before each request.",
    ),
    cfg.StrOpt(
        "ca_file",
        default="",
        help="CA certificates for an https url. Empty: the CA certificates of the system.",
    ),
    cfg.StrOpt(
        "cert_file", default="", help="Client certificate, if the Consul agent requires one."
    ),
    cfg.StrOpt("key_file", default="", help="Key of cert_file. Empty: the key is in cert_file."),
    cfg.BoolOpt(
        "watch_servers",
        default=False,
        help="Watch the Consul servers of the cluster, which run on controllers, like any other "
        "node.",
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
        help="Names of the watched networks, in display order. Each has a group [network_NAME].",
    ),
    cfg.StrOpt(
        "matrix_file",
        help="YAML file of the HA matrix: the action for each combination of network states "
        "(docs/concepts/matrix.md). The monitor reloads the file when it changes. Default: "
        "recover when the storage network is down, or the only network.",
    ),
    cfg.StrOpt(
        "name",
        help="Name under which this monitor is registered and votes, unique among monitors. "
        "Default: the machine's host name.",
    ),
    cfg.StrOpt(
        "outbox",
        default="/var/lib/holdfast/hostmonitor.outbox",
        help="File of the monitor's outbox: reports that wait for delivery.",
    ),
    cfg.FloatOpt(
        "heartbeat_s",
        default=5.0,
        min=0.5,
        max=60.0,
        help="Seconds between two reports of the monitor, at most. The vote of a monitor that is "
        "silent for three times as long does not count.",
    ),
    cfg.FloatOpt(
        "proof_interval_s",
        default=1.0,
        min=0.1,
        max=30.0,
        help="Seconds between two proofs, on each network, that the monitor sees the network.",
    ),
    cfg.FloatOpt(
        "proof_fresh_s",
        default=3.0,
        min=0.5,
        max=120.0,
        help="Seconds without such a proof after which the monitor ignores what the network shows.",
    ),
    cfg.FloatOpt(
        "healthy_after_s",
        default=10.0,
        min=0.0,
        help="Seconds without a fault after which a reported host counts as healthy again.",
    ),
    cfg.StrOpt(
        "report_to",
        default=HOLDFAST,
        choices=[
            (HOLDFAST, "Holdfast's API: reports with evidence, which count as votes"),
            (INSTANCE_HA, "the instance HA API v1 of Holdfast or of Masakari: notifications only"),
        ],
        help="API that gets the reports.",
    ),
    cfg.StrOpt(
        "api_url",
        help="URL of that API: of Holdfast, for example http://controller:8780; of an instance HA "
        "API, its endpoint with the version. Default: HOLDFAST_URL, or the endpoint of Keystone's "
        "catalog.",
    ),
    cfg.StrOpt(
        "token_file",
        help="File whose first line is the token of this monitor, from `holdfast monitor register "
        "NAME`. The token is valid for this name only. Without it the monitor is not registered: "
        "Holdfast lists its reports and does not count its vote.",
    ),
    cfg.StrOpt(
        "api_user",
        help="User of http_basic, if there is no token. Default: HOLDFAST_USER, or OS_CLOUD or "
        "OS_AUTH_URL and related variables for Keystone, of the environment.",
    ),
    cfg.StrOpt("api_password_file", help="File whose first line is the password of api_user."),
    cfg.FloatOpt(
        "api_timeout_s", default=10.0, min=1.0, help="Seconds that one API call may take."
    ),
]
