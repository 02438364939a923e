# SPDX-License-Identifier: Apache-2.0
"""[publishers]: publishers of events: broker, webhooks, Alertmanager; none by default."""

from oslo_config import cfg

GROUP = "publishers"
OPTS = [
    cfg.FloatOpt(
        "give_up_h",
        default=24.0,
        min=0.01,
        mutable=True,
        help="Hours after which an undeliverable event is dropped.",
    ),
    cfg.BoolOpt(
        "messaging",
        default=False,
        help="Publish events to a message broker in the format of OpenStack notifications.",
    ),
    cfg.StrOpt(
        "transport_url",
        secret=True,
        help="The message broker, for example rabbit://user:secret@host:5672//. Default: "
        "transport_url of [DEFAULT].",
    ),
    cfg.ListOpt("topics", default=["notifications"], help="Topics of the published events."),
    cfg.StrOpt(
        "exchange",
        default="openstack",
        help="Exchange of the published events: control_exchange of the consumer.",
    ),
    cfg.ListOpt(
        "instance_ha_topics",
        default=["versioned_notifications"],
        help="Topics of events about segments, hosts and notifications in Masakari's format, if "
        "messaging is on. Empty: Holdfast does not publish these events.",
    ),
    cfg.StrOpt(
        "instance_ha_exchange",
        default="masakari",
        help="Exchange of events in Masakari's format.",
    ),
    cfg.FloatOpt(
        "messaging_timeout_s",
        default=10.0,
        min=0.1,
        help="Seconds that publishing one event to the broker may take.",
    ),
    cfg.ListOpt(
        "webhook_urls",
        default=[],
        help="URLs that get every event as a signed POST. https; http only with "
        "webhook_allow_private.",
    ),
    cfg.StrOpt(
        "webhook_secret_file",
        help="File with the secret that signs webhook requests, at least 16 characters, readable "
        "by its owner only. Holdfast reads the file before each request.",
    ),
    cfg.FloatOpt(
        "webhook_timeout_s",
        default=5.0,
        min=0.1,
        help="Seconds that one POST may take, from name resolution to the end of the answer.",
    ),
    cfg.StrOpt(
        "webhook_cafile",
        help="CA certificates (PEM) for webhook servers. Default: the CA certificates of the "
        "system.",
    ),
    cfg.BoolOpt(
        "webhook_allow_private",
        default=False,
        help="Allow webhooks to private and loopback addresses, and by http. Link-local "
        "addresses, where clouds serve metadata, stay forbidden.",
    ),
    cfg.ListOpt(
        "alertmanager_urls",
        default=[],
        help="Alertmanagers that get alarms, for example http://controller:9093. Name all members "
        "of a cluster.",
    ),
    cfg.StrOpt(
        "alertmanager_authorization_file",
        help="File with the value of the header Authorization for Alertmanager, for example "
        "`Bearer TOKEN`, readable by its owner only. Holdfast reads the file before each request. "
        "Default: no such header.",
    ),
    cfg.FloatOpt(
        "alertmanager_timeout_s",
        default=5.0,
        min=0.1,
        help="Seconds that one POST may take, from name resolution to the end of the answer.",
    ),
    cfg.StrOpt(
        "alertmanager_cafile",
        help="CA certificates (PEM) for Alertmanager servers. Default: the CA certificates of the "
        "system.",
    ),
]
