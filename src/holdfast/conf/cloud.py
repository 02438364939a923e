# SPDX-License-Identifier: Apache-2.0
"""[cloud], [openstack], [libvirt], [sim]: the cloud driver, timeouts and driver options."""

from collections.abc import Iterable

from oslo_config import cfg, types

GROUP = "cloud"
OPTS = [
    cfg.StrOpt(
        "driver",
        default="sim",
        help="Cloud driver: an entry point of the group holdfast.cloud (sim, nova, libvirt, …).",
    ),
    cfg.FloatOpt(
        "call_timeout_s",
        default=10.0,
        min=0.1,
        help="Seconds that one call to the cloud may take. A claim always lasts longer.",
    ),
    cfg.IntOpt("parallel_calls", default=128, min=1, help="Calls to the cloud at the same time."),
    cfg.StrOpt("freepool", default="freepool", help="Name of the aggregate of unreserved hosts."),
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
    help="keystoneauth plugin for the login: password, v3applicationcredential, … The "
    "plugin's options are in the same group. The nova driver does not start without it.",
)
OPENSTACK_OPTS = [
    AUTH_TYPE,
    cfg.StrOpt(
        "auth_section",
        help="Group of auth_type and the plugin's options, if not this one. Set "
        "keystone_authtoken to share its credentials.",
    ),
    cfg.StrOpt(
        "region_name",
        help="Region of the endpoints; needed where the catalog has more than one region.",
    ),
    cfg.ListOpt(
        "interface",
        default=["internal", "public"],
        item_type=types.String(choices=["internal", "public", "admin"]),
        help="Endpoint interfaces in order of preference. Holdfast uses the first that the "
        "catalog has. Internal endpoints avoid the public proxies and their limits.",
    ),
    cfg.StrOpt("cafile", help="CA certificates (PEM) for https endpoints."),
    cfg.StrOpt("certfile", help="Client certificate (PEM), if the endpoints require one."),
    cfg.StrOpt("keyfile", help="Key (PEM) of certfile."),
    cfg.BoolOpt(
        "insecure", default=False, help="Do not verify the certificates of https endpoints."
    ),
]


def plugin_opts(names: Iterable[str] = SHOWN) -> list[cfg.Opt]:
    """Return the distinct options of login plugins; a plugin that is not installed has none."""
    from keystoneauth1 import exceptions, loading

    options: dict[str, cfg.Opt] = {}
    for name in names:
        try:
            for opt in loading.get_auth_plugin_conf_options(name):
                options.setdefault(opt.dest, opt)
        except exceptions.NoMatchingPlugin:  # the driver reports this at its start, in more detail
            continue
    return list(options.values())


# [libvirt]: hosts without OpenStack, where [cloud] driver is libvirt (docs/install/libvirt.md).


LIBVIRT_GROUP = "libvirt"
LIBVIRT_OPTS = [
    cfg.DictOpt(
        "hosts",
        default={},
        help="Hosts and their libvirt URIs: kvm-1:qemu+ssh://root@kvm-1/system, … Hosts with a "
        "rack or zone are in hosts_file.",
    ),
    cfg.StrOpt(
        "hosts_file",
        default="",
        help="YAML file of hosts: a mapping from name to uri, or to uri, rack and zone.",
    ),
    cfg.ListOpt(
        "shared",
        default=[],
        help="Directories and device paths that all hosts share, and pool:NAME for storage pools. "
        "A guest with a disk elsewhere is never started on another host.",
    ),
    cfg.StrOpt(
        "state",
        default="libvirt.db",
        help="File of state that libvirt does not keep: disabled hosts, last known guests, moves. "
        "All managers of these hosts run on one machine and share the file.",
    ),
    cfg.FloatOpt(
        "ram_ratio",
        default=1.0,
        min=0.1,
        help="Memory of all guests of a host together, as a multiple of the host's memory.",
    ),
    cfg.FloatOpt(
        "action_timeout_s",
        default=120.0,
        min=5.0,
        help="Seconds that a host may take to start or stop a guest. After that Holdfast reads "
        "the guest's state.",
    ),
]


# [sim]: the simulated cloud. `holdfast sim set` changes its latency and faults at run time.


SIM_GROUP = "sim"
SIM_OPTS = [
    cfg.StrOpt("database", default="sim.db", help="File of the simulated cloud's state."),
]
