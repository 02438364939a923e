# SPDX-License-Identifier: Apache-2.0
"""[DEFAULT], [database]: options of every program."""

from oslo_config import cfg

GROUP = "DEFAULT"
OPTS = [
    cfg.StrOpt(
        "auth_strategy",
        default="noauth",
        choices=[
            ("noauth", "every caller is admin of one project; loopback addresses only"),
            ("http_basic", "users of an htpasswd file; projects and roles of users_file"),
            ("keystone", "tokens, by keystonemiddleware"),
        ],
        help="Authentication of API callers.",
    ),
    cfg.StrOpt(
        "transport_url",
        secret=True,
        help="Message broker between API and managers, for example "
        "rabbit://user:secret@host:5672//. Without it API and manager run in one process.",
    ),
    cfg.IntOpt(
        "rpc_timeout",
        default=30,
        min=1,
        mutable=True,
        help="Seconds that the API waits for a manager before it answers 503.",
    ),
    cfg.StrOpt(
        "region",
        default="",
        help="Region of this deployment, a label of its hosts. Default: [openstack] region_name.",
    ),
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
        help="Seconds to wait for an answer before the database counts as unreachable. 0: no "
        "limit.",
    ),
    cfg.IntOpt(
        "pool_size",
        default=8,
        min=1,
        help="Open database connections per process. Few connections are faster: requests queue "
        "for them, and many at once slow each other down.",
    ),
]
