# SPDX-License-Identifier: Apache-2.0
"""/instance-ha/v1/notifications and vmoves: failure reports, recovery progress, moved servers.

Notifications are rows in the database: the API stores and shows them without a manager.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.api.instance_ha_v1 import OURS, filters, page, parse, spaced, stamp
from holdfast.api.instance_ha_v1.segments import times, wrapped
from holdfast.api.request import Request, Response
from holdfast.db.notifications import Progress
from holdfast.model import operation
from holdfast.model.errors import InvalidInput, StaleWrite, Unavailable
from holdfast.model.incident import GUEST, HOST, PROCESS, STEPS, WORK
from holdfast.model.notification import (
    COMPUTE_HOST,
    TYPES,
    NewNotification,
    Notification,
    check,
    check_hostname,
)

# recovery_workflow_details: the steps of a recovery, under the task names that clients know.


#: Task names of the contract by kind of incident and step; other steps keep their own names.
_NAMES: Mapping[str, Mapping[str, str]] = {
    HOST: {
        "force_down": "DisableComputeServiceTask",
        "prepare": "PrepareHAEnabledInstancesTask",
        "move": "EvacuateInstancesTask",
    },
    GUEST: {
        "stop": "StopInstanceTask",
        "start": "StartInstanceTask",
        "confirm": "ConfirmInstanceActiveTask",
    },
    PROCESS: {
        "disable": "DisableComputeNodeTask",
        "confirm": "ConfirmComputeNodeDisabledTask",
    },
}
_KIND = {work: kind for kind, work in WORK.items()}
_STATES = {
    operation.DONE: "SUCCESS",
    operation.SKIPPED: "SUCCESS",
    operation.ERROR: "FAILURE",
}


def details(progress: Progress | None, *, ended_well: bool = False) -> list[dict[str, Any]]:
    """Return the finished steps and the current or last step of a recovery.

    A guest that died with its host shows the host's steps. `ended_well`: the notification is
    finished already. The manager writes the notification's status in the same commit as the last
    step's sentence, and marks the step as done after that.
    """
    if progress is None:
        return []
    kind = _KIND[progress.kind]
    names = _NAMES[kind]
    shown = [
        _item(
            names.get(row["name"], row["name"]),
            _STATES.get(row["status"], "RUNNING"),
            row["finished_at"],
            row["sentence"],
        )
        for row in progress.steps
    ]
    current = _current(STEPS[kind], [row["name"] for row in progress.steps])
    over = progress.status in (operation.DONE, operation.CANCELLED)
    ending = ended_well and progress.status in operation.OPEN
    if current and not over and (progress.sentence or not ending):
        state = "SUCCESS" if ending else _STATES.get(progress.status, "RUNNING")
        shown.append(_item(names.get(current, current), state, progress.at, progress.sentence))
    return shown


def _current(order: Sequence[str], done: Sequence[str]) -> str | None:
    """Return the first built-in step after all finished steps."""
    reached = max((order.index(name) + 1 for name in done if name in order), default=0)
    return order[reached] if reached < len(order) else None


def _item(name: str, state: str, at: datetime | None, message: str) -> dict[str, Any]:
    progress = 1.0 if state == "SUCCESS" else 0.0
    details = {"timestamp": spaced(at), "progress": str(progress), "message": message}
    return {"name": name, "progress": progress, "state": state, "progress_details": [details]}


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


def index(request: Request) -> Response:
    where = filters(request, ("status", "type"))
    if "source_host_uuid" in request.query:
        where["segment_host_uuid"] = request.query["source_host_uuid"]
    since = request.query.get("generated-since")
    notifications = request.services.store.notifications.list_all(
        where, page(request), since=parse(since, "generated-since") if since else None
    )
    names = _hostnames(request, notifications)
    return Response(
        {
            "notifications": [
                view(notification, request.microversion, names) for notification in notifications
            ]
        }
    )


def show(request: Request) -> Response:
    store = request.services.store.notifications
    notification = store.notification(request.path["notification_id"])
    shown = view(notification, request.microversion, _hostnames(request, [notification]))
    if request.microversion >= _DETAILS:
        ended_well = notification.status in ("finished", "ignored")
        progress = store.progress(notification)
        shown["recovery_workflow_details"] = details(progress, ended_well=ended_well)
    return Response({"notification": shown})


def create(request: Request) -> Response:
    """Store a notification; 202. The manager handles the notification later."""
    body = request.body["notification"]
    new = NewNotification(
        body["type"],
        check_hostname(body["hostname"]),
        parse(body["generated_time"], "notification.generated_time"),
        check(body["type"], body["payload"]),
        reporter=request.caller.user_id,
    )
    interval = timedelta(seconds=request.services.conf.recovery.duplicate_interval_s)
    try:
        notification = request.services.store.notifications.admit(
            request.services.new_id(), new, interval=interval
        )
    except StaleWrite as error:  # 409 would tell the monitor that the report is stored
        raise Unavailable("the report could not be written just now, send it again") from error
    request.services.wake()
    shown = view(notification, request.microversion, _hostnames(request, [notification]))
    return Response({"notification": shown}, status=202)


def _hostnames(request: Request, notifications: Sequence[Notification]) -> Mapping[str, str]:
    """Return host names by segment host id; empty below version 1.4."""
    if request.microversion < OURS or not notifications:
        return {}
    return request.services.store.notifications.hostnames(
        [notification.segment_host_uuid for notification in notifications]
    )


def view(
    notification: Notification, microversion: tuple[int, int], hostnames: Mapping[str, str]
) -> dict[str, Any]:
    shown = {
        "id": notification.id,
        "notification_uuid": notification.uuid,
        "generated_time": stamp(notification.generated_time),
        "source_host_uuid": notification.segment_host_uuid,
        "type": notification.type,
        "payload": notification.payload,
        "status": notification.status,
        "failover_segment_uuid": notification.segment_uuid,
        "message": notification.message,
        **times(notification),
    }
    if microversion < OURS:
        return shown
    hostname = hostnames.get(notification.segment_host_uuid)
    return shown | {"hostname": hostname, "incident_id": notification.incident_id}


# /instance-ha/v1/notifications/NOTIFICATION/vmoves: servers evacuated from a failed host.


def list_vmoves(request: Request) -> Response:
    parent = _parent(request)
    if parent.type != COMPUTE_HOST:
        raise InvalidInput(
            f"Notification {parent.uuid} is of type {parent.type}: servers are moved for"
            f" {COMPUTE_HOST} only"
        )
    where = filters(request, ("status", "type"))
    rows = request.services.store.notifications.vmoves(parent, where, page(request))
    return Response({"vmoves": [vmove_view(row, parent, request.microversion) for row in rows]})


def show_vmove(request: Request) -> Response:
    parent = _parent(request)
    row = request.services.store.notifications.vmove(parent, request.path["vmove_id"])
    return Response({"vmove": vmove_view(row, parent, request.microversion)})


def _parent(request: Request) -> Notification:
    return request.services.store.notifications.notification(request.path["notification_id"])


def vmove_view(
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
