# SPDX-License-Identifier: Apache-2.0
"""[openstack]: how Holdfast itself logs in to the cloud (driver `nova`).

Any plugin of keystoneauth says who we are: `auth_type` names it, and its own options follow in the
same group. One set of credentials is enough for a program: `auth_section` points to another
group that has them, `keystone_authtoken` for example.

    [openstack]                          [openstack]
    auth_type = password                 auth_type = v3applicationcredential
    auth_url = https://id.example/v3     auth_url = https://id.example/v3
    username = holdfast                  application_credential_id = 9d3c…
    password = …                         application_credential_secret = …
    project_name = service
    user_domain_name = Default
    project_domain_name = Default
"""

from collections.abc import Iterable

from oslo_config import cfg, types

GROUP = "openstack"
#: Whose options the sample shows; any installed plugin works.
SHOWN = ("password", "v3applicationcredential")

AUTH_TYPE = cfg.StrOpt(
    "auth_type",
    help="Which plugin of keystoneauth logs us in: password, v3applicationcredential, … Its own"
    " options stand in the same group. Not set: the nova driver does not start.",
)
OPTS = [
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
    """The options of these login plugins, without doubles; a plugin that is not there has none."""
    from keystoneauth1 import exceptions, loading

    found: dict[str, cfg.Opt] = {}
    for name in names:
        try:
            for opt in loading.get_auth_plugin_conf_options(name):
                found.setdefault(opt.dest, opt)
        except exceptions.NoMatchingPlugin:  # said when the driver starts, and better there
            continue
    return list(found.values())
