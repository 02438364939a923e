# SPDX-License-Identifier: Apache-2.0
"""The lease hint: what people may write, what they are told, and that nothing gets lost on the way
over the server's metadata."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.nova import lease_hint, names
from holdfast.nova.lease_hint import LONGEST_NOTE, BadHint, Wish

NOW = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)
START, END = datetime(2026, 12, 1, 2, tzinfo=UTC), datetime(2026, 12, 1, 6, tzinfo=UTC)
FULL = {
    "name": "night",
    "start": "2026-12-01 02:00",
    "end": "2026-12-01 06:00",
    "before_end": "2026-12-01 05:00",
    "on_end": "delete",
}


def read(value: Any, length: timedelta | None = None) -> Wish:
    return lease_hint.read(value, "web", NOW, length)


@pytest.mark.parametrize("form", [FULL, json.dumps(FULL), [json.dumps(FULL)], [FULL]])
def test_the_hint_may_come_in_every_form_that_clients_send(form: Any) -> None:
    before_end = END - timedelta(hours=1)
    assert read(form) == Wish("night", START, END, before_end, "delete")


def test_the_names_of_the_lease_itself_do_as_well() -> None:
    named = {"start_date": FULL["start"], "end_date": FULL["end"]}
    assert read(named) == Wish("web_lease", START, END)


@pytest.mark.parametrize("start", [{}, {"start": "now"}, {"start": "NOW"}, {"start": None}])
def test_a_lease_without_a_start_starts_now(start: dict[str, Any]) -> None:
    assert read({"end": FULL["end"], **start}).start is None


@pytest.mark.parametrize(
    "text", ["2026-12-01T06:00", "2026-12-01T06:00:00Z", "2026-12-01 07:00+01:00"]
)
def test_dates_may_be_iso_8601_and_are_utc_otherwise(text: str) -> None:
    assert read({"end": text}).end == END


def test_the_end_may_be_left_out_only_where_a_length_is_set() -> None:
    with pytest.raises(BadHint, match="end is missing"):
        read({"name": "night"})
    assert read({"name": "night"}, timedelta(days=30)).end == datetime(2026, 12, 30, 12, tzinfo=UTC)
    assert read({"start": FULL["start"]}, timedelta(days=1)).end == START + timedelta(days=1)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("night", "is not JSON; write for example"),
        ("[" * 100_000, "is not JSON"),
        ([], "one JSON object is needed"),
        (["{}", "{}"], "one JSON object is needed"),
        (7, "one JSON object is needed"),
        (None, "one JSON object is needed"),
        ("[]", "one JSON object is needed"),
        ({**FULL, "until": "x"}, "'until' is not known; use name, start, end"),
        ({**FULL, "end": 7}, "end must be a text"),
        ({**FULL, "name": ""}, "name must be a text"),
        ({**FULL, "end_date": FULL["end"]}, "end is given twice"),
        ({**FULL, "end": "tomorrow"}, "end 'tomorrow' is no date; write YYYY-MM-DD HH:MM, in UTC"),
        ({**FULL, "end": "2026-12-02"}, "is no date"),
        ({**FULL, "end": "9999-12-31 23:59-14:00"}, "is no date"),
        ({**FULL, "start": "2026-11-30 11:59"}, "start 2026-11-30 11:59 is over, it is 2026-11-30"),
        ({**FULL, "end": "2026-12-01 02:00"}, "must be later than start"),
        ({"end": "2026-11-30 12:00"}, "must be later than start"),
        ({**FULL, "before_end": "2026-12-01 06:00"}, "before_end must lie between"),
        ({**FULL, "on_end": "explode"}, "on_end must be one of snapshot, stop, suspend"),
        ({**FULL, "on_end": "delete,stop"}, "each once, delete last"),
        ({**FULL, "on_end": "stop,stop"}, "each once, delete last"),
        ({**FULL, "name": "x" * 81}, "at most 80 printable characters"),
        ({**FULL, "name": "a\nb"}, "at most 80 printable characters"),
        ({**FULL, "name": "\N{SNOWMAN}" * 80}, "the name is too long"),
    ],
)
def test_an_invalid_hint_is_refused_with_the_correct_form(value: Any, sentence: str) -> None:
    with pytest.raises(BadHint) as said:
        read(value)
    assert sentence in str(said.value)
    assert str(said.value).isprintable() and len(str(said.value)) < 300


def test_a_start_in_this_minute_is_not_over() -> None:
    assert read({**FULL, "start": "2026-11-30 12:00"}).start == NOW.replace(second=0)


def test_the_lease_request_has_the_format_of_the_lease_api() -> None:
    assert read(FULL).lease("s1") == {
        "name": "night",
        "start_date": "2026-12-01 02:00",
        "end_date": "2026-12-01 06:00",
        "before_end_date": "2026-12-01 05:00",
        "reservations": [
            {"resource_type": "virtual:server", "server_id": "s1", "on_end": "delete"}
        ],
    }
    plain = read({"end": FULL["end"], "on_end": "default"})
    assert plain.lease("s1")["start_date"] == "now"
    assert "on_end" not in plain.lease("s1")["reservations"][0]
    assert plain.lease(None)["reservations"] == []


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=80)
MOMENTS = st.datetimes(datetime(2026, 12, 1), datetime(2030, 1, 1), timezones=st.just(UTC))
ON_END = st.sampled_from(["", *lease_hint.ON_END, "snapshot,delete"])


@given(NAMES, st.lists(MOMENTS, min_size=2, max_size=3, unique=True), ON_END)
def test_a_wish_survives_the_servers_metadata(
    name: str, moments: list[datetime], on_end: str
) -> None:
    to_the_minute = sorted({when.replace(second=0, microsecond=0) for when in moments})
    if len(to_the_minute) < 2:
        return
    start, *middle, end = to_the_minute
    said = {"name": name, "start": str(start), "end": str(end), "on_end": on_end or "default"}
    if middle:
        said["before_end"] = str(middle[0])
    try:
        wish = read(said)
    except BadHint:
        return  # a name that cannot be
    assert len(wish.note()) <= LONGEST_NOTE and wish.note().isascii()
    assert lease_hint.from_note(wish.note(), NOW) == wish


def test_a_late_wish_starts_now_and_an_expired_wish_is_none() -> None:
    note = read(FULL).note()
    late = lease_hint.from_note(note, START + timedelta(minutes=5))
    assert late == Wish("night", None, END, END - timedelta(hours=1), "delete")
    very_late = lease_hint.from_note(note, END - timedelta(minutes=5))
    assert very_late == Wish("night", None, END, None, "delete")
    assert lease_hint.from_note(note, END) is None


@pytest.mark.parametrize(
    "note", ["", "{}", "x", '{"end": 7}', '{"end":"2026-12-02 00:00","start":"2026-12-03 00:00"}']
)
def test_invalid_metadata_is_refused(note: str) -> None:
    with pytest.raises(BadHint):
        lease_hint.from_note(note, NOW)


@pytest.mark.parametrize("server", ["web", "", "x" * 255, "\N{SNOWMAN}" * 255, "a\tb", '"' * 255])
def test_every_server_can_have_a_lease_of_the_usual_length(server: str) -> None:
    wish = lease_hint.default(server, NOW, timedelta(days=30), "shelve")
    assert (wish.start, wish.on_end) == (None, "shelve")
    assert wish.end == datetime(2026, 12, 30, 12, tzinfo=UTC)
    assert len(wish.note()) <= LONGEST_NOTE and 0 < len(wish.name) <= 80
    assert lease_hint.from_note(wish.note(), NOW) == wish


@pytest.mark.parametrize("key", lease_hint.HINTS)
def test_nova_gets_the_wish_as_metadata_and_not_the_hint(key: str) -> None:
    body = {"server": {"name": "web", "metadata": {"a": "b"}}, key: {"lease_params": FULL, "x": 1}}
    wish = read(lease_hint.hinted(body)["lease_params"])
    assert lease_hint.passed_on(body, wish) == {
        "server": {"name": "web", "metadata": {"a": "b", names.WISH: wish.note()}},
        key: {"x": 1},
    }
    assert body[key] == {"lease_params": FULL, "x": 1}


def test_only_the_hint_key_read_by_nova_counts() -> None:
    first, second = lease_hint.HINTS
    both = {first: {"a": 1}, second: {"lease_params": FULL}}
    assert lease_hint.hinted(both) == {"a": 1}
    assert lease_hint.hinted({first: None}) == {}
    assert lease_hint.hinted({}) == {}


@pytest.mark.parametrize(
    ("server", "single"),
    [
        ({}, True),
        ({"min_count": 1, "max_count": "1"}, True),
        ({"max_count": 2}, False),
        ({"min_count": "3"}, False),
        ({"return_reservation_id": True}, False),
        ({"return_reservation_id": False}, True),
    ],
)
def test_a_lease_is_for_a_single_server(server: dict[str, Any], single: bool) -> None:
    assert lease_hint.is_single(server) is single
