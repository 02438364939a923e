# SPDX-License-Identifier: Apache-2.0
"""[DEFAULT], [database]: options of every program."""

from oslo_config import cfg

GROUP = "DEFAULT"
OPTS = [
    cfg.StrOpt(
        "auth_strategy",
        default="noauth",
        choices=[
            ("noauth", "everybody is the admin of one project; loopback addresses only"),
            ("http_basic", "users of an htpasswd file, projects and roles of a file beside it"),
            ("keystone", "tokens, by keystonemiddleware"),
        ],
        help="How callers prove who they are.",
    ),
    cfg.StrOpt(
        "transport_url",
        secret=True,
        help="Message broker between API and managers, e.g. rabbit://user:secret@host:5672//. "
        "Without it API and manager are one process.",
    ),
    cfg.IntOpt(
        "rpc_timeout",
        default=30,
        min=1,
        mutable=True,
        help="Seconds a command waits for a manager before it answers 503.",
    ),
    cfg.StrOpt("region", default="", help="The region this deployment is; a label of its hosts."),
]


# [database]: connection to the database.


DATABASE_GROUP = "database"
DATABASE_OPTS = [
    cfg.StrOpt(
        "connection",
        default="sqlite:///holdfast.db",
        secret=True,
        help="SQLAlchemy URL: sqlite:///…, postgresql+psycopg://…, mysql+pymysql://….",
    ),
    cfg.IntOpt(
        "timeout_s",
        default=30,
        min=0,
        help="Seconds to wait for an answer before the database counts as away; 0: for ever.",
    ),
    cfg.IntOpt(
        "pool_size",
        default=8,
        min=1,
        help="Connections kept open per process. Few are better: work queues for them, and many at"
        " once slow each other down.",
    ),
]
