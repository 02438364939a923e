# SPDX-License-Identifier: Apache-2.0
"""The audit page by page, on every database."""

from __future__ import annotations

import pytest

from holdfast.db import Store, audit
from holdfast.db.audit import Wanted
from holdfast.model.errors import NotFound


def fill(store: Store, count: int) -> None:
    now = store.database.now()
    with store.database.write() as conn:
        said = [
            (f"host:{number}", "blue" if number % 2 else None, f"Line {number}")
            for number in range(1, count + 1)
        ]
        audit.write_many(conn, now, said)


def subjects(lines: audit.Sequence[audit.Line]) -> list[str]:
    return [line["subject"] for line in lines]


def test_pages_go_on_after_the_line_that_was_seen_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 7)
    monkeypatch.setattr(audit, "PORTION", 3)
    pages = store.audit.pages(Wanted(subject="host:"))
    first = next(pages)
    assert subjects(first) == ["host:7", "host:6", "host:5"]
    fill(store, 1)  # what comes meanwhile is newer: nothing repeats
    assert [subjects(page) for page in pages] == [["host:4", "host:3", "host:2"], ["host:1"]]


def test_words_are_found_in_capitals_or_not_and_mean_themselves(store: Store) -> None:
    fill(store, 2)
    with store.database.write() as conn:
        audit.write(conn, store.database.now(), "x", None, "50%_off /*")
    assert subjects(store.audit.list_all(Wanted(text="LINE 2"))) == ["host:2"]
    assert subjects(store.audit.list_all(Wanted(text="50%_"))) == ["x"]
    assert subjects(store.audit.list_all(Wanted(text="5_%"))) == []
    assert subjects(store.audit.list_all(Wanted(text="/*"))) == ["x"]


def test_one_line_with_those_around_it(store: Store) -> None:
    fill(store, 7)
    by_subject = {one["subject"]: one["id"] for one in store.audit.list_all(Wanted())}
    here = by_subject["host:4"]
    around = store.audit.around(here, None, 2)
    assert subjects(around) == ["host:6", "host:5", "host:4", "host:3", "host:2"]
    of_blue = store.audit.around(by_subject["host:3"], "blue", 2)
    assert subjects(of_blue) == ["host:7", "host:5", "host:3", "host:1"]
    for own, project in ((here, "blue"), (by_subject["host:7"] + 1, None)):
        with pytest.raises(NotFound, match="no line"):
            store.audit.around(own, project, 2)


def test_lines_that_name_a_host_are_not_crowded_out_by_hosts_whose_names_begin_alike(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PORTION", 2)
    before = store.database.now()
    named = ["cmp-1 failed", "got b for CMP-1", "x_cmp-1 (cmp-1): up", "cmp-1.example.org is up"]
    others = [f"cmp-1{number} failed" for number in range(30)]
    others += ["x-cmp-1 failed", "cmp-1_b failed", "x.cmp-1 is up", "cmpx1 failed"]
    with store.database.write() as conn:
        said = [("hosts", None, one) for one in (*others, *named, *others)]
        audit.write_many(conn, store.database.now(), [*said, ("incident:7", None, "cmp-1 died")])
    found = store.audit.naming("cmp-1", before, None, 9)
    assert [one["sentence"] for one in found] == named
    assert [one["sentence"] for one in store.audit.naming("cmp-1", before, None, 2)] == named[:2]
    assert store.audit.naming("cmp-1", before, before, 9) == []
    assert store.audit.naming("cmp-%", before, None, 9) == []
