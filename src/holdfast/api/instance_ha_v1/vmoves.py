# SPDX-License-Identifier: Apache-2.0
"""/instance-ha/v1/notifications/NOTIFICATION/vmoves: servers on their way off a dead host."""

from collections.abc import Mapping
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.instance_ha_v1 import OURS
from holdfast.api.instance_ha_v1.dates import stamp
from holdfast.api.instance_ha_v1.lists import filters, page
from holdfast.model.errors import InvalidInput
from holdfast.model.notification import COMPUTE_HOST, Notification


def index(ask: Ask) -> Reply:
    parent = _parent(ask)
    if parent.type != COMPUTE_HOST:
        raise InvalidInput(
            f"Notification {parent.uuid} is of type {parent.type}: servers are moved for"
            f" {COMPUTE_HOST} only"
        )
    where = filters(ask, ("status", "type"))
    found = ask.services.store.notifications.vmoves(parent, where, page(ask))
    return Reply({"vmoves": [view(row, parent, ask.microversion) for row in found]})


def show(ask: Ask) -> Reply:
    parent = _parent(ask)
    row = ask.services.store.notifications.vmove(parent, ask.path["vmove_id"])
    return Reply({"vmove": view(row, parent, ask.microversion)})


def _parent(ask: Ask) -> Notification:
    return ask.services.store.notifications.notification(ask.path["notification_id"])


def view(
    row: Mapping[str, Any], parent: Notification, microversion: tuple[int, int]
) -> dict[str, Any]:
    shown = {
        "id": row["id"],
        "uuid": row["uuid"],
        "notification_uuid": parent.uuid,
        "instance_uuid": row["server_id"],
        "instance_name": row["server_name"],
        "source_host": row["source_host"],
        "dest_host": row["dest_host"],
        "start_time": stamp(row["started_at"]),
        "end_time": stamp(row["ended_at"]),
        "type": row["type"],
        "status": row["status"],
        "message": row["message"],
        "created_at": stamp(row["created_at"]),
        "updated_at": stamp(row["updated_at"]),
        "deleted_at": None,
        "deleted": False,
    }
    return shown if microversion < OURS else shown | {"attempts": row["attempts"]}
