# SPDX-License-Identifier: Apache-2.0
"""[manager]: durable jobs, claims, retries, retention and health checks of a manager."""

from oslo_config import cfg

GROUP = "manager"
OPTS = [
    cfg.StrOpt("name", default="", help="Name of this manager; default: host name and process id."),
    cfg.IntOpt(
        "workers",
        default=256,
        min=1,
        help="Operations under way at once. More help where the cloud answers slowly, and cost time"
        " of the processor where many events fall due.",
    ),
    cfg.FloatOpt(
        "poll_interval_s",
        default=1.0,
        min=0.05,
        mutable=True,
        help="Longest sleep between two looks at the table of work; events of our own wake us.",
    ),
    cfg.FloatOpt(
        "claim_s",
        default=15.0,
        min=2.0,
        help="Seconds a claim lasts unless renewed: how late work may be after kill -9.",
    ),
    cfg.IntOpt(
        "claim_ahead",
        default=10_000,
        min=0,
        mutable=True,
        help="How many due operations a manager may claim beyond its workers when thousands fall"
        " due at once. Managers share such a burst; what one has claimed the others leave to it.",
    ),
    cfg.FloatOpt(
        "retry_first_s", default=0.5, min=0.01, mutable=True, help="First back-off after a failure."
    ),
    cfg.FloatOpt(
        "retry_most_s",
        default=15.0,
        min=0.1,
        mutable=True,
        help="Longest back-off after a failure.",
    ),
    cfg.IntOpt(
        "keep_operations_days",
        default=30,
        min=0,
        mutable=True,
        help="Days that work, reports and incidents which have ended can be looked at; work of a"
        " lease as long as the lease exists. 0: for ever.",
    ),
    cfg.IntOpt(
        "keep_audit_days",
        default=365,
        min=0,
        mutable=True,
        help="Days that the audit keeps a decision; 0: for ever.",
    ),
    cfg.IntOpt(
        "lost_agent_days",
        default=7,
        min=0,
        mutable=True,
        help="Days without a word of a host's agent after which its alarms are over, and say why;"
        " 0: they stand until the agent is back, or somebody ends them.",
    ),
    cfg.HostAddressOpt(
        "health_host", default="127.0.0.1", help="Where holdfast-manager serves /livez and others."
    ),
    cfg.PortOpt("health_port", default=8781, help="Port of it; 0 switches it off."),
    cfg.FloatOpt(
        "livez_max_age_s",
        default=30.0,
        min=1.0,
        mutable=True,
        help="/livez fails when the loop of due work has not come round for so long.",
    ),
]
