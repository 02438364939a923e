# SPDX-License-Identifier: Apache-2.0
"""[monitors], [notifications]: host status monitors, and Nova's notifications.

The options of [monitors] can change at run time: edit the file and send SIGHUP.
"""

from oslo_config import cfg

GROUP = "monitors"
WISHES = [
    ("recover", "Open an incident and recover the server."),
    ("report", "Store a report for operators; no recovery."),
    ("ignore", "Store nothing."),
]
OPTS = [
    cfg.ListOpt(
        "enabled",
        default=["compute"],
        mutable=True,
        help="Host status monitors in use: entry points of the group holdfast.monitors. `guests` "
        "reports failed servers from Nova's notifications and `usage` feeds metric plugins; both "
        "need push.",
    ),
    cfg.StrOpt(
        "metric_plugins_file",
        default="",
        help="File of the metric plugins that the monitor `usage` feeds with Nova's notifications "
        "about volumes, hosts and servers (docs/reference/metric-plugins.md). The manager reloads "
        "the file when it changes; another file name needs a restart.",
    ),
    cfg.BoolOpt("poll", default=True, mutable=True, help="Poll the compute services of the cloud."),
    cfg.FloatOpt(
        "poll_interval_s",
        default=30.0,
        min=1.0,
        mutable=True,
        help="Seconds between two polls. One of all managers polls.",
    ),
    cfg.FloatOpt(
        "confirm_s",
        default=2.0,
        min=0.1,
        mutable=True,
        help="Seconds to the next poll while a host is suspect.",
    ),
    cfg.FloatOpt(
        "poll_timeout_s",
        default=60.0,
        min=0.1,
        mutable=True,
        help="Seconds that the poll of one monitor may take. The manager logs a monitor that "
        "takes longer, and does not call it again before it returned.",
    ),
    cfg.BoolOpt(
        "push",
        default=True,
        mutable=True,
        help="Consume Nova's notifications from the message broker, see [notifications]. Needs a "
        "transport_url there or in [DEFAULT], and a cloud that is not simulated.",
    ),
    cfg.FloatOpt(
        "push_timeout_s",
        default=5.0,
        min=0.1,
        mutable=True,
        help="Seconds that a monitor may take for one message. The manager logs a monitor that "
        "takes longer and continues without it.",
    ),
    cfg.FloatOpt(
        "push_fresh_s",
        default=10.0,
        min=0.0,
        mutable=True,
        help="Seconds. A message whose timestamp differs by more from the manager's clock changes "
        "no status but starts a poll at once. Where poll is off the message counts.",
    ),
    cfg.IntOpt(
        "down_samples",
        default=2,
        min=1,
        mutable=True,
        help="Consecutive polls that must show a host as down before the host counts as failed.",
    ),
    cfg.FloatOpt(
        "down_for_s",
        default=0.0,
        min=0.0,
        mutable=True,
        help="Seconds that a host must have been down, by the source's own record, before the "
        "host counts as failed.",
    ),
    cfg.FloatOpt(
        "healthy_after_s",
        default=300.0,
        min=0.0,
        mutable=True,
        help="Seconds that a failed host must be healthy before leases can reserve it again.",
    ),
    cfg.FloatOpt(
        "flap_holdoff_s",
        default=600.0,
        min=0.0,
        mutable=True,
        help="Seconds after a failure before which leases cannot reserve the host again, healthy "
        "or not: a flapping host causes one repair in this time.",
    ),
    cfg.BoolOpt(
        "disabled_is_failure",
        default=False,
        mutable=True,
        help="Count a compute service that an operator disabled as failed, at once.",
    ),
    cfg.BoolOpt(
        "auto_disabled_is_failure",
        default=False,
        mutable=True,
        help="Count a compute service that Nova disabled itself (the reason begins with `AUTO:`, "
        "for example after a lost libvirt connection) as failed, after down_samples polls.",
    ),
    cfg.StrOpt(
        "guest_errors",
        default="recover",
        choices=WISHES,
        mutable=True,
        help="Action of the monitor `guests` when Nova shows a server as ERROR or crashed without "
        "an API request that explains it.",
    ),
    cfg.StrOpt(
        "guest_power_offs",
        default="report",
        choices=WISHES,
        mutable=True,
        help="Action of the monitor `guests` when a server is powered off without an API request. "
        "Nova cannot tell a death from a shutdown inside the guest: `recover` starts the server "
        "in both cases.",
    ),
]


# [notifications]: Nova's notifications on the message broker.
#
# nova.conf needs [notifications] notification_format = versioned (or both) and
# [oslo_messaging_notifications] driver = messagingv2; `holdfast notification listen` shows
# whether notifications arrive.


NOTIFICATIONS_GROUP = "notifications"
NOTIFICATIONS_OPTS = [
    cfg.StrOpt(
        "transport_url",
        secret=True,
        help="Message broker of Nova's notifications, for example "
        "rabbit://user:secret@host:5672/nova. Separate several hosts by commas; for TLS use "
        "[oslo_messaging_rabbit] ssl, ssl_*_file, or ?ssl=true. Default: transport_url of "
        "[DEFAULT].",
    ),
    cfg.StrOpt(
        "exchange",
        default="nova",
        help="Nova's exchange: control_exchange of nova.conf. Holdfast never creates it.",
    ),
    cfg.ListOpt(
        "topics",
        default=["versioned_notifications"],
        help="versioned_notifications_topics of nova.conf, or some of them.",
    ),
    cfg.StrOpt(
        "pool",
        default="holdfast.notifications",
        help="Name of Holdfast's queue. Managers with the same name share its messages. Other "
        "consumers of Nova's notifications have their own queues and lose nothing.",
    ),
    cfg.IntOpt(
        "backlog",
        default=100000,
        min=1,
        help="Messages that the queue keeps while no manager reads. The broker drops the oldest "
        "first.",
    ),
    cfg.IntOpt(
        "keep_days",
        default=7,
        min=1,
        help="Days without a reader after which the broker deletes the queue.",
    ),
    cfg.BoolOpt(
        "quorum",
        default=False,
        help="Declare the queue as a quorum queue, which a RabbitMQ cluster replicates.",
    ),
]
