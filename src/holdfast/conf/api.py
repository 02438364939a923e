# SPDX-License-Identifier: Apache-2.0
"""[api], [auth], [console]: options of the REST server, authentication and web console."""

from oslo_config import cfg, types

GROUP = "api"
OPTS = [
    cfg.HostAddressOpt("host", default="127.0.0.1", help="Address to listen on."),
    cfg.PortOpt("port", default=8780, help="Port to listen on."),
    cfg.IntOpt("threads", default=24, min=1, help="Threads that answer requests."),
    cfg.IntOpt(
        "max_body",
        default=114_688,
        min=1024,
        mutable=True,
        help="Largest request body, in bytes; more is 413.",
    ),
    cfg.StrOpt(
        "public_url",
        default="",
        help="The address clients use, for links in version documents; default: as they asked.",
    ),
]


# [auth]: files of http_basic, the agent secret, cache time of logins, and the project of noauth.


AUTH_GROUP = "auth"
AUTH_OPTS = [
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


# [console]: the web console.


CONSOLE_GROUP = "console"
CONSOLE_OPTS = [
    cfg.IntOpt(
        "streams",
        default=16,
        min=0,
        help="How many open pages are told of changes at once by a stream that stays open; each "
        "takes a thread, which the embedded server has on top of [api] threads. Further pages "
        "ask every few seconds. 0: all of them do, which is the default under another server "
        "(holdfast.wsgi): there a stream takes one of its threads.",
    ),
    cfg.IntOpt(
        "session_hours",
        default=12,
        min=1,
        max=24 * 30,
        mutable=True,
        help="After that time people have to log in again (http_basic; with keystone a session "
        "lasts as long as its token).",
    ),
]
