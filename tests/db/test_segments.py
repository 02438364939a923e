# SPDX-License-Identifier: Apache-2.0
"""Segments, their hosts and notifications on every database: pages, in use, admitted once."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.db import Store
from holdfast.db.engine import Page
from holdfast.db.notifications import attach, end
from holdfast.db.segments import set_member
from holdfast.db.tables import audit, hosts, incidents, notifications
from holdfast.model.errors import Conflict, InvalidInput, NotFound
from holdfast.model.notification import COMPUTE_HOST, PROCESS, VM, NewNotification, Notification
from holdfast.model.operation import Claim
from holdfast.model.segment import SegmentHost
from holdfast.ports.cloud import CloudHost
from holdfast.ports.ledger import Work
from holdfast.ports.publishers import ANNOUNCE, NullPublisher
from holdfast.recovery.events import IncidentPublisher
from tests.db.test_floatingips import at_once

NORTH = {"name": "north", "recovery_method": "auto", "service_type": "COMPUTE"}
HOST = {"type": "KVM", "control_attributes": "SSH"}
DOWN = {"event": "STOPPED", "host_status": "NORMAL"}
THREE_MINUTES = timedelta(seconds=180)


def new_id() -> str:
    return str(uuid.uuid4())


def cloud_host(name: str, **fields: Any) -> CloudHost:
    own = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    return CloudHost(**{"uuid": own, "hypervisor_hostname": name, "service_host": name, **fields})


def joined(store: Store, name: str = "cmp-1.site", segment: str = "", **more: Any) -> SegmentHost:
    if not segment:
        segment = store.segments.create(new_id(), {**NORTH, "name": f"of {name}"}).uuid
    host_id = store.segments.know(cloud_host(name), "here")
    return store.segments.add_host(new_id(), segment, host_id, {**HOST, **more})


def report(at: datetime, **more: Any) -> NewNotification:
    base = {"type": COMPUTE_HOST, "hostname": "cmp-1", "generated_time": at, "payload": DOWN}
    return NewNotification(**{**base, **more})


def admit(store: Store, new: NewNotification) -> Notification:
    return store.notifications.admit(new_id(), new, interval=THREE_MINUTES)


def now(store: Store) -> datetime:
    return store.database.now()


# segments and pages


def test_a_segment_is_made_changed_and_deleted_by_uuid_or_number(store: Store) -> None:
    made = store.segments.create(new_id(), {**NORTH, "spare_hosts": 2})
    assert (made.enabled, made.trust_host_status, made.spare_hosts) == (True, False, 2)
    assert store.segments.segment(made.uuid) == store.segments.segment(str(made.id)) == made
    changed = store.segments.change(str(made.id), {"description": "two\nlines", "enabled": False})
    assert (changed.description, changed.enabled, changed.name) == ("two\nlines", False, "north")
    assert changed.updated_at is not None and made.updated_at is None
    store.segments.delete(made.uuid)
    for act in (store.segments.segment, store.segments.delete):
        with pytest.raises(NotFound, match="No failover segment"):
            act(made.uuid)


def test_of_many_who_want_a_name_at_once_one_gets_it(store: Store) -> None:
    said = at_once([lambda: store.segments.create(new_id(), NORTH).name] * 6)
    assert sorted(map(str, said)) == sorted([str(Conflict)] * 5 + ["north"])
    other = store.segments.create(new_id(), {**NORTH, "name": "south"})
    with pytest.raises(Conflict, match="name north already exists"):
        store.segments.change(other.uuid, {"name": "north"})
    assert store.segments.change(other.uuid, {"name": "south"}).name == "south"


ORDERS: Sequence[tuple[tuple[str, bool], ...]] = (
    (),
    (("name", False),),
    (("description", True), ("name", False)),
    (("description", False), ("name", True)),
    (("enabled", False), ("updated_at", True)),
    (("deleted", False),),
)


def test_pages_of_any_order_show_every_row_once(store: Store) -> None:
    made = []
    for number in range(9):
        text = [None, "a", "b"][number % 3]
        values = {**NORTH, "name": f"s{number}", "description": text, "enabled": number % 2 == 0}
        made.append(store.segments.create(new_id(), values).id)
    store.segments.change(str(made[4]), {"service_type": "x"})
    for sort, limit in itertools.product(ORDERS, (1, 2, 4)):
        order = (*sort, ("created_at", True), ("id", True))
        whole = [one.id for one in store.segments.list_all({}, Page(sort=order))]
        assert sorted(whole) == sorted(made), order
        seen: list[int] = []
        marker = None
        while found := store.segments.list_all({}, Page(limit, marker, order)):
            seen += [one.id for one in found]
            marker = str(found[-1].id)
        assert seen == whole, (order, limit)
    assert store.segments.list_all({}, Page(0)) == []


def test_empty_values_sort_first_and_wrong_keys_and_markers_are_refused(store: Store) -> None:
    for name, text in (("a", "x"), ("b", None), ("c", "w")):
        store.segments.create(new_id(), {**NORTH, "name": name, "description": text})
    order = (("description", False), ("id", True))
    assert [one.name for one in store.segments.list_all({}, Page(sort=order))] == ["b", "c", "a"]
    for marker in ("99999", new_id(), "-1", "٣"):
        with pytest.raises(InvalidInput, match=r"Marker .* could not be found"):
            store.segments.list_all({}, Page(marker=marker))
    with pytest.raises(InvalidInput, match="sort_key: 'colour' is not known"):
        store.segments.list_all({}, Page(sort=(("colour", True),)))


# hosts: one list, two facets


def test_a_host_that_is_enrolled_and_in_a_segment_is_one_row(store: Store) -> None:
    host = cloud_host("cmp-1.site", vcpus=8)
    enrolled = store.ledger.enrol(host, "here", {"gpu": "a100"}, Work())
    assert store.segments.know(cloud_host("cmp-1.site", vcpus=4), "here") == enrolled.id
    assert store.ledger.host(str(enrolled.id)).vcpus == 8  # reservation keeps up with it itself
    member = joined(store)
    assert (member.host_id, member.name, member.key) == (enrolled.id, "cmp-1.site", "cmp-1.site")
    store.ledger.withdraw(enrolled.id, Work())
    assert store.segments.member("CMP-1") == member


def test_a_host_known_by_its_segment_can_be_enrolled_later(store: Store) -> None:
    first = store.segments.know(cloud_host("cmp-1.site", vcpus=4, traits=frozenset({"T"})), "here")
    assert store.segments.know(cloud_host("cmp-1.site", vcpus=6), "here") == first
    again = cloud_host("CMP-1.site.", uuid=new_id(), vcpus=7)  # installed anew
    assert store.segments.know(again, "here") == first
    with store.database.read() as conn:
        (row,) = conn.execute(sa.select(hosts)).mappings()
    assert (row["vcpus"], row["uuid"], row["enrolled"]) == (7, again.uuid, False)
    assert row["reservable"] is False
    assert store.ledger.enrolled() == []
    assert store.ledger.enrol(again, "here", {}, Work()).id == first


def test_many_who_learn_of_a_host_at_once_make_one_row(store: Store) -> None:
    said = at_once([lambda: store.segments.know(cloud_host("cmp-1"), "here")] * 6)
    assert len(set(said)) == 1 and isinstance(said[0], int)


def test_a_host_is_in_one_segment_only_and_found_by_short_and_full_name(store: Store) -> None:
    member = joined(store, reserved=True)
    other = store.segments.create(new_id(), {**NORTH, "name": "other"})
    with pytest.raises(Conflict, match=r"cmp-1\.site already exists in segment of cmp-1\.site"):
        joined(store, segment=other.uuid)
    said = at_once([lambda: joined(store, "cmp-2.site", segment=other.uuid).name] * 4)
    assert sorted(map(str, said)) == sorted([str(Conflict)] * 3 + ["cmp-2.site"])
    for name in ("cmp-1", "cmp-1.site", "CMP-1.SITE."):
        assert store.segments.member(name) == member
    assert store.segments.member("cmp-1.elsewhere") is None
    assert store.segments.member("cmp") is None
    assert store.segments.by_uuid(member.uuid) == member
    assert store.segments.by_uuid(new_id()) is None
    assert store.segments.members(member.segment.uuid) == [member]
    assert [member.name for member in store.segments.all_members()] == ["cmp-1.site", "cmp-2.site"]
    joined(store, "cmp-1.annex", segment=other.uuid)
    with pytest.raises(Conflict, match="means several hosts"):
        store.segments.member("cmp-1")
    assert store.segments.member("cmp-1.site") == member


def test_hosts_are_listed_by_what_they_have_and_shown_in_their_segment_only(store: Store) -> None:
    one = joined(store, reserved=True)
    two = joined(store, "cmp-2", segment=one.segment.uuid, on_maintenance=True)
    stranger = joined(store, "cmp-3")

    def listed(**where: Any) -> list[str]:
        return [each.name for each in store.segments.hosts(one.segment.uuid, where, Page())]

    assert listed() == ["cmp-2", "cmp-1.site"]
    assert listed(reserved=True) == listed(name="cmp-1") == ["cmp-1.site"]
    assert listed(on_maintenance=True, control_attributes="SSH") == ["cmp-2"]
    assert listed(type="XEN") == []
    assert store.segments.host(str(one.segment.id), str(two.id)) == two
    for ref in (stranger.uuid, new_id(), "0"):
        with pytest.raises(NotFound):
            store.segments.host(one.segment.uuid, ref)
        with pytest.raises(NotFound):
            store.segments.change_host(one.segment.uuid, ref, {"reserved": True})
        with pytest.raises(NotFound):
            store.segments.delete_host(one.segment.uuid, ref)


def test_the_audit_log_has_every_change_and_no_free_text(store: Store) -> None:
    member = joined(store, control_attributes="secret-1")
    values = {"control_attributes": "secret-2", "reserved": True}
    store.segments.change_host(member.segment.uuid, member.uuid, values)
    store.segments.change(member.segment.uuid, {"description": "secret-3" * 2000, "enabled": False})
    store.segments.delete(member.segment.uuid)
    with store.database.read() as conn:
        said = "\n".join(conn.execute(sa.select(audit.c.sentence).order_by(audit.c.id)).scalars())
    assert said.splitlines() == [
        "segment of cmp-1.site made",
        "host cmp-1.site joined segment of cmp-1.site",
        "host cmp-1.site of segment of cmp-1.site: reserved = True, control_attributes changed",
        "segment of cmp-1.site: enabled = False, description changed",
        "segment of cmp-1.site deleted",
    ]


def test_a_host_is_changed_renamed_and_leaves(store: Store) -> None:
    one = joined(store)
    two = joined(store, "cmp-2", segment=one.segment.uuid)
    third = store.segments.know(cloud_host("cmp-3"), "here")
    ref = one.segment.uuid
    changed = store.segments.change_host(ref, one.uuid, {"host_id": third, "reserved": True})
    assert (changed.name, changed.reserved, changed.uuid) == ("cmp-3", True, one.uuid)
    with pytest.raises(Conflict, match="cmp-3 already exists"):
        store.segments.change_host(ref, two.uuid, {"host_id": third})
    with store.database.write() as conn:
        set_member(
            conn, one.uuid, NullPublisher(), reserved=False, on_maintenance=True, now=now(store)
        )
        set_member(conn, two.uuid, NullPublisher(), now=now(store))
        set_member(conn, new_id(), NullPublisher(), reserved=True, now=now(store))
    flags = [(each.reserved, each.on_maintenance) for each in store.segments.all_members()]
    assert flags == [(False, True), (False, False)]
    store.segments.delete_host(ref, one.uuid)
    assert store.segments.member("cmp-3") is None
    store.segments.delete(ref)
    assert store.segments.all_members() == []


# notifications


def test_a_report_is_kept_with_the_work_that_comes_of_it(store: Store) -> None:
    member, at = joined(store), now(store)
    made = admit(store, report(at))
    assert (made.status, made.segment_host_uuid) == ("new", member.uuid)
    assert made.segment_uuid == member.segment.uuid
    assert (made.generated_time, made.payload) == (at, DOWN)
    work = store.operations.by_key(f"notification/{made.uuid}")
    assert (work.kind, work.subject) == ("notification", f"notification:{made.uuid}")
    assert (work.status, work.payload) == ("waiting", {})
    assert store.notifications.notification(made.uuid) == made
    assert store.notifications.notification(str(made.id)) == made
    assert store.notifications.hostnames([member.uuid, new_id()]) == {member.uuid: "cmp-1.site"}


def test_of_twenty_equal_reports_at_once_one_is_kept(store: Store) -> None:
    joined(store)
    at = now(store)
    said = at_once([lambda: admit(store, report(at)).status] * 20)
    assert sorted(map(str, said)) == sorted([str(Conflict)] * 19 + ["new"])
    assert len(store.notifications.list_all({}, Page())) == 1
    with store.database.read() as conn:
        work = conn.execute(sa.text("SELECT count(*) FROM operations")).scalar_one()
    assert work == 1


def test_reports_of_strangers_and_of_hosts_on_maintenance_are_refused(store: Store) -> None:
    at = now(store)
    with pytest.raises(InvalidInput, match="in no segment"):
        admit(store, report(at))
    member = joined(store)
    store.segments.change_host(member.segment.uuid, member.uuid, {"on_maintenance": True})
    for new in (report(at), report(at, type=PROCESS, payload={"process_name": "x", "event": "y"})):
        with pytest.raises(Conflict, match="on maintenance"):
            admit(store, new)
    assert store.notifications.list_all({}, Page()) == []


@pytest.mark.parametrize("status", ["new", "running", "error", "finished", "ignored", "failed"])
def test_the_very_same_report_is_a_duplicate_for_ever(store: Store, status: str) -> None:
    joined(store)
    at = now(store)
    made = admit(store, report(at))
    _stands(store, made, status)
    with pytest.raises(Conflict, match=f"duplicate: notification {made.uuid}"):
        admit(store, report(at))


@pytest.mark.parametrize(
    ("status", "after_s", "kept"),
    [
        ("new", 179, False),
        ("new", 181, True),
        ("new", -5, False),  # arrived out of order
        ("running", 60, False),
        ("error", 60, False),
        ("finished", 1, True),  # it died again
        ("ignored", 1, True),
        ("failed", 1, True),
    ],
)
def test_a_report_like_an_open_one_is_a_duplicate_for_a_while(
    store: Store, status: str, after_s: float, kept: bool
) -> None:
    joined(store)
    at = now(store) - timedelta(minutes=10)  # a date in the future would count as now
    _stands(store, admit(store, report(at)), status)
    later = report(at + timedelta(seconds=after_s))
    if kept:
        assert admit(store, later).status == "new"
        return
    with pytest.raises(Conflict, match="duplicate"):
        admit(store, later)


def test_another_type_payload_or_host_is_no_duplicate(store: Store) -> None:
    joined(store)
    joined(store, "cmp-2")
    at = now(store)
    admit(store, report(at))
    admit(store, report(at, hostname="cmp-2"))
    admit(store, report(at, payload={**DOWN, "cluster_status": "OFFLINE"}))
    admit(store, report(at, type=PROCESS, payload={"process_name": "p", "event": "STOPPED"}))
    assert len(store.notifications.list_all({}, Page())) == 4
    found = store.notifications.list_all({"type": COMPUTE_HOST}, Page(), since=at)
    assert len(found) == 3
    assert store.notifications.list_all({}, Page(), since=at + timedelta(seconds=1)) == []


SERVER = "4f2c6c8e-0000-4000-8000-000000000001"
FATAL = {"instance_uuid": SERVER, "event": "LIFECYCLE", "vir_domain_event": "STOPPED_FAILED"}


@pytest.mark.parametrize(
    ("subject", "new"),
    [
        ("host:cmp-1.site", {}),
        (f"server:{SERVER}", {"type": VM, "payload": FATAL}),
        (
            "process:cmp-1.site:nova-compute",
            {"type": PROCESS, "payload": {"process_name": "nova-compute", "event": "STOPPED"}},
        ),
    ],
)
def test_a_report_dated_before_a_recovery_is_taken_because_clocks_differ(
    store: Store, subject: str, new: dict[str, Any]
) -> None:
    joined(store)
    at = now(store) - timedelta(minutes=10)  # a date in the future would count as now
    _incident(store, subject, at + timedelta(seconds=30))
    assert admit(store, report(at, **new)).status == "new"


def test_only_a_verified_end_of_the_same_thing_explains_a_report(store: Store) -> None:
    joined(store)
    at, later = now(store), now(store) + timedelta(seconds=30)
    _incident(store, "host:cmp-1.site", None, closed_at=later)
    _incident(store, "host:cmp-1.site", later, closed_at=None)
    _incident(store, "host:cmp-10.site", later)
    assert admit(store, report(at)).status == "new"
    _incident(store, "host:cmp-1.site", later)
    started = report(at, payload={"event": "STARTED", "host_status": "NORMAL"})
    assert admit(store, started).status == "new"  # that it is back is news all the same


def test_reports_are_attached_to_an_incident_and_end_with_it(store: Store) -> None:
    joined(store)
    first = admit(store, report(now(store)))
    second = admit(store, report(now(store), payload={"event": "STOPPED"}))
    third = admit(store, report(now(store), payload={"event": "STARTED"}))
    at = now(store)
    with store.database.write() as conn:
        attach(conn, NullPublisher(), first.uuid, "i-1", "running", "one", at)
        attach(conn, NullPublisher(), second.uuid, "i-1", "ignored", "two", at)
        attach(conn, NullPublisher(), third.uuid, None, "finished", "three", at)
        end(conn, NullPublisher(), "i-1", "finished", "all moved", at)
        end(conn, NullPublisher(), "i-2", "failed", "never", at)
    seen = {one.uuid: one for one in store.notifications.list_all({}, Page())}
    said = [(seen[one.uuid].status, seen[one.uuid].message) for one in (first, second, third)]
    assert said == [("finished", "all moved"), ("ignored", "two"), ("finished", "three")]
    assert seen[first.uuid].incident_id == "i-1"


# in use


def test_a_segment_in_use_is_not_changed_and_is_free_again_when_its_reports_have_ended(
    store: Store,
) -> None:
    member = joined(store)
    spare = joined(store, "cmp-2", segment=member.segment.uuid)
    ref = member.segment.uuid
    made = admit(store, report(now(store)))
    edits: list[Callable[[], object]] = [
        lambda: store.segments.change(ref, {"enabled": False}),
        lambda: store.segments.change_host(ref, spare.uuid, {"reserved": True}),
        lambda: store.segments.delete_host(ref, spare.uuid),
        lambda: store.segments.delete(ref),
    ]
    for status in ("new", "running", "error"):
        _stands(store, made, status)
        for edit in edits:
            with pytest.raises(Conflict, match="in-use to process notifications"):
                edit()
    joined(store, "cmp-3", segment=ref)  # more hosts are always welcome
    _incident(store, "host:cmp-1.site", None, id="over", closed_at=now(store))
    with store.database.write() as conn:
        attach(conn, NullPublisher(), made.uuid, "over", "error", "could not", now(store))
    assert store.segments.change(ref, {"enabled": False}).enabled is False
    for status in ("finished", "ignored", "failed"):
        _stands(store, made, status)
        store.segments.change_host(ref, spare.uuid, {"reserved": True})
    store.segments.delete(ref)


def test_a_report_and_the_end_of_its_segment_do_not_both_win(store: Store) -> None:
    for turn in range(6):
        member = joined(store, f"cmp-{turn}.site")
        at = now(store)
        new = report(at, hostname=member.name)
        said = at_once(
            [
                lambda new=new: admit(store, new).status,  # type: ignore[misc]
                lambda ref=member.segment.uuid: store.segments.delete(ref),  # type: ignore[misc]
            ]
        )
        assert said in (["new", Conflict], [InvalidInput, None])


def _stands(store: Store, made: Notification, status: str) -> None:
    with store.database.write() as conn:
        conn.execute(
            sa.update(notifications)
            .where(notifications.c.uuid == made.uuid)
            .values(status=status, incident_id=None)
        )


def _incident(store: Store, subject: str, verified_at: datetime | None, **more: Any) -> str:
    own = more.pop("id", "") or new_id()
    at = now(store)
    row = {
        "id": own,
        "key": own,
        "subject": subject,
        "kind": "host",
        "cause": "test",
        "status": "recovered",
        "opened_at": at,
        "closed_at": verified_at and verified_at + timedelta(seconds=1),
        "sentence": "",
        "details": {"verified_at": verified_at.isoformat()} if verified_at else {},
        "created_at": at,
    }
    with store.database.write() as conn:
        conn.execute(sa.insert(incidents).values(**{**row, **more}))
    return own


# who is told


def test_news_of_one_segment_are_claimed_one_after_the_other_in_their_order(store: Store) -> None:
    store.database.publisher = IncidentPublisher(programs=("bus",))
    made = store.segments.create(new_id(), NORTH)
    store.segments.change(made.uuid, {"description": "by the door"})
    with pytest.raises(Conflict):
        store.segments.create(new_id(), NORTH)
    store.segments.delete(made.uuid)
    told = []
    for _ in range(6):
        claimed = store.operations.claim_due("m1", 10, THREE_MINUTES, [ANNOUNCE])
        mine = [one for one in claimed if made.uuid in one.subject]
        assert len(mine) == 1, "one waits for the one before"
        told.append(mine[0].payload["event_type"])
        store.operations.finish(Claim(mine[0].id, "m1", mine[0].epoch), "done", "told")
    actions, phases = ("create", "update", "delete"), ("start", "end")
    assert told == [f"segment.{action}.{phase}" for action in actions for phase in phases]


def test_a_failed_write_publishes_nothing(store: Store) -> None:
    """News are rows of the same transaction: undone with it."""
    store.database.publisher = IncidentPublisher(programs=("bus",))
    with pytest.raises(RuntimeError), store.database.write() as conn:
        store.database.retry = lambda action, **_: action(conn)  # type: ignore[method-assign]
        store.segments.create(new_id(), NORTH)
        raise RuntimeError("the manager dies before the commit")
    del store.database.retry
    assert store.operations.list_all(limit=10) == []
