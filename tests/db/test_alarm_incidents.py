# SPDX-License-Identifier: Apache-2.0
"""The incident of an alarm on every database: one, however many say so at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from holdfast.db import Store
from holdfast.db.incident_queries import Wanted
from tests.db.test_alarms import say

ASKED = ["incident"]


def test_an_incident_is_opened_once_and_closed_once(store: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: say(store, "raised", n, actions=ASKED), range(12)))
    (one,) = store.incident_queries.list_all(Wanted(kind="alarm", host="cmp-1", is_open=True))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: say(store, "cleared", n, actions=ASKED), range(20, 26)))
    case = store.incident_queries.case(one.incident.id)
    assert case.incident.status == "recovered"
    assert [one.data.kind for one in case.timeline] == [
        "opened",
        "alarm_evidence",
        "status_changed",
    ]


def test_one_that_is_aborted_while_its_alarm_ends_is_over_once(store: Store) -> None:
    say(store, "raised", actions=ASKED)
    (one,) = store.incident_queries.list_all(Wanted(kind="alarm"))
    store.incident_actions.abort(one.incident.id, "ann", "a drill")
    say(store, "cleared", 1, actions=ASKED)
    (over,) = store.incident_queries.list_all(Wanted(kind="alarm"))
    assert (over.incident.status, over.incident.sentence) == ("aborted", "aborted by ann: a drill")
