# SPDX-License-Identifier: Apache-2.0
"""/instance-ha/v1/notifications: who reports that something stopped, and what became of it.

They are rows: taken with or without a manager, and shown without asking one.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.instance_ha_v1 import OURS
from holdfast.api.instance_ha_v1.dates import parse, stamp
from holdfast.api.instance_ha_v1.details import details
from holdfast.api.instance_ha_v1.lists import filters, page
from holdfast.api.instance_ha_v1.segments import times, wrapped
from holdfast.model.errors import StaleWrite, Unavailable
from holdfast.model.notification import (
    TYPES,
    NewNotification,
    Notification,
    check,
    check_hostname,
)

_DETAILS = (1, 1)
CREATE = wrapped(
    "notification",
    {
        "type": {"type": "string", "enum": list(TYPES)},
        "hostname": {"type": "string", "minLength": 1, "maxLength": 255},
        "generated_time": {"type": "string", "minLength": 1, "maxLength": 64},
        "payload": {"type": "object", "minProperties": 1, "maxProperties": 255},
    },
    *("type", "hostname", "generated_time", "payload"),
)


def index(ask: Ask) -> Reply:
    where = filters(ask, ("status", "type"))
    if "source_host_uuid" in ask.query:
        where["segment_host_uuid"] = ask.query["source_host_uuid"]
    since = ask.query.get("generated-since")
    found = ask.services.store.notifications.list_all(
        where, page(ask), since=parse(since, "generated-since") if since else None
    )
    names = _hostnames(ask, found)
    return Reply({"notifications": [view(one, ask.microversion, names) for one in found]})


def show(ask: Ask) -> Reply:
    store = ask.services.store.notifications
    found = store.notification(ask.path["notification_id"])
    shown = view(found, ask.microversion, _hostnames(ask, [found]))
    if ask.microversion >= _DETAILS:
        ended_well = found.status in ("finished", "ignored")
        progress = store.progress(found)
        shown["recovery_workflow_details"] = details(progress, ended_well=ended_well)
    return Reply({"notification": shown})


def create(ask: Ask) -> Reply:
    """202: it is kept, and a manager will see to it."""
    body = ask.body["notification"]
    new = NewNotification(
        body["type"],
        check_hostname(body["hostname"]),
        parse(body["generated_time"], "notification.generated_time"),
        check(body["type"], body["payload"]),
        reporter=ask.caller.user_id,
    )
    interval = timedelta(seconds=ask.services.conf.recovery.duplicate_interval_s)
    try:
        made = ask.services.store.notifications.admit(ask.services.new_id(), new, interval=interval)
    except StaleWrite as error:  # 409 would tell the monitor that we have it
        raise Unavailable("the report could not be written just now, send it again") from error
    ask.services.ring()
    shown = view(made, ask.microversion, _hostnames(ask, [made]))
    return Reply({"notification": shown}, status=202)


def _hostnames(ask: Ask, found: Sequence[Notification]) -> Mapping[str, str]:
    """By segment host, as far as the version asked for shows them."""
    if ask.microversion < OURS or not found:
        return {}
    return ask.services.store.notifications.hostnames([one.segment_host_uuid for one in found])


def view(
    one: Notification, microversion: tuple[int, int], hostnames: Mapping[str, str]
) -> dict[str, Any]:
    shown = {
        "id": one.id,
        "notification_uuid": one.uuid,
        "generated_time": stamp(one.generated_time),
        "source_host_uuid": one.segment_host_uuid,
        "type": one.type,
        "payload": one.payload,
        "status": one.status,
        "failover_segment_uuid": one.segment_uuid,
        "message": one.message,
        **times(one),
    }
    if microversion < OURS:
        return shown
    hostname = hostnames.get(one.segment_host_uuid)
    return shown | {"hostname": hostname, "incident_id": one.incident_id}
