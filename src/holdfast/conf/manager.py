# SPDX-License-Identifier: Apache-2.0
"""[manager]: durable jobs, claims, retries, retention and health checks of a manager."""

from oslo_config import cfg

GROUP = "manager"
OPTS = [
    cfg.StrOpt("name", default="", help="Name of this manager. Default: host name and process id."),
    cfg.IntOpt(
        "workers",
        default=256,
        min=1,
        help="Jobs that run at the same time. More workers help where the cloud answers slowly, "
        "and cost processor time when many events fall due.",
    ),
    cfg.FloatOpt(
        "poll_interval_s",
        default=1.0,
        min=0.05,
        mutable=True,
        help="Seconds between two reads of the table of jobs, at most. Events of the same process "
        "wake the manager earlier.",
    ),
    cfg.FloatOpt(
        "claim_s",
        default=15.0,
        min=2.0,
        help="Seconds that a claim lasts unless renewed: the longest delay of a job after kill -9 "
        "of its manager.",
    ),
    cfg.IntOpt(
        "claim_ahead",
        default=10_000,
        min=0,
        mutable=True,
        help="Due jobs that a manager may claim beyond its workers when thousands fall due at "
        "once. Managers share such a burst; other managers skip claimed jobs.",
    ),
    cfg.FloatOpt(
        "retry_first_s",
        default=0.5,
        min=0.01,
        mutable=True,
        help="Seconds before the first retry of a failed job.",
    ),
    cfg.FloatOpt(
        "retry_most_s",
        default=15.0,
        min=0.1,
        mutable=True,
        help="Seconds between two retries, at most.",
    ),
    cfg.IntOpt(
        "keep_operations_days",
        default=30,
        min=0,
        mutable=True,
        help="Days that Holdfast keeps finished jobs, reports and incidents. Jobs of a lease stay "
        "as long as the lease exists. 0: for ever.",
    ),
    cfg.IntOpt(
        "keep_audit_days",
        default=365,
        min=0,
        mutable=True,
        help="Days that Holdfast keeps entries of the audit log. 0: for ever.",
    ),
    cfg.IntOpt(
        "lost_agent_days",
        default=7,
        min=0,
        mutable=True,
        help="Days without a report of a host's agent after which Holdfast ends the host's "
        "alarms, with that reason. 0: the alarms stay until the agent returns or an operator ends "
        "them.",
    ),
    cfg.HostAddressOpt(
        "health_host",
        default="127.0.0.1",
        help="Address of health checks (/livez, /readyz, /metrics) on a port of their own: "
        "[manager] health_port and [api] health_port.",
    ),
    cfg.PortOpt(
        "health_port", default=8781, help="Port of holdfast-manager's health checks. 0: off."
    ),
    cfg.FloatOpt(
        "livez_max_age_s",
        default=30.0,
        min=1.0,
        mutable=True,
        help="Seconds without a round of the job loop after which /livez fails.",
    ),
]
