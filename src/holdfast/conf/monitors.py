# SPDX-License-Identifier: Apache-2.0
"""[monitors], [notifications]: host status monitors, and Nova's notifications.

The options of [monitors] can change at run time: edit the file and send SIGHUP.
"""

from oslo_config import cfg

GROUP = "monitors"
WISHES = [
    ("recover", "It becomes an incident and is recovered."),
    ("report", "It is kept as a report, for people; nothing is done."),
    ("ignore", "Nothing is written."),
]
OPTS = [
    cfg.ListOpt(
        "enabled",
        default=["compute"],
        mutable=True,
        help="Monitors that are asked and told: names of the entry points holdfast.monitors. "
        "`guests` hears from Nova of servers that failed, `usage` what metric plugins get; both "
        "need push.",
    ),
    cfg.StrOpt(
        "metric_plugins_file",
        default="",
        help="The monitor `usage`: file that names the metric plugins which get what Nova says of "
        "volumes, hosts and servers (docs/metric-plugins.md). It is read again when it changes; "
        "another name counts after a restart.",
    ),
    cfg.BoolOpt("poll", default=True, mutable=True, help="Look at the cloud now and then."),
    cfg.FloatOpt(
        "poll_interval_s",
        default=30.0,
        min=1.0,
        mutable=True,
        help="A host that the cloud shows as down is found within so many seconds; one of all "
        "managers looks.",
    ),
    cfg.FloatOpt(
        "confirm_s",
        default=2.0,
        min=0.1,
        mutable=True,
        help="While a host is suspect the next look comes so soon.",
    ),
    cfg.FloatOpt(
        "poll_timeout_s",
        default=60.0,
        min=0.1,
        mutable=True,
        help="A monitor whose look takes longer is left behind and reported; it is not asked again "
        "until it has returned.",
    ),
    cfg.BoolOpt(
        "push",
        default=True,
        mutable=True,
        help="Listen to what Nova says on its message broker: see [notifications]. Needs a "
        "transport_url there or in [DEFAULT], and a cloud that is not simulated.",
    ),
    cfg.FloatOpt(
        "push_timeout_s",
        default=5.0,
        min=0.1,
        mutable=True,
        help="A monitor that takes longer over a message is left behind and reported.",
    ),
    cfg.FloatOpt(
        "push_fresh_s",
        default=10.0,
        min=0.0,
        mutable=True,
        help="A message that is older, or from a clock that differs by more, is not believed but "
        "makes us look at once; where poll is off it is believed.",
    ),
    cfg.IntOpt(
        "down_samples",
        default=2,
        min=1,
        mutable=True,
        help="So many looks in a row must show a host as down before it counts as failed.",
    ),
    cfg.FloatOpt(
        "down_for_s",
        default=0.0,
        min=0.0,
        mutable=True,
        help="And for so long it must have been down, by what the source itself knows.",
    ),
    cfg.FloatOpt(
        "healthy_for_s",
        default=300.0,
        min=0.0,
        mutable=True,
        help="A failed host can be reserved again when it has been well for so long.",
    ),
    cfg.FloatOpt(
        "damping_s",
        default=600.0,
        min=0.0,
        mutable=True,
        help="And not before so long after it was taken out of use: a host that flaps causes one "
        "repair in that time.",
    ),
    cfg.BoolOpt(
        "disabled_is_failure",
        default=False,
        mutable=True,
        help="Whether a compute service that a person disabled counts as failed, at once.",
    ),
    cfg.BoolOpt(
        "auto_disabled_is_failure",
        default=False,
        mutable=True,
        help="Whether one that Nova itself disabled (its reason begins with `AUTO:`, as when "
        "libvirt is lost) counts as failed, after down_samples looks.",
    ),
    cfg.StrOpt(
        "guest_errors",
        default="recover",
        choices=WISHES,
        mutable=True,
        help="The monitor `guests`: what to do when Nova shows a server in error, or as crashed, "
        "that nobody asked anything of.",
    ),
    cfg.StrOpt(
        "guest_power_offs",
        default="report",
        choices=WISHES,
        mutable=True,
        help="The same of a server that was switched off and not by Nova. Nova cannot tell a death "
        "from a shutdown in the guest: `recover` starts both again.",
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
        help="The broker Nova sends notifications to, e.g. rabbit://user:secret@host:5672/nova. "
        "Several hosts with commas; TLS by [oslo_messaging_rabbit] ssl, ssl_*_file, or ?ssl=true. "
        "Default: transport_url of [DEFAULT].",
    ),
    cfg.StrOpt(
        "exchange",
        default="nova",
        help="Nova's exchange: control_exchange of nova.conf. It is never created here.",
    ),
    cfg.ListOpt(
        "topics",
        default=["versioned_notifications"],
        help="versioned_notifications_topics of nova.conf, or some of them.",
    ),
    cfg.StrOpt(
        "pool",
        default="holdfast.notifications",
        help="Name of our own queue. Managers with the same name share the messages, each goes to "
        "one of them; every name gets a copy of all, other readers of Nova lose nothing.",
    ),
    cfg.IntOpt(
        "backlog",
        default=100000,
        min=1,
        help="Most messages our queue keeps while no manager reads; the oldest go first.",
    ),
    cfg.IntOpt(
        "keep_days",
        default=7,
        min=1,
        help="The broker removes our queue when no manager has read it for so long.",
    ),
    cfg.BoolOpt(
        "quorum",
        default=False,
        help="Make our queue a quorum queue: replicated, for a RabbitMQ cluster.",
    ),
]
