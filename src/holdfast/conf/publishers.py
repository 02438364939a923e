# SPDX-License-Identifier: Apache-2.0
"""[lease_notifications]: publishers of events: broker, webhooks, Alertmanager; none by default."""

from oslo_config import cfg

GROUP = "lease_notifications"
OPTS = [
    cfg.FloatOpt(
        "give_up_h",
        default=24.0,
        min=0.01,
        mutable=True,
        help="Hours after which a notification that could not be delivered is let go.",
    ),
    cfg.BoolOpt(
        "messaging",
        default=False,
        help="Send notifications to a message broker, as other OpenStack services do.",
    ),
    cfg.StrOpt(
        "transport_url",
        secret=True,
        help="The broker they go to, e.g. rabbit://user:secret@host:5672//. "
        "Default: transport_url of [DEFAULT].",
    ),
    cfg.ListOpt("topics", default=["notifications"], help="Topics they are sent to."),
    cfg.StrOpt(
        "exchange",
        default="openstack",
        help="The exchange they are sent to: control_exchange of whoever reads them.",
    ),
    cfg.ListOpt(
        "instance_ha_topics",
        default=["versioned_notifications"],
        help="Topics that what happens to segments, their hosts and reports is sent to where "
        "messaging is on, in Masakari's format; empty: none.",
    ),
    cfg.StrOpt(
        "instance_ha_exchange",
        default="masakari",
        help="The exchange that those are sent to.",
    ),
    cfg.FloatOpt(
        "messaging_timeout_s",
        default=10.0,
        min=0.1,
        help="Longest that handing one notification to the broker may take.",
    ),
    cfg.ListOpt(
        "webhook_urls",
        default=[],
        help="Addresses that every notification is sent to by POST, signed. https; http only with "
        "webhook_allow_private.",
    ),
    cfg.StrOpt(
        "webhook_secret_file",
        help="File with the secret that signs webhooks, at least 16 characters, read anew for "
        "each; readable by nobody else.",
    ),
    cfg.FloatOpt(
        "webhook_timeout_s",
        default=5.0,
        min=0.1,
        help="Longest that one POST may take, from the look-up of the name to the answer.",
    ),
    cfg.StrOpt(
        "webhook_cafile",
        help="Certificates (PEM) of the authorities that webhook servers must show; default: those "
        "of the system.",
    ),
    cfg.BoolOpt(
        "webhook_allow_private",
        default=False,
        help="Let webhooks go to private and loopback addresses, and by http. Link-local ones, "
        "where clouds keep their metadata, stay closed.",
    ),
    cfg.ListOpt(
        "alertmanager_urls",
        default=[],
        help="Alertmanagers that alarms, and nothing else, are sent to, e.g. "
        "http://controller:9093; all members of a cluster.",
    ),
    cfg.StrOpt(
        "alertmanager_authorization_file",
        help="File with what the header Authorization says to them, such as Bearer or Basic and "
        "the rest, read anew for each; readable by nobody else. Default: no such header.",
    ),
    cfg.FloatOpt(
        "alertmanager_timeout_s",
        default=5.0,
        min=0.1,
        help="Longest that one POST may take, from the look-up of the name to the answer.",
    ),
    cfg.StrOpt(
        "alertmanager_cafile",
        help="Certificates (PEM) of the authorities that Alertmanagers must show; default: those "
        "of the system.",
    ),
]
