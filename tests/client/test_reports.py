# SPDX-License-Identifier: Apache-2.0
"""What monitors saw, as it goes over the wire: done, to be sent again, or never to be taken."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_client_fake import Fake

from holdfast.api.holdfast_v1.observations import WrongClock
from holdfast.app.agent import client
from holdfast.client.client import Client
from holdfast.client.reports import (
    HoldfastCentre,
    HoldfastExpected,
    HoldfastReports,
    InstanceHaReports,
)
from holdfast.model.errors import Forbidden, InvalidInput, Unavailable
from holdfast.model.observation import AGENT_HEADER

OWN, THEIRS = "POST /holdfast/v1/observations", "POST /notifications"
EXPECTED = "GET /holdfast/v1/hosts/cmp-7/expected"
NOTHING = {"host": "cmp-7", "at": "2026-01-01T10:00:00+00:00", "servers": []}
BEAT = "PUT /holdfast/v1/agents/cmp-7"
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
    """As Masakari says it."""
    return {"error": {"message": message}}


def refusal(message: str, code: str = "holdfast.request.invalid") -> dict[str, Any]:
    """As Holdfast does."""
    return {"errors": [{"code": code, "title": "No", "detail": message}]}


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


def test_each_attempt_to_report_a_failed_guest_carries_the_current_time(fake: Fake) -> None:
    """At each attempt: the dates in it may be of a clock that is wrong."""
    fake.says(OWN, (202, {}), (202, {}), (202, {}))
    times = iter(datetime(2026, 1, 1, 10, minute, tzinfo=UTC) for minute in range(9))
    reports = HoldfastReports(lambda: Client(fake.url), times.__next__)
    for kind in ("guest", "guest", "host_health"):
        reports.report({**SEEN, "kind": kind})
    sent = [one["body"].get("sent_at") for one in fake.asked]
    assert sent == ["2026-01-01T10:00:00+00:00", "2026-01-01T10:01:00+00:00", None]


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, InvalidInput), (413, InvalidInput), (403, Forbidden)]
    + [(code, Unavailable) for code in (401, 404, 405, 409, 429, 500, 503)],
)
def test_only_an_invalid_report_is_never_sent_again(
    fake: Fake, status: int, error: type[Exception]
) -> None:
    fake.says(OWN, (status, refusal("no")))
    with pytest.raises(error):
        HoldfastReports(lambda: Client(fake.url, retries=0)).report(SEEN)


def test_a_report_from_a_host_with_a_wrong_clock_is_sent_again(fake: Fake) -> None:
    fake.says(OWN, (400, refusal("sent_at: more than a day", WrongClock.code)))
    with pytest.raises(Unavailable, match="more than a day"):
        HoldfastReports(lambda: Client(fake.url, retries=0)).report(SEEN)


#: Pages of a proxy before the API, and what other programs say in JSON.
STRANGE = [b"<html>no</html>", {}, {"message": "no"}, ["no"], {"errors": [{"code": "nginx.no"}]}]


@pytest.mark.parametrize("status", [400, 402, 405, 410, 413, 418, 421, 431, 451])
@pytest.mark.parametrize("page", STRANGE, ids=lambda page: str(page)[:20])
def test_a_report_refused_by_a_proxy_is_sent_again(fake: Fake, status: int, page: Any) -> None:
    fake.says(OWN, (status, page))
    with pytest.raises(Unavailable):
        HoldfastReports(lambda: Client(fake.url, retries=0)).report(SEEN)


@pytest.mark.parametrize(
    ("status", "said", "error"),
    [
        (400, fault("no such host"), InvalidInput),
        (400, b"<html>no</html>", Unavailable),
        (405, fault("no"), Unavailable),
        (409, b"<html>no</html>", Unavailable),
    ],
)
def test_only_a_refusal_by_the_instance_ha_api_is_final(
    fake: Fake, status: int, said: Any, error: type[Exception]
) -> None:
    fake.says(THEIRS, (status, said))
    with pytest.raises(error):
        InstanceHaReports(lambda: Client(fake.url, retries=0)).report(SEEN)


def test_an_instance_ha_api_hears_nothing_of_a_guest_or_a_process(fake: Fake) -> None:
    """It has words for them, but nobody asked us to say those: it is told of hosts."""
    reports = InstanceHaReports(lambda: Client(fake.url))
    for kind, subject in (("guest", "server:1"), ("process", "process:cmp-7:libvirtd")):
        for state in ("failed", "well"):
            reports.report({**SEEN, "kind": kind, "subject": subject, "state": state})
    assert fake.asked == []


def test_a_report_without_a_json_form_is_never_sent_again(fake: Fake) -> None:
    with pytest.raises(InvalidInput, match="cannot say this in JSON"):
        HoldfastReports(lambda: Client(fake.url)).report({**SEEN, "evidence": {"v": float("inf")}})
    assert fake.asked == []


def test_a_report_to_an_unreachable_api_is_sent_again() -> None:
    with pytest.raises(Unavailable):
        HoldfastReports(lambda: Client("http://127.0.0.1:9", retries=0)).report(SEEN)


def test_a_replaced_token_is_read_after_the_old_token_is_refused(
    fake: Fake, tmp_path: Path
) -> None:
    """The secret was replaced: nobody has to start every agent anew."""
    file = tmp_path / "token"
    file.write_text("old\n")
    settings = SimpleNamespace(api_url=fake.url, token_file=str(file), api_timeout_s=60.0)

    def connect() -> Client:
        return client(settings)

    fake.says(OWN, (401, fault("no")), (401, fault("no")), (200, {}))
    fake.says(EXPECTED, (401, fault("no")), (200, {"expected": NOTHING}))
    fake.says(BEAT, (401, fault("no")), (200, {"agent": {"rules": {"version": "7"}}}))
    asks: list[Callable[[], object]] = [
        functools.partial(HoldfastReports(connect).report, SEEN),
        functools.partial(HoldfastExpected(connect).expected, "cmp-7"),
        functools.partial(HoldfastCentre(connect).beat, "cmp-7", {}),
    ]
    for ask in asks:
        file.write_text("old\n")
        with pytest.raises(Unavailable):
            ask()
        file.unlink()
        with pytest.raises(Unavailable, match="token"):
            ask()
        file.write_text("new\n")
        with contextlib.suppress(Unavailable):
            ask()
        ask()
    shown = [one["headers"][AGENT_HEADER] for one in fake.asked]
    assert shown == ["old", "new", "new", "old", "new", "new", "old", "new", "new"]
