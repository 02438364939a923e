# SPDX-License-Identifier: Apache-2.0
"""[cloud], [openstack], [libvirt], [sim]: the cloud driver, timeouts and driver options."""

from collections.abc import Iterable

from oslo_config import cfg, types

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


# [openstack]: how Holdfast logs in to the cloud (driver `nova`).
#
# `auth_type` names a plugin of keystoneauth, whose own options follow in the same group. To share
# the credentials of another group, `keystone_authtoken` for example, set `auth_section` to its
# name.
#
#     [openstack]                          [openstack]
#     auth_type = password                 auth_type = v3applicationcredential
#     auth_url = https://id.example/v3     auth_url = https://id.example/v3
#     username = holdfast                  application_credential_id = 9d3c…
#     password = …                         application_credential_secret = …
#     project_name = service
#     user_domain_name = Default
#     project_domain_name = Default


OPENSTACK_GROUP = "openstack"
#: Login plugins whose options the sample file shows; any installed plugin works.
SHOWN = ("password", "v3applicationcredential")

AUTH_TYPE = cfg.StrOpt(
    "auth_type",
    help="Which plugin of keystoneauth logs us in: password, v3applicationcredential, … Its own"
    " options stand in the same group. Not set: the nova driver does not start.",
)
OPENSTACK_OPTS = [
    AUTH_TYPE,
    cfg.StrOpt(
        "auth_section",
        help="The group that auth_type and its options are read from, if not this one:"
        " keystone_authtoken, so that one set of credentials is enough.",
    ),
    cfg.StrOpt(
        "region_name",
        help="Region whose endpoints are used; needed where the catalog has more than one.",
    ),
    cfg.ListOpt(
        "interface",
        default=["internal", "public"],
        item_type=types.String(choices=["internal", "public", "admin"]),
        help="Kinds of endpoint, best first: the first that the catalog has is used. Internal"
        " first: services talk to each other past the public proxies and their limits.",
    ),
    cfg.StrOpt(
        "cafile", help="Certificates (PEM) of the authorities that https answers must show."
    ),
    cfg.StrOpt("certfile", help="Our own client certificate (PEM), if the endpoints want one."),
    cfg.StrOpt("keyfile", help="The key (PEM) of certfile."),
    cfg.BoolOpt("insecure", default=False, help="Do not check the certificates of https answers."),
]


def plugin_opts(names: Iterable[str] = SHOWN) -> list[cfg.Opt]:
    """Return the distinct options of login plugins; a plugin that is not installed has none."""
    from keystoneauth1 import exceptions, loading

    found: dict[str, cfg.Opt] = {}
    for name in names:
        try:
            for opt in loading.get_auth_plugin_conf_options(name):
                found.setdefault(opt.dest, opt)
        except exceptions.NoMatchingPlugin:  # the driver reports this at its start, in more detail
            continue
    return list(found.values())


# [libvirt]: hosts without OpenStack, where [cloud] driver is libvirt (docs/libvirt.md).


LIBVIRT_GROUP = "libvirt"
LIBVIRT_OPTS = [
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


# [sim]: the simulated cloud. `holdfast sim set` changes its latency and faults at run time.


SIM_GROUP = "sim"
SIM_OPTS = [
    cfg.StrOpt("database", default="sim.db", help="File that holds the simulated world."),
]
