# SPDX-License-Identifier: Apache-2.0
"""[notifications]: what Nova says on its message broker.

nova.conf needs [notifications] notification_format = versioned (or both) and
[oslo_messaging_notifications] driver = messagingv2; `holdfast notifications listen` shows whether
anything arrives.
"""

from oslo_config import cfg

GROUP = "notifications"
OPTS = [
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
