# SPDX-License-Identifier: Apache-2.0
"""[database]: the one truth."""

from oslo_config import cfg

GROUP = "database"
OPTS = [
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
