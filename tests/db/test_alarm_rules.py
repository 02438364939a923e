# SPDX-License-Identifier: Apache-2.0
"""Documents of rules and agents on every database: all versions stay, one writer wins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from holdfast.alarms import rules_file, scopes
from holdfast.alarms.scopes import Document, Scope
from holdfast.db import Store
from holdfast.model.errors import Conflict, InvalidInput, NotFound
from holdfast.runtime.documents import MAX_BYTES

RULES = "rules:\n  - {id: busy, on: guest, field: util_ratio, when: '> 95%'}\n"
ALL = Scope("all")
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def document(text: str = RULES, name: str = "base", scope: Scope = ALL) -> Document:
    return Document(name, scope, 0, text)


def test_each_change_is_a_version_and_the_same_again_is_none(store: Store) -> None:
    rules = store.alarm_rules
    assert rules.put(document(), "ann")["version"] == 1
    assert rules.put(document(), "bob")["version"] == 1
    assert rules.put(document(RULES.replace("95", "90")), "bob")["version"] == 2
    other = document(RULES.replace("95", "90"), scope=Scope("group", "gpu"))
    assert rules.put(other, "bob")["version"] == 3
    assert [row["version"] for row in rules.history("base")] == [3, 2, 1]
    (now,) = rules.documents()
    assert (now.version, str(now.scope)) == (3, "group:gpu")
    assert rules.show("base", 1)["author"] == "ann"


def test_rolling_back_is_a_new_version_with_what_was_before(store: Store) -> None:
    rules = store.alarm_rules
    for percent in ("95", "90", "85"):
        rules.put(document(RULES.replace("95", percent)), "ann")
    back = rules.roll_back("base", None, "bob")
    assert (back["version"], back["text"]) == (4, RULES.replace("95", "90"))
    assert rules.roll_back("base", 1, "bob")["text"] == RULES
    with pytest.raises(NotFound, match="no version 77"):
        rules.roll_back("base", 77, "bob")
    with pytest.raises(NotFound, match="no rules other"):
        rules.roll_back("other", None, "bob")


def test_what_was_taken_away_is_gone_and_can_be_had_back(store: Store) -> None:
    rules = store.alarm_rules
    rules.put(document(), "ann")
    rules.remove("base", "ann")
    assert rules.documents() == []
    with pytest.raises(NotFound):
        rules.show("base")
    with pytest.raises(NotFound):
        rules.remove("base", "ann")
    assert rules.roll_back("base", None, "bob")["text"] == RULES
    assert [one.version for one in rules.documents()] == [3]


def test_nothing_before_the_first_version_can_be_had_back(store: Store) -> None:
    store.alarm_rules.put(document(), "ann")
    with pytest.raises(NotFound, match="nothing before"):
        store.alarm_rules.roll_back("base", None, "ann")


def test_of_two_writers_of_the_same_version_one_gets_a_conflict(store: Store) -> None:
    rules = store.alarm_rules
    rules.put(document(), "ann", expected=0)
    with pytest.raises(Conflict, match="at version 1, not 0"):
        rules.put(document("rules: []\n"), "bob", expected=0)
    assert rules.put(document("rules: []\n"), "bob", expected=1)["version"] == 2


def test_many_who_write_at_once_all_get_a_version_of_their_own(store: Store) -> None:
    def write(number: int) -> int:
        text = RULES.replace("95", str(number))
        return int(store.alarm_rules.put(document(text), "ann")["version"])

    with ThreadPoolExecutor(4) as pool:
        versions = sorted(pool.map(write, range(10, 20)))
    assert versions == list(range(1, 11))
    (now,) = store.alarm_rules.documents()
    assert now.version == 10


def many(count: int, prefix: str = "r") -> str:
    """About 77 bytes each as it is written, 86 as an agent gets it."""
    head = "on: guest, field: util_ratio, severity: critical"
    rules = (f"- {{id: {prefix}{n:03}, {head}, when: '> {n}'}}" for n in range(count))
    return "\n".join(["rules:", *rules])


def test_what_no_agent_could_take_is_refused_before_any_has_it(store: Store) -> None:
    assert len(many(800)) < MAX_BYTES
    why = r"rules base on one host come to \d+ bytes, .* takes 65536: take rules out"
    with pytest.raises(InvalidInput, match=why):
        store.alarm_rules.put(document(many(800)), "ann")
    assert store.alarm_rules.documents() == []


def test_what_an_agent_gets_is_hardly_larger_than_what_was_written(store: Store) -> None:
    store.alarm_rules.put(document(many(400)), "ann")
    merged = scopes.merged(store.alarm_rules.documents(), "cmp-7", ())
    assert len(merged.text) < 1.3 * len(many(400))
    assert len(rules_file.parse(merged.text, "centre").rules) == 400


def test_rules_of_many_documents_are_counted(store: Store) -> None:
    for name in "abc":
        text = "rules:\n" + "\n".join(
            f"- {{id: {name}{n}, on: nic, field: x, when: '> 1'}}" for n in range(360)
        )
        store.alarm_rules.put(document(text, name), "ann")
    with pytest.raises(InvalidInput, match="are 1101 rules, and its agent takes 1100"):
        text = text.replace("id: c", "id: d").split("- {id: d21,")[0]
        store.alarm_rules.put(document(text, "d"), "ann")


def test_words_of_many_documents_are_counted(store: Store) -> None:
    whom = ",".join("a" * 600)
    text = "rules:\n" + "\n".join(
        f"- {{id: r{n}, on: nic, field: x, when: '> 1', name: [{whom}]}}" for n in range(10)
    )
    store.alarm_rules.put(document(text, "one"), "ann")
    with pytest.raises(InvalidInput, match=r"have 12\d\d\d words, and its agent takes 12000"):
        store.alarm_rules.put(document(text.replace("id: r", "id: s"), "two"), "ann")


@pytest.mark.parametrize("of", [Scope("host", "cmp-7"), Scope("group", "gpu"), ALL])
def test_documents_that_hold_together_have_to_fit_together(store: Store, of: Scope) -> None:
    rules = store.alarm_rules
    rules.put(document(many(400)), "ann")
    rules.put(document(many(400), "again", of), "ann")  # the same ids: these instead of those
    with pytest.raises(InvalidInput, match=r"rules more together with .* come to"):
        rules.put(document(many(400, "s"), "more", of), "ann")


def test_it_counts_in_which_groups_a_host_is(store: Store) -> None:
    rules = store.alarm_rules
    rules.put(document(many(400), "one", Scope("group", "gpu")), "ann")
    rules.put(document(many(400, "s"), "two", Scope("group", "ssd")), "ann")  # nobody is in both
    values = {"heartbeat_s": 10.0, "rules_version": "", "central_version": "none"}
    about = {"started_at": NOON, "details": {"rule_groups": ["gpu", "ssd"]}}
    store.agents.beat("cmp-7", {**values, **about})
    with pytest.raises(InvalidInput, match="on cmp-7"):
        rules.put(document(many(401, "s"), "two", Scope("group", "ssd")), "ann")


def test_going_back_has_to_fit_too(store: Store) -> None:
    rules = store.alarm_rules
    rules.put(document(many(400)), "ann")
    rules.put(document(), "ann")
    rules.put(document(many(400, "s"), "more"), "ann")
    with pytest.raises(InvalidInput, match="rules base together with more"):
        rules.roll_back("base", None, "ann")
    assert rules.show("base")["text"] == RULES


def test_an_agent_is_one_row_however_often_it_beats(store: Store) -> None:
    values = {
        "started_at": NOON,
        "heartbeat_s": 10.0,
        "rules_version": "1-aa",
        "central_version": "none",
        "details": {"groups": ["gpu"]},
    }
    for version in ("1-aa", "2-bb"):
        store.agents.beat("cmp-7", {**values, "rules_version": version})
    now, (row,) = store.agents.all()
    assert (row["host"], row["rules_version"]) == ("cmp-7", "2-bb")
    assert abs((now - row["seen_at"]).total_seconds()) < 60
    assert store.agents.groups("cmp-7") == ["gpu"]
    assert store.agents.groups("cmp-8") == []
