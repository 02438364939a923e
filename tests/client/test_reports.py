# SPDX-License-Identifier: Apache-2.0
"""What monitors saw, as it goes over the wire: done, to be sent again, or never to be taken."""

from __future__ import annotations

from typing import Any

import pytest
from test_client_fake import Fake

from holdfast.client import Client
from holdfast.client.reports import HoldfastReports, InstanceHaReports
from holdfast.model.errors import InvalidInput, Unavailable

OWN, THEIRS = "POST /holdfast/v1/observations", "POST /notifications"
SEEN: dict[str, Any] = {
    "observer": "ctl-1",
    "subject": "host:cmp-7",
    "kind": "host_health",
    "state": "failed",
    "since": "2026-01-01T10:00:00+00:00",
    "observed_at": "2026-01-01T12:00:03.5+02:00",
    "key": "k",
    "evidence": {},
}


def fault(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


def test_to_an_instance_ha_api_a_failure_is_a_notification_by_its_contract(fake: Fake) -> None:
    fake.says(THEIRS, (202, {"notification": {}}), (202, {"notification": {}}))
    reports = InstanceHaReports(lambda: Client(fake.url))
    reports.report(SEEN)
    reports.report({**SEEN, "state": "well"})
    reports.report({**SEEN, "state": "alert"})  # which it has no word for
    failed, well = [one["body"]["notification"] for one in fake.asked]
    assert failed == {
        "type": "COMPUTE_HOST",
        "hostname": "cmp-7",
        "generated_time": "2026-01-01T10:00:03",
        "payload": {"event": "STOPPED", "cluster_status": "OFFLINE", "host_status": "NORMAL"},
    }
    assert (well["payload"]["event"], well["payload"]["cluster_status"]) == ("STARTED", "ONLINE")


def test_of_its_conflicts_a_duplicate_is_done_and_maintenance_waits(fake: Fake) -> None:
    said = "Notification received from host cmp-7 of type 'COMPUTE_HOST' is duplicate."
    held = "Notification ignored as host (cmp-7) is in maintenance mode."
    fake.says(THEIRS, (409, fault(said)), (409, fault(held)))
    reports = InstanceHaReports(lambda: Client(fake.url))
    reports.report(SEEN)
    with pytest.raises(Unavailable, match="maintenance"):
        reports.report(SEEN)


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, InvalidInput), (413, InvalidInput)]
    + [(code, Unavailable) for code in (401, 403, 404, 409, 429, 500, 503)],
)
def test_only_what_is_wrong_in_itself_is_never_sent_again(
    fake: Fake, status: int, error: type[Exception]
) -> None:
    fake.says(OWN, (status, fault("no")))
    with pytest.raises(error):
        HoldfastReports(lambda: Client(fake.url, retries=0)).report(SEEN)


def test_an_api_that_is_away_is_asked_again() -> None:
    with pytest.raises(Unavailable):
        HoldfastReports(lambda: Client("http://127.0.0.1:9", retries=0)).report(SEEN)
