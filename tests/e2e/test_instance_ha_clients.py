# SPDX-License-Identifier: Apache-2.0
"""Clients of the instance HA contract as people have them: openstacksdk's `instance_ha`, and
`openstack segment …`, `openstack notification …` of python-masakariclient, unchanged."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from openstack import exceptions
from openstack.connection import Connection

from holdfast.db import Store
from holdfast.db.tables import vmoves
from holdfast.runtime.clock import SystemClock
from tests.e2e.deployment import all_in_one
from tests.e2e.test_clients import OpenStack, command
from tests.processes import PATIENCE_S, eventually

DOWN = {"event": "STOPPED", "host_status": "UNKNOWN", "cluster_status": "OFFLINE"}


class Town:
    """A running `holdfast up`, and its database beside it."""

    def __init__(self, url: str, store: Store) -> None:
        self.endpoint = f"{url}/instance-ha/v1"
        self.store = store

    def moved(self, notification: str, **fields: Any) -> str:
        """A move as a manager leaves it."""
        now = datetime.now(UTC)
        own = str(uuid.uuid4())
        row = {
            "uuid": own,
            "notification_uuid": notification,
            "server_id": str(uuid.uuid4()),
            "server_name": "web-1",
            "source_host": "cmp-01",
            "dest_host": "cmp-02",
            "type": "evacuation",
            "status": "succeeded",
            "started_at": now,
            "ended_at": now,
            "message": "moved",
            "created_at": now,
        }
        with self.store.database.write() as conn:
            conn.execute(sa.insert(vmoves).values(**{**row, **fields}))
        return own


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    with all_in_one(folder) as (_program, client):
        store = Store(f"sqlite:///{folder / 'state' / 'holdfast.db'}", SystemClock())
        eventually((folder / "state" / "populated").exists)
        for uuid_ in {member.segment.uuid for member in store.segments.all_members()}:
            store.segments.delete(uuid_)  # the demo's: a newcomer finds it, we begin anew
        yield Town(client.url, store)
        store.close()


def connect(town: Town, **options: Any) -> Any:
    return Connection(auth_type="none", auth={"endpoint": town.endpoint}, **options).instance_ha


@pytest.fixture(scope="module")
def ha(town: Town) -> Any:
    return connect(town)


class HighAvailability(OpenStack):
    """The openstack command with python-masakariclient in it."""

    def __init__(self, endpoint: str, *auth: str) -> None:
        super().__init__(endpoint)
        self.words = (*auth, "--os-endpoint", endpoint)


@pytest.fixture(scope="module")
def openstack(town: Town) -> Iterator[HighAvailability]:
    with HighAvailability(town.endpoint, "--os-auth-type", "none") as made:
        yield made


def ago(**back: float) -> datetime:
    """As monitors send it: naive, UTC."""
    return datetime.now(UTC).replace(tzinfo=None) - timedelta(**back)


# openstacksdk


def test_the_sdk_makes_finds_changes_and_deletes_segments(ha: Any) -> None:
    made = ha.create_segment(
        name="sdk-a", recovery_method="auto", service_type="COMPUTE", is_enabled=False
    )
    assert (made.name, made.is_enabled, made.description) == ("sdk-a", False, None)
    other = ha.create_segment(name="sdk-b", recovery_method="rh_priority", service_type="GPU")
    assert other.is_enabled is True
    assert ha.get_segment(made.uuid).name == "sdk-a"
    assert {segment.name for segment in ha.segments()} >= {"sdk-a", "sdk-b"}
    assert [segment.name for segment in ha.segments(recovery_method="rh_priority")] == ["sdk-b"]
    assert [segment.name for segment in ha.segments(service_type="GPU")] == ["sdk-b"]
    assert "sdk-a" in {segment.name for segment in ha.segments(is_enabled=False)}
    assert "sdk-a" not in {segment.name for segment in ha.segments(is_enabled=True)}
    with pytest.raises(exceptions.ConflictException, match="sdk-a"):
        ha.create_segment(name="sdk-a", recovery_method="auto", service_type="COMPUTE")
    with pytest.raises(exceptions.BadRequestException, match="recovery_method"):
        ha.create_segment(name="sdk-c", recovery_method="magic", service_type="COMPUTE")
    changed = ha.update_segment(made.uuid, name="sdk-aa", description="text", is_enabled=True)
    assert (changed.name, changed.description, changed.is_enabled) == ("sdk-aa", "text", True)
    # an object of the SDK names itself by the number in it
    assert ha.update_segment(other, service_type="COMPUTE").service_type == "COMPUTE"
    for each in (made.uuid, other):
        ha.delete_segment(each)
    assert ha.delete_segment(made.uuid) is None
    with pytest.raises(exceptions.NotFoundException):
        ha.delete_segment(made.uuid, ignore_missing=False)
    with pytest.raises(exceptions.NotFoundException):
        ha.get_segment(made.uuid)


def test_the_sdk_pages_by_number_until_a_page_is_empty(ha: Any) -> None:
    made = [
        ha.create_segment(name=f"page-{n}", recovery_method="auto", service_type="PAGED")
        for n in range(5)
    ]
    paged = [segment.name for segment in ha.segments(service_type="PAGED", limit=2)]
    assert paged == ["page-4", "page-3", "page-2", "page-1", "page-0"]
    up = ha.segments(service_type="PAGED", limit=2, sort_key="name", sort_dir="asc")
    assert [one.name for one in up] == sorted(paged)
    for each in made:
        ha.delete_segment(each.uuid)


def test_the_sdk_puts_hosts_into_segments(ha: Any) -> None:
    segment = ha.create_segment(name="hosts", recovery_method="auto", service_type="COMPUTE")
    host = {"type": "KVM", "control_attributes": "SSH"}
    one = ha.create_host(segment.uuid, name="cmp-01", reserved=True, **host)
    assert (one.name, one.reserved, one.on_maintenance) == ("cmp-01", True, False)
    assert one.failover_segment_id == segment.uuid
    two = ha.create_host(segment.uuid, name="cmp-02", on_maintenance="True", **host)
    assert {each.name for each in ha.hosts(segment.uuid)} == {"cmp-01", "cmp-02"}
    assert [each.name for each in ha.hosts(segment.uuid, reserved=True)] == ["cmp-01"]
    assert [each.name for each in ha.hosts(segment.uuid, on_maintenance=True)] == ["cmp-02"]
    assert [each.name for each in ha.hosts(segment.uuid, limit=1)] == ["cmp-02", "cmp-01"]
    assert ha.get_host(one.uuid, segment=segment.uuid).type == "KVM"
    assert ha.get_host(one, segment=segment).uuid == one.uuid
    changed = ha.update_host(two.uuid, segment=segment.uuid, on_maintenance=False, type="XEN")
    assert (changed.on_maintenance, changed.type) == (False, "XEN")
    renamed = ha.update_host(two.uuid, segment=segment.uuid, name="cmp-03")
    assert renamed.name == "cmp-03"
    with pytest.raises(exceptions.BadRequestException, match="could not be found"):
        ha.create_host(segment.uuid, name="moon", **host)
    with pytest.raises(exceptions.ConflictException, match="cmp-01"):
        ha.create_host(segment.uuid, name="cmp-01", **host)
    ha.delete_host(two.uuid, segment=segment.uuid)
    assert ha.delete_host(two.uuid, segment=segment.uuid) is None
    ha.delete_segment(segment.uuid)
    with pytest.raises(exceptions.NotFoundException):
        ha.get_host(one.uuid, segment=segment.uuid)


def test_the_sdk_sends_notifications_and_reads_the_result(ha: Any, town: Town) -> None:
    segment = ha.create_segment(
        name="reports", recovery_method="auto", service_type="COMPUTE", is_enabled=False
    )
    host = {"type": "KVM", "control_attributes": "SSH"}
    member = ha.create_host(segment.uuid, name="cmp-01", **host)
    report = {"type": "COMPUTE_HOST", "hostname": "cmp-01", "payload": DOWN}
    when = ago(seconds=30)
    made = ha.create_notification(generated_time=when, **report)
    assert made.notification_uuid and made.source_host_uuid == member.uuid
    assert made.generated_time == when.isoformat(timespec="microseconds")
    with pytest.raises(exceptions.ConflictException, match="duplicate"):
        ha.create_notification(generated_time=when, **report)
    with pytest.raises(exceptions.BadRequestException, match="could not be found"):
        ha.create_notification(generated_time=when, **{**report, "hostname": "moon"})
    shown = ha.get_notification(made.notification_uuid)
    assert (shown.type, shown.payload) == ("COMPUTE_HOST", DOWN)
    assert shown.recovery_workflow_details is None  # no version asked for
    later = connect(town, ha_api_version="1.1").get_notification(made.notification_uuid)
    assert isinstance(later.recovery_workflow_details, list)
    assert made.notification_uuid in {
        each.notification_uuid
        for each in ha.notifications(
            type="COMPUTE_HOST",
            source_host_uuid=member.uuid,
            generated_since=ago(minutes=5).isoformat(),
        )
    }
    assert list(ha.notifications(source_host_uuid=member.uuid, status="unheard-of")) == []
    assert ha.wait_for_status(shown, "ignored", interval=0.1, wait=PATIENCE_S).status == "ignored"
    first, second = town.moved(made.notification_uuid), town.moved(made.notification_uuid)
    moves = list(ha.vmoves(made.notification_uuid, limit=1))
    assert [each.uuid for each in moves] == [second, first]
    assert list(ha.vmoves(made.notification_uuid, status="failed")) == []
    move = ha.get_vmove(first, made.notification_uuid)
    assert (move.server_name, move.source_host, move.dest_host) == ("web-1", "cmp-01", "cmp-02")
    with pytest.raises(exceptions.NotFoundException):
        ha.get_vmove(str(uuid.uuid4()), made.notification_uuid)
    with pytest.raises(exceptions.NotFoundException):
        ha.get_vmove(first, str(uuid.uuid4()))
    ha.update_host(member.uuid, segment=segment.uuid, on_maintenance=True)
    with pytest.raises(exceptions.ConflictException, match="maintenance"):
        ha.create_notification(generated_time=ago(), **report)
    ha.delete_segment(segment.uuid)
    assert ha.wait_for_delete(segment, interval=0.1, wait=PATIENCE_S)


def test_the_sdk_gets_an_error_if_the_endpoint_names_another_project(town: Town) -> None:
    there = Town(town.endpoint.removesuffix("/instance-ha/v1"), town.store)
    there.endpoint = f"{town.endpoint}/0123456789abcdef0123456789abcdef"
    with pytest.raises(exceptions.BadRequestException, match="project_id"):
        list(connect(there).segments())


# the openstack command


def test_the_openstack_command_itself_runs_unchanged(openstack: HighAvailability) -> None:
    listed = json.loads(command("openstack", [*openstack.words, "segment", "list", "-f", "json"]))
    assert listed == openstack.json("segment", "list")


def test_openstack_segment_commands_run_unchanged(openstack: HighAvailability) -> None:
    made = openstack.json(
        "segment", "create", "osc", "auto", "COMPUTE", "--description", "by hand",
        "--is_enabled", "False",
    )  # fmt: skip
    assert (made["name"], made["is_enabled"], made["description"]) == ("osc", False, "by hand")
    assert made["recovery_method"] == "auto"
    rows = openstack.json("segment", "list", "--filters", "service_type=COMPUTE;enabled=False")
    assert [row["name"] for row in rows] == ["osc"]
    openstack("segment", "create", "osc-2", "reserved_host", "COMPUTE")
    rows = openstack.json("segment", "list", "--sort", "name:asc", "--limit", "1")
    names = [row["name"] for row in rows]
    assert names == sorted(names) and {"osc", "osc-2"} <= set(names)
    changed = openstack.json(
        "segment", "update", "osc", "--name", "osc-1", "--is_enabled", "True",
        "--recovery_method", "auto_priority",
    )  # fmt: skip
    assert (changed["name"], changed["is_enabled"]) == ("osc-1", True)
    assert openstack.json("segment", "show", "osc-1") == openstack.json(
        "segment", "show", made["uuid"]
    )
    code, _out, err = openstack.ended("segment", "create", "osc-1", "auto", "COMPUTE")
    assert code != 0 and "osc-1" in err

    host = openstack.json(
        "segment", "host", "create", "cmp-04", "KVM", "SSH", "osc-1",
        "--reserved", "True", "--on_maintenance", "False",
    )  # fmt: skip
    assert (host["name"], host["reserved"], host["on_maintenance"]) == ("cmp-04", True, False)
    openstack("segment", "host", "create", "cmp-05", "KVM", "SSH", "osc-1")
    rows = openstack.json("segment", "host", "list", "osc-1", "--filters", "reserved=True")
    assert [row["name"] for row in rows] == ["cmp-04"]
    rows = openstack.json("segment", "host", "list", "osc-1", "--sort", "name:asc")
    assert [row["name"] for row in rows] == ["cmp-04", "cmp-05"]
    changed = openstack.json(
        "segment", "host", "update", "osc-1", "cmp-04", "--reserved", "False",
        "--on_maintenance", "True", "--name", "cmp-06", "--type", "XEN",
        "--control_attributes", "IPMI",
    )  # fmt: skip
    assert (changed["name"], changed["reserved"], changed["type"]) == ("cmp-06", False, "XEN")
    assert openstack.json("segment", "host", "show", "osc-1", "cmp-06") == changed
    for name in ("cmp-06", "cmp-05"):
        openstack("segment", "host", "delete", "osc-1", name)
    assert openstack.json("segment", "host", "list", "osc-1") == []
    for name in ("osc-1", "osc-2"):
        openstack("segment", "delete", name)
    assert not {"osc-1", "osc-2"} & {row["name"] for row in openstack.json("segment", "list")}


def test_openstack_notification_commands_run_unchanged(
    openstack: HighAvailability, town: Town
) -> None:
    openstack("segment", "create", "told", "auto", "COMPUTE", "--is_enabled", "False")
    openstack("segment", "host", "create", "cmp-04", "KVM", "SSH", "told")
    when = ago(seconds=10).isoformat(timespec="milliseconds")
    words = ("COMPUTE_HOST", "cmp-04", when, json.dumps(DOWN))
    made = openstack.json("notification", "create", *words)
    assert (made["type"], made["payload"]) == ("COMPUTE_HOST", DOWN)
    assert isinstance(made["recovery_workflow_details"], list)
    code, _out, err = openstack.ended("notification", "create", *words)
    assert code != 0 and "duplicate" in err
    own = made["notification_uuid"]
    assert openstack.json("notification", "show", own)["generated_time"].startswith(when)
    source = f"source_host_uuid={made['source_host_uuid']};type=COMPUTE_HOST"
    rows = openstack.json("notification", "list", "--filters", source, "--sort", "type:asc")
    assert [row["notification_uuid"] for row in rows] == [own]
    code, _out, err = openstack.ended("notification", "show", str(uuid.uuid4()))
    assert code != 0 and "not found" in err.lower()
    move = town.moved(own, server_name="db-1")
    (row,) = openstack.json("notification", "vmove", "list", own, "--filters", "status=succeeded")
    assert (row["uuid"], row["server_name"]) == (move, "db-1")
    shown = openstack.json("notification", "vmove", "show", own, move)
    assert (shown["status"], shown["message"]) == ("succeeded", "moved")

    def ignored() -> bool:
        shown = openstack.json("notification", "show", own)
        return bool(shown["status"] == "ignored")

    eventually(ignored)  # nobody knows whether the host is off, so nothing is done
    openstack("segment", "delete", "told")
