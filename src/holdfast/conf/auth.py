# SPDX-License-Identifier: Apache-2.0
"""[auth]: files of the http_basic strategy, what is remembered, the one project of noauth."""

from oslo_config import cfg, types

GROUP = "auth"
OPTS = [
    cfg.StrOpt(
        "htpasswd_file",
        default="/etc/holdfast/htpasswd",
        help="Users and bcrypt passwords, as `htpasswd -B` writes them. Read at every login.",
    ),
    cfg.StrOpt(
        "users_file",
        default="/etc/holdfast/users.yaml",
        help="What each of those users is: `alice: {project: blue, roles: [member]}`.",
    ),
    cfg.IntOpt(
        "remember_s",
        default=60,
        min=0,
        mutable=True,
        help="Seconds a verified password (bcrypt is slow on purpose) or Keystone token is "
        "remembered. A revoked token is refused after these and [keystone_authtoken] "
        "token_cache_time, whose default is 240 here.",
    ),
    cfg.StrOpt(
        "agent_secret_file",
        help="Secret by which agents on compute hosts and host monitors are known, of 32 "
        "characters or more; their tokens are made of it by `holdfast agent token HOST` and "
        "`holdfast monitor register NAME`. A second line is an older secret whose tokens still "
        "count. Without it no agent is let in by a token, and no monitor can be registered.",
    ),
    cfg.MultiOpt(
        "agent_groups",
        item_type=types.String(regex=r"^\s*[^:\s][^:]*:\s*\S.*$", quotes=True),
        mutable=True,
        sample_default="gpu: cmp-7, cmp-8, gpu-*",
        help="`GROUP: HOST, HOST, ...`, once per group: the hosts whose agents get the central "
        "alarm rules of scope `group:GROUP`. A name may have * and ?. An agent cannot put itself "
        "into a group: its own [metrics] groups only chooses among rules that it has.",
    ),
    cfg.StrOpt("noauth_project", default="demo", help="The project of everybody under noauth."),
]
