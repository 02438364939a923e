# SPDX-License-Identifier: Apache-2.0
"""The details of incidents survive JSON, and a retry clears the fields of an attempt."""

import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.model.incident import ALARM, GUEST, HOST, PROCESS, Incident, details_of
from holdfast.model.incident_progress import (
    AlarmFacts,
    ConfirmedOff,
    Counted,
    Details,
    GuestProgress,
    HostProgress,
    MonitorsReport,
    NoRoom,
    NovaReads,
    OffEvidence,
    OperatorWord,
    PowerReturned,
    RetryReport,
    of_attempt,
    plain,
    reset,
)

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)
HOST_FULL = HostProgress(
    host="cmp-7",
    member="m",
    segment="s",
    payload={"event": "STOPPED"},
    held_announced=False,
    started_at=NOON,
    aborted=OperatorWord("ann", "a drill", NOON),
    attempts=({"status": "failed"},),
    seen=({"observer": "ctl-1"},),
    monitors=MonitorsReport(NOON, ("storage",)),
    nova=NovaReads("2027-01-31T11:59:00", NOON, NOON + timedelta(seconds=5)),
    sources=(Counted("agent", "is silent", NOON, "it stands"),),
    ran=(),
    evidence=OffEvidence("fenced", "its power reads off", NOON),
    confirmed_off=ConfirmedOff("ann", "seen", NOON, reads_on=True),
    fence_asked=2,
    fence_requests=({"at": NOON.isoformat(), "asked": True},),
    last_migration=0,
    spares=("u1",),
    no_room=NoRoom("1 try", "0 of 1", "no room"),
    was_off=True,
    power_returned=PowerReturned(NOON, in_use=True),
    report_at_retry=RetryReport("2027-01-31T11:59:00", NOON),
    back_at=NOON,
)
GUEST_FULL = GuestProgress(
    host="cmp-7", server_name="web", tried_hosts=("cmp-8", None), stop_by=NOON
)


@pytest.mark.parametrize(
    ("kind", "details"),
    [
        (HOST, HOST_FULL),
        (PROCESS, HostProgress(host="cmp-7", observed={"event": "stopped"})),
        (GUEST, GUEST_FULL),
        (ALARM, AlarmFacts(host="cmp-7", rule="hot", value=0.0)),
        (HOST, HostProgress()),
    ],
)
def test_details_survive_json(kind: str, details: Details) -> None:
    stored = json.loads(json.dumps(plain(details)))
    assert details_of(kind, stored) == details
    changed = {
        field.name for field in fields(details) if getattr(details, field.name) != field.default
    }
    assert kind == ALARM or stored.keys() <= changed


def test_nothing_known_and_null_are_defaults() -> None:
    assert plain(HostProgress()) == {}
    assert details_of(HOST, None) == HostProgress()
    assert details_of(HOST, {"evidence": None, "of a later version": 1}) == HostProgress()


def test_none_and_empty_differ_where_the_difference_counts() -> None:
    for ran, last in ((None, None), ((), 0)):
        known = HostProgress(ran=ran, last_migration=last)
        assert details_of(HOST, plain(known)) == known


def test_a_retry_clears_the_fields_of_an_attempt_and_no_others() -> None:
    again = reset(HOST_FULL, of_attempt(HOST_FULL))
    assert (again.evidence, again.confirmed_off, again.fence_asked) == (None, None, 0)
    assert (again.sources, again.power_returned, again.started_at) == ((), None, None)
    assert (again.last_migration, again.was_off, again.seen) == (0, True, HOST_FULL.seen)
    guest = reset(GUEST_FULL, of_attempt(GUEST_FULL))
    assert (guest.tried_hosts, guest.stop_by, guest.server_name) == ((), None, "web")


def test_progress_of_another_kind_is_empty() -> None:
    incident = Incident("i", "alarm:a", ALARM, "hot", "open", NOON, details=AlarmFacts(host="a"))
    assert (incident.host, incident.verified_at) == ("a", None)
    assert incident.host_progress == HostProgress()
    host = replace(incident, kind=HOST, details=HOST_FULL)
    assert host.guest_progress == GuestProgress()
    assert host.progress is HOST_FULL
