# SPDX-License-Identifier: Apache-2.0
"""The timeline of an incident: typed events are stored, read back and rendered without the audit
log."""

import json

import pytest

from holdfast.api.holdfast_v1.incidents import view
from holdfast.console.incidents import events
from holdfast.model.operation import SKIPPED
from holdfast.recovery import timeline
from tests.recovery.house import HealHouse
from tests.recovery.test_guest import ha
from tests.recovery.test_story import dead, story


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (timeline.Opened("cmp-1 died"), "opened: cmp-1 died"),
        (timeline.AlarmEvidence("value 3"), "evidence: value 3"),
        (timeline.StatusChanged("held", "it is: paused"), "held: it is: paused"),
        (timeline.ConfirmedOff("ann", "cmp-1", "seen"), "ann says that cmp-1 is off: seen"),
        (
            timeline.ConfirmedOff("ann", "cmp-1", "seen", reads_on=True),
            "ann says that cmp-1 is off although its fence reads on: seen",
        ),
        (timeline.MoveEnded("4f2c", "failed", "no host"), "server 4f2c failed: no host"),
        (
            timeline.MovePostponed("4f2c", 2.5, "no host"),
            "server 4f2c waits 2.5 s for another try: no host",
        ),
    ],
)
def test_an_event_survives_json_and_has_a_sentence(data: timeline.Data, sentence: str) -> None:
    assert data.sentence == sentence
    assert data.kind in timeline.KINDS
    assert timeline.read(data.kind, json.loads(json.dumps(timeline.fields(data)))) == data


def test_the_story_needs_no_audit_log_and_no_sentence(house: HealHouse) -> None:
    """Sentences in the database change nothing but the text that people read."""
    house.m.store.switches.pause("", "ann", "running: server x failed: no", None)
    report = dead(house, servers=2)
    house.run(seconds=10)
    house.m.store.switches.resume("", "ann")
    house.run(minutes=2)
    own = house.incident(report).id
    before, told = story(house, own), house.m.store.incident_queries.case(own)
    assert "held for " in before
    with house.m.store.database.write() as conn:
        conn.exec_driver_sql("DELETE FROM audit")
        conn.exec_driver_sql("UPDATE timeline SET sentence = 'held: server web-0 died'")
    after = house.m.store.incident_queries.case(own)
    assert story(house, own) == before
    assert [one.data for one in after.timeline] == [one.data for one in told.timeline]
    kinds = [event.kind for event in events(view(told), [])]
    assert kinds == [event.kind for event in events(view(after), [])]


def test_a_step_with_nothing_to_do_is_skipped_and_not_explained(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.crash_server(server)
    report = house.report_guest("cmp-1", server)
    house.run(seconds=20)
    case = house.m.store.incident_queries.case(house.incident(report).id)
    assert case.incident.status == "recovered"
    assert [one["name"] for one in case.done if one["status"] == SKIPPED] == ["elsewhere"]
    assert "elsewhere" not in story(house, case.incident.id)
