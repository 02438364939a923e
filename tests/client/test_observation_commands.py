# SPDX-License-Identifier: Apache-2.0
"""`holdfast observation list`: what is sent and printed. The server is scripted."""

from typing import Any
from urllib.parse import parse_qs

from test_client_fake import Fake, Run

LIST = "GET /holdfast/v1/observations"
SERVER = "server:3c0f4b9e-6d0a-4f3c-9a51-0b6f7d1f2a3b"


def seen(**more: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "key": "k",
        "observer": "agent@cmp-7",
        "subject": SERVER,
        "kind": "guest",
        "state": "noted",
        "since": "2027-01-31T11:59:55+00:00",
        "observed_at": "2027-01-31T12:00:00.123456+00:00",
        "evidence": {"event": "io_error", "detail": "pause", "reason": "enospc", "disk": "vda"},
        "incident_id": None,
        **more,
    }


def test_observation_list_sends_the_filters_and_shows_the_observations(
    fake: Fake, holdfast: Run
) -> None:
    service = {"sentence": "libvirtd does not run after 3 restarts"}
    fake.says(
        LIST,
        (200, {"observations": [seen(), seen(kind="process", evidence=service)]}),
    )
    ran = holdfast(
        "observation", "list", "--subject", SERVER, "--host", "cmp-7", "--kind", "guest",
        "--state", "noted", "--since", "2027-01-31 11:00", "--limit", "5",
    )  # fmt: skip
    assert ran.code == 0
    assert parse_qs(fake.asked[-1]["query"]) == {
        "subject": [SERVER],
        "host": ["cmp-7"],
        "kind": ["guest"],
        "state": ["noted"],
        "since": ["2027-01-31T11:00:00+00:00"],
        "limit": ["5"],
    }
    assert "2027-01-31 12:00:00" in ran.out
    assert "io_error pause enospc vda" in ran.out
    assert "libvirtd does not run after 3 restarts" in ran.out


def test_observation_list_sends_no_filter_without_options(fake: Fake, holdfast: Run) -> None:
    fake.says(LIST, (200, {"observations": []}))
    assert holdfast("observation", "list").code == 0
    assert fake.asked[-1]["query"] == ""
