# SPDX-License-Identifier: Apache-2.0
"""`holdfast guest filter check | test`, which ask no server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from test_client_fake import Fake, Run

from holdfast.agent.guest_store import Reading, line, read
from holdfast.ports.guests import Event, Guest

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def event(name: str, said: str, after_s: float = 0.0, **metadata: str) -> Event:
    at = NOON + timedelta(seconds=after_s)
    return Event(f"u-{name}", name, *said.split()[:1], at, *said.split()[1:], metadata=metadata)


@pytest.fixture
def monday(tmp_path: Path) -> str:
    """A recording of four guests; the storage of one comes back in time."""
    records = [
        event("web", "lifecycle stopped failed"),
        event("db", "lifecycle suspended ioerror", 1),
        event("batch", "lifecycle crashed panicked", 2, project="batch"),
        event("cache", "lifecycle suspended ioerror", 3),
        event("cache", "lifecycle resumed unpaused", 20),
        Reading(
            (Guest("u-db", "db", "paused", "ioerror"), Guest("u-cache", "cache", "running", "x")),
            NOON + timedelta(seconds=25),
        ),
    ]
    path = tmp_path / "monday.jsonl"
    path.write_text("\n\n".join(map(line, records)))
    return str(path)


def told(text: str) -> list[str]:
    return [
        f"{row['reported_at'][11:19]} {row['guest']} {row['state']}" for row in json.loads(text)
    ]


def test_a_replayed_recording_shows_reports_and_their_times(
    holdfast: Run, fake: Fake, monday: str
) -> None:
    ran = holdfast("guest", "filter", "test", "default", monday, "-f", "json")
    assert ran.code == 0
    assert told(ran.out) == ["12:00:00 web failed", "12:00:02 batch failed", "12:00:31 db failed"]
    assert fake.asked == []


def test_a_filter_file_changes_the_replayed_reports(
    holdfast: Run, monday: str, tmp_path: Path
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(
        "rules:\n"
        "  - {event: panic, project: batch, do: report}\n"
        "  - {event: io_error, detail: pause, after: 10s, do: recover}\n"
        "otherwise: ignore\n"
    )
    ran = holdfast("guest", "filter", "test", str(file), monday, "-f", "json")
    assert told(ran.out) == [
        "12:00:02 batch noted",
        "12:00:11 db failed",
        "12:00:13 cache failed",
        "12:00:20 cache well",
    ]


def test_the_default_set_is_shown_where_no_file_is_named(holdfast: Run) -> None:
    ran = holdfast("guest", "filter", "check", "-f", "json")
    shown = json.loads(ran.out)
    assert {"line": "defaults:6", "event": "stopped", "do": "recover"}.items() <= shown[1].items()


def test_all_that_is_wrong_with_a_file_is_listed_with_its_lines(
    holdfast: Run, tmp_path: Path
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("rules:\n  - {event: died, do: recover}\n  - {event: panic, do: cry}\n")
    ran = holdfast("guest", "filter", "check", str(file))
    assert ran.code == 1
    assert f"{file}:2: 'died' is no event" in ran.err
    assert f"{file}:3: 'cry' is no action" in ran.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", ":1: Expecting"),
        ('\n{"at": "noon"}', ":2: Invalid isoformat string"),
        ('{"uuid": "u"}', ":1: `at` is missing"),
        ('{"at": "2026-11-16", "uuid": "u", "name": "n"}', ":1: `kind` is missing"),
        ('{"at": "2026-11-16", "uuid": "u", "name": "n", "kind": "x"}', ":1: `kind` is 'x'"),
        ('{"at": "2026-11-16", "guests": [{"uuid": "u"}]}', ":1: `name` is missing"),
        ('{"at": "2026-11-16", "uuid": 7, "name": "n", "kind": "reboot"}', ":1: `uuid` is 7"),
        ("[1]", ":1: a line is an event"),
    ],
)
def test_a_recording_that_cannot_be_read_is_named_with_its_line(
    holdfast: Run, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "r.jsonl"
    file.write_text(text)
    ran = holdfast("guest", "filter", "test", "default", str(file))
    assert ran.code == 1
    assert f"{file}{said}" in ran.err


def test_files_that_are_not_there_are_named(holdfast: Run) -> None:
    ran = holdfast("guest", "filter", "test", "default", "/nowhere/x")
    assert (ran.code, "cannot read /nowhere/x: No such file" in ran.err) == (1, True)


def test_what_is_written_is_read_again(monday: str) -> None:
    with open(monday) as file:
        records = list(read(file, monday))
    assert [line(record) for record in records] == [
        text for text in Path(monday).read_text().splitlines() if text
    ]
