# SPDX-License-Identifier: Apache-2.0
"""[api], [auth], [console]: options of the REST server, authentication and web console."""

from oslo_config import cfg, types

GROUP = "api"
OPTS = [
    cfg.HostAddressOpt("host", default="127.0.0.1", help="Address to listen on."),
    cfg.PortOpt("port", default=8780, help="Port to listen on."),
    cfg.IntOpt("threads", default=24, min=1, help="Threads that answer requests."),
    cfg.PortOpt(
        "health_port",
        default=0,
        help="Port on [manager] health_host that serves /livez, /readyz and /metrics of the API. "
        "/metrics then leaves [api] port. 0: /metrics is on [api] port, without a login.",
    ),
    cfg.IntOpt(
        "max_body",
        default=114_688,
        min=1024,
        mutable=True,
        help="Largest request body in bytes. The API answers 413 to a larger body.",
    ),
    cfg.StrOpt(
        "public_url",
        default="",
        help="URL of the API in links of version documents. Default: the URL of the request if its "
        "host is [api] host or loopback, else relative links.",
    ),
]
_PER_S = (
    "of a project without the role admin or service. Ten seconds of this may come at once, and a "
    "single user has half. Requests that use much processor time count as several. The API answers "
    "429 with Retry-After above it. 0: no limit."
)
OPTS += [
    cfg.IntOpt(f"{kind}_per_s", default=number, min=0, mutable=True, help=f"{what} {_PER_S}")
    for kind, number, what in (
        ("reads", 100, "Reads per second"),
        ("writes", 40, "Writes per second"),
        ("availability", 20, "Searches for free windows per second"),
    )
]


# [auth]: files of http_basic, the agent secret, cache time of logins, and the project of noauth.


AUTH_GROUP = "auth"
AUTH_OPTS = [
    cfg.StrOpt(
        "htpasswd_file",
        default="/etc/holdfast/htpasswd",
        help="Users and bcrypt passwords, as `htpasswd -B` writes them. The API reads the file at "
        "every login.",
    ),
    cfg.StrOpt(
        "users_file",
        default="/etc/holdfast/users.yaml",
        help="YAML file with project and roles of each user: `alice: {project: blue, roles: "
        "[member]}`.",
    ),
    cfg.IntOpt(
        "auth_cache_s",
        default=60,
        min=0,
        mutable=True,
        help="Seconds that the API caches a verified password (bcrypt is slow on purpose) or "
        "Keystone token. The API refuses a revoked token after this time plus "
        "[keystone_authtoken] token_cache_time, whose default is 240 here.",
    ),
    cfg.StrOpt(
        "agent_secret_file",
        help="File with the secret, at least 32 characters, from which the tokens of agents and "
        "host monitors are made (`holdfast agent token HOST`, `holdfast monitor register NAME`). "
        "A second line is an older secret whose tokens stay valid. Without it the API accepts no "
        "agent token and registers no monitor.",
    ),
    cfg.MultiOpt(
        "agent_groups",
        item_type=types.String(regex=r"^\s*[^:\s][^:]*:\s*\S.*$", quotes=True),
        mutable=True,
        sample_default="gpu: cmp-7, cmp-8, gpu-*",
        help="`GROUP: HOST, HOST, ...`, once per group: hosts whose agents get the central alarm "
        "rules of scope `group:GROUP`. Host names may contain * and ?. An agent cannot join a "
        "group itself: its own [metrics] groups only selects among rules of its file.",
    ),
    cfg.StrOpt(
        "noauth_project", default="demo", help="Project of every caller with auth_strategy noauth."
    ),
]


# [console]: the web console.


CONSOLE_GROUP = "console"
CONSOLE_OPTS = [
    cfg.IntOpt(
        "streams",
        default=16,
        min=0,
        help="Open pages that get changes by a permanent stream at the same time. Each stream "
        "takes a thread; the embedded server adds these threads to [api] threads. Further pages "
        "poll every few seconds. 0: all pages poll, the default under another server "
        "(holdfast.wsgi), where a stream takes one of its threads.",
    ),
    cfg.IntOpt(
        "session_hours",
        default=12,
        min=1,
        max=24 * 30,
        mutable=True,
        help="Hours after which users must log in again (http_basic; with keystone a session "
        "lasts as long as its token).",
    ),
]
