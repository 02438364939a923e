# SPDX-License-Identifier: Apache-2.0
"""`holdfast audit …`: what is sent, printed and written. The server is scripted."""

import csv
import io
import json
from typing import Any
from urllib.parse import parse_qs

from test_client_fake import Fake, Run

from holdfast.client import client as module
from holdfast.client.client import Client

LIST = "GET /holdfast/v1/audit"


def line(number: int, sentence: str = "host cmp-7 was fenced", **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "at": "2027-01-31T12:00:00.123456+00:00",
        "subject": "incident:c0ffee",
        "project_id": None,
        "actor": "ann",
        "request_id": "req-7",
        "sentence": sentence,
        **more,
    }


def asked(fake: Fake) -> dict[str, list[str]]:
    return parse_qs(fake.asked[-1]["query"])


def test_audit_list_sends_the_filters_and_shows_sentences(fake: Fake, holdfast: Run) -> None:
    fake.says(LIST, (200, {"audit": [line(7)]}))
    ran = holdfast(
        "audit", "list", "--subject", "incident:", "--actor", "ann", "--project", "blue",
        "--text", "fenced", "--since", "2027-01-31 11:00", "--until", "now", "--limit", "5",
        "--marker", "9",
    )  # fmt: skip
    assert ran.code == 0
    assert asked(fake) == {
        "subject": ["incident:"],
        "actor": ["ann"],
        "project_id": ["blue"],
        "text": ["fenced"],
        "since": ["2027-01-31T11:00:00+00:00"],
        "until": ["2027-01-31T12:00:07.000099+00:00"],
        "limit": ["5"],
        "marker": ["9"],
    }
    assert "2027-01-31 12:00:00" in ran.out
    assert "host cmp-7 was fenced" in ran.out


def test_audit_list_sends_no_filter_without_options(fake: Fake, holdfast: Run) -> None:
    fake.says(LIST, (200, {"audit": []}))
    assert holdfast("audit", "list").code == 0
    assert asked(fake) == {}


def test_an_export_goes_on_from_page_to_page(fake: Fake, holdfast: Run, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    pages = [{"audit": [line(9), line(8)]}, {"audit": [line(7)]}]
    fake.says(LIST, *((200, page) for page in pages))
    ran = holdfast("audit", "export", "--text", "fenced")
    assert [one["id"] for one in json.loads(ran.out)["audit"]] == [9, 8, 7]
    assert asked(fake) == {"text": ["fenced"], "limit": ["2"], "marker": ["8"]}
    fake.says(LIST, (200, {"audit": []}))
    assert json.loads(holdfast("audit", "export").out) == {"audit": []}


def test_csv_holds_no_formula_for_a_spreadsheet(fake: Fake, holdfast: Run) -> None:
    evil = '=HYPERLINK("https://evil.example","x"),\n"y"'
    fake.says(LIST, (200, {"audit": [line(9, evil, actor="@ann", project_id="-2+3")]}))
    ran = holdfast("audit", "export", "--as", "csv")
    (row,) = csv.DictReader(io.StringIO(ran.out))
    assert (row["id"], row["sentence"]) == ("9", f"'{evil}")
    assert (row["actor"], row["project_id"]) == ("'@ann", "'-2+3")


def test_the_library_asks_the_same(fake: Fake) -> None:
    fake.says(LIST, (200, {"audit": [line(7)]}))
    client = Client(fake.url)
    assert [one["id"] for one in client.audit.all(actor="ann")] == [7]
    assert client.audit.list(limit=1) == [line(7)]
    client.close()
