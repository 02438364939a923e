# SPDX-License-Identifier: Apache-2.0
"""The HA matrix: what it answers, the default, both formats of its file, and all that can be wrong
with one, named with its line."""

import doctest
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.hostmonitor import matrix, matrix_file
from holdfast.hostmonitor.matrix import (
    ALERT,
    ANY,
    DEFAULT_FOR_S,
    DOWN,
    NETWORKS,
    NONE,
    RECOVERY,
    UNDECIDED,
    UNKNOWN,
    UP,
    InvalidMatrix,
    Matrix,
    Rule,
    default,
    from_plain,
    parse,
)
from holdfast.model.errors import InvalidInput, Problem
from holdfast.runtime import documents

MASAKARI = """---
sequence: ['manage', 'tenant', 'storage']
matrix:
    - health: ['up', 'up', 'up']
      action: []
    - health: ['up', 'up', 'down']
      action: ['recovery']
    - health: ['up', 'down', 'up']
      action: []
    - health: ['up', 'down', 'down']
      action: ['recovery']
    - health: ['down', 'up', 'up']
      action: []
    - health: ['down', 'up', 'down']
      action: ['recovery']
    - health: ['down', 'down', 'up']
      action: []
    - health: ['down', 'down', 'down']
      action: ['recovery']
"""
OURS = """# what to do about hosts
networks: [manage, tenant, storage]
for: 4s
rules:
  - {when: {storage: down}, do: recovery, for: 500ms}
  - when:
      manage: down
      tenant: down
    do: alert
  - {when: {tenant: down, manage: any}, do: alert, for: 1m}
otherwise: none
"""


def health(*states: str, networks: Sequence[str] = NETWORKS) -> dict[str, str]:
    return dict(zip(networks, states, strict=True))


def actions(ha_matrix: Matrix) -> dict[str, str]:
    """By combination, the first letter of each state."""
    return {"".join(s[0] for s in row.health): row.answer.action for row in ha_matrix.table()}


def problems(text: str | bytes, networks: Sequence[str] = NETWORKS) -> list[str]:
    with pytest.raises(InvalidMatrix) as caught:
        parse(text, networks)
    assert isinstance(caught.value, InvalidInput)
    assert caught.value.problems
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("module", [matrix, matrix_file, documents])
def test_the_matrix_examples_of_the_documentation_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


# what is answered


def test_the_default_recovers_when_storage_is_down_whatever_the_rest() -> None:
    ha_matrix = default(NETWORKS)
    assert actions(ha_matrix) == {
        "uuu": NONE,
        "uud": RECOVERY,
        "udu": NONE,
        "udd": RECOVERY,
        "duu": NONE,
        "dud": RECOVERY,
        "ddu": NONE,
        "ddd": RECOVERY,
    }
    assert {row.answer.for_s for row in ha_matrix.table()} == {0.0, DEFAULT_FOR_S}
    assert ha_matrix.source == "default"


def test_of_a_single_network_the_default_recovers_when_it_is_down() -> None:
    assert actions(default(["ring0"])) == {"u": NONE, "d": RECOVERY}


def test_without_storage_among_several_there_is_no_default() -> None:
    with pytest.raises(
        InvalidMatrix, match="none of which is called storage: write an HA matrix file"
    ):
        default(("manage", "tenant"))
    with pytest.raises(InvalidMatrix, match="name at least one"):
        default(())
    with pytest.raises(InvalidMatrix, match="manage is named twice"):
        default(("manage", "storage", "manage"))
    with pytest.raises(InvalidMatrix, match="11 networks are more"):
        default([f"n{number}" for number in range(11)])


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        ({}, UNDECIDED),
        ({"storage": DOWN}, RECOVERY),
        ({"storage": UP}, NONE),
        ({"manage": DOWN, "tenant": DOWN, "storage": UNKNOWN}, UNDECIDED),
        ({"manage": UNKNOWN, "tenant": UP, "storage": DOWN}, RECOVERY),
        ({"manage": UP, "tenant": UP, "storage": "left"}, UNDECIDED),
        ({"manage": UP, "tenant": UP, "storage": UP, "other": DOWN}, NONE),
    ],
)
def test_an_unknown_network_may_have_any_state(seen: dict[str, str], action: str) -> None:
    answer = default(NETWORKS).answer(seen)
    assert answer.action == action
    if action == UNDECIDED:
        assert (answer.rule, answer.for_s) == (None, 0.0)


def test_an_answer_says_by_which_rule_and_why_not() -> None:
    ha_matrix = parse(OURS, NETWORKS)
    assert ha_matrix.answer(health(UP, UP, DOWN)).sentence == (
        "line 5: storage down -> recovery after 0.5 s"
    )
    assert ha_matrix.answer(health(DOWN, DOWN, UP)).sentence == (
        "line 6: manage down, tenant down -> alert after 4 s"
    )
    assert ha_matrix.answer(health(DOWN, UP, UP)).sentence == "line 11: anything else -> none"
    assert ha_matrix.answer(health(UP, UP, UP)).sentence == "up on every network -> none"
    assert ha_matrix.answer(health(DOWN, UP, UNKNOWN)).sentence == (
        "undecided: storage is unknown; up would mean none, down would mean recovery"
    )
    assert ha_matrix.answer({"manage": UP}).sentence == (
        "undecided: tenant and storage are unknown; it could be recovery or alert or none"
    )
    assert ha_matrix.answer(health(UP, UNKNOWN, DOWN)).sentence == (
        "line 5: storage down -> recovery after 0.5 s"
    )


def test_undecided_between_alert_and_recovery_is_an_alert() -> None:
    ha_matrix = parse(OURS, NETWORKS)
    answer = ha_matrix.answer(health(DOWN, DOWN, UNKNOWN))
    assert (answer.action, answer.for_s, answer.is_decided) == (ALERT, 4.0, False)
    assert answer.sentence == (
        "undecided: storage is unknown; up would mean alert, down would mean recovery"
        " -> alert after 4 s"
    )
    assert ha_matrix.answer(health(DOWN, UP, UNKNOWN)).action == UNDECIDED  # it could be none


def test_a_host_lost_wherever_it_can_be_seen_is_an_alert_while_a_network_is_blind() -> None:
    ha_matrix = default(NETWORKS)
    lost = health(DOWN, DOWN, UNKNOWN)
    answer = ha_matrix.answer(lost, ["storage"])
    assert (answer.action, answer.for_s, answer.is_decided) == (ALERT, DEFAULT_FOR_S, False)
    assert answer.sentence == (
        "down on every network that can be seen, storage cannot be seen -> alert after 3 s"
    )
    assert ha_matrix.answer(lost).action == UNDECIDED  # it left, or never was there
    assert ha_matrix.answer(lost, ["tenant"]).action == UNDECIDED
    assert ha_matrix.answer(health(DOWN, UP, UNKNOWN), ["storage"]).action == UNDECIDED
    assert ha_matrix.answer({}, NETWORKS).action == UNDECIDED  # nothing can be seen at all
    assert ha_matrix.answer(health(UNKNOWN, UNKNOWN, DOWN), NETWORKS[:2]).action == RECOVERY
    assert ha_matrix.answer(health(UNKNOWN, UNKNOWN, UP), NETWORKS[:2]).action == NONE


def test_where_different_rules_agree_the_longest_time_counts() -> None:
    ha_matrix = parse(OURS, NETWORKS)
    answer = ha_matrix.answer(health(UNKNOWN, DOWN, UP))
    assert (answer.action, answer.for_s) == (ALERT, 60.0)
    assert answer.sentence == (
        "alert, whatever manage would be; at the latest by line 10: tenant down -> alert after 60 s"
    )
    quiet = ha_matrix.answer(health(UNKNOWN, UP, UP))
    assert (quiet.action, quiet.sentence) == (NONE, "none, whatever manage would be")


def test_a_host_that_is_up_everywhere_is_left_alone_whatever_the_rules_say() -> None:
    ha_matrix = parse("rules: []\notherwise: recovery", NETWORKS)
    assert actions(ha_matrix).pop("uuu") == NONE
    assert set(actions(ha_matrix).values()) == {NONE, RECOVERY}
    assert ha_matrix.answer({"manage": UP, "tenant": UP}).action == UNDECIDED
    assert Matrix(("a",), (), "none").answer({"a": DOWN}).sentence == "no rule for a down -> none"


def test_matrices_agree_by_meaning_not_by_notation() -> None:
    turned = parse("networks: [storage, tenant, manage]\n" + OURS.split("\n", 2)[2], NETWORKS)
    assert parse(MASAKARI, NETWORKS).agrees(default(NETWORKS))
    assert default(NETWORKS).agrees(parse(MASAKARI, NETWORKS))
    assert turned.agrees(parse(OURS, NETWORKS))
    assert turned.networks == ("storage", "tenant", "manage")
    assert not turned.agrees(default(NETWORKS))
    assert not default(("storage",)).agrees(default(("manage",)))
    slow = parse("for: 9s\n" + MASAKARI.removeprefix("---\n"), NETWORKS)
    assert not slow.agrees(default(NETWORKS))


# the file


def test_masakaris_own_sample_is_the_default() -> None:
    ha_matrix = parse(MASAKARI, NETWORKS, "matrix.yaml")
    assert actions(ha_matrix) == actions(default(NETWORKS))
    assert ha_matrix.source == "matrix.yaml"
    assert ha_matrix.rules[1] == Rule((UP, UP, DOWN), RECOVERY, DEFAULT_FOR_S, line=6)


def test_masakaris_sequence_may_be_any_order_and_a_single_network() -> None:
    text = "sequence: [storage, manage]\nmatrix:\n"
    for states, action in (("up, down", ""), ("down, up", "recovery"), ("down, down", "alert")):
        text += f"- {{health: [{states}], action: [{action}]}}\n"
    ha_matrix = parse(text, ("manage", "storage"))
    assert ha_matrix.answer({"manage": UP, "storage": DOWN}).action == RECOVERY
    assert ha_matrix.answer({"manage": DOWN, "storage": UP}).action == NONE
    assert ha_matrix.answer({"manage": DOWN, "storage": DOWN}).action == ALERT
    one = "sequence: ['manage']\nmatrix:\n  - {health: ['down'], action: ['recovery']}"
    assert actions(parse(one, ["manage"])) == {"u": NONE, "d": RECOVERY}


def test_ours_takes_the_first_rule_that_matches() -> None:
    ha_matrix = parse(OURS, NETWORKS)
    assert actions(ha_matrix) == {
        "uuu": NONE,
        "uud": RECOVERY,
        "udu": ALERT,
        "udd": RECOVERY,
        "duu": NONE,
        "dud": RECOVERY,
        "ddu": ALERT,
        "ddd": RECOVERY,
    }
    assert [(rule.for_s, rule.line) for rule in ha_matrix.rules] == [
        (0.5, 5),
        (4.0, 6),
        (60.0, 10),
        (0.0, 11),
    ]


def test_ours_needs_no_list_of_networks_and_takes_any_number() -> None:
    names = [f"net-{number}" for number in range(10)]
    ha_matrix = parse("rules: [{when: {net-7: down}, do: recovery}]\notherwise: alert", names)
    assert ha_matrix.networks == tuple(names)
    assert len(ha_matrix.table()) == 1024
    assert ha_matrix.answer({"net-7": DOWN}).action == RECOVERY
    seen = dict.fromkeys(names, UP) | {"net-3": DOWN}
    assert ha_matrix.answer(seen).action == ALERT


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("3", 3),
        ("0.25", 0.25),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("2 m", 120),
        ("24h", 86400),
        ("'7s'", 7),
    ],
)
def test_lengths_of_time(written: str, seconds: float) -> None:
    text = f"for: {written}\nrules: [{{when: {{a: down}}, do: alert}}]\n"
    assert parse(text, ["a"]).rules[0].for_s == pytest.approx(seconds)


# what is wrong with it


@pytest.mark.parametrize("written", ["3x", "-1s", "nan", "inf", "1e3", "''", "1:30", "[3s]", "٣s"])
def test_an_invalid_duration_is_named(written: str) -> None:
    text = f"for: {written}\nrules:\n- {{when: {{a: down}}, do: alert, for: {written}}}\n"
    first, second = problems(text, ["a"])
    assert first.startswith("line 1: ") and second.startswith("line 3: ")
    assert first.endswith("is no length of time: write 500ms, 3s, 2m, 1h or 0")
    assert problems("for: 25h\nrules: []\notherwise: alert") == [
        "line 1: '25h' is longer than a day"
    ]


def test_every_problem_of_our_format_is_named_with_its_line() -> None:
    text = """networks: [manage, tenant, tenant, stroage]
for: soon
rules:
  - {when: {storage: down}, do: recovery}
  - {when: {stroage: down}, do: alert}
  - {when: {manage: dwon}, do: alert}
  - {when: {manage: down, manage: up}, do: alert}
  - {when: {tenant: down}, do: evacuate}
  - {when: {storage: down, manage: up}, do: alert}
  - {when: {storage: down}, do: none}
  - {when: {storage: down}, do: recovery, for: 9s}
  - {when: {storage: down, tenant: any}, do: recovery}
  - {when: {manage: up, tenant: up, storage: up}, do: alert}
  - {do: alert, wen: {}}
  - {when: {manage: down}, do: none, for: 3s}
  - alert
  - {when: manage, do: }
  - {when: {manage: up, tenant: down}, do: alert}
  - {when: {tenant: down}, do: alert}
otherwise: [alert]
others: none
"""
    assert problems(text) == [
        "line 1: network 'stroage' is not configured: there are manage, tenant, storage",
        "line 1: network storage is left out: name each of manage, tenant, storage",
        "line 1: network tenant is named twice: name each once",
        "line 2: 'soon' is no length of time: write 500ms, 3s, 2m, 1h or 0",
        "line 5: network 'stroage' is unknown: there are manage, tenant, storage",
        "line 6: 'dwon' is no state: write up, down or any",
        "line 7: network 'manage' is there twice: keep one of them",
        "line 8: 'evacuate' is no action: write recovery, alert or none",
        "line 9: it never has its turn: line 4 matched before; move it up or take it away",
        "line 10: it contradicts line 4, which is about the same hosts: none here, recovery there",
        "line 11: it contradicts line 4, which is about the same hosts: another time to last",
        "line 12: it says the same as line 4: take one of them away",
        "line 13: it asks for something on hosts that are up on every network: they are left alone,"
        " so write none",
        "line 14: `when` is missing: add `when: …`",
        "line 14: key 'wen' is unknown: there are when, do, for",
        "line 15: nothing is done, so nothing has to last: leave `for` out",
        "line 16: 'alert' should be a map: write {when: …}",
        "line 17: 'manage' should be a map: write {manage: …}",
        "line 17: nothing is no action: write recovery, alert or none",
        "line 18: it never has its turn: lines 4, 8 matched before; move it up or take it away",
        "line 19: it never has its turn: lines 4, 8 matched before; move it up or take it away",
        "line 20: '[alert]' is no action: write recovery, alert or none",
        "line 21: key 'others' is unknown: there are networks, for, rules, otherwise",
    ]


def test_every_problem_of_masakaris_format_is_named_with_its_line() -> None:
    text = """sequence: [manage, tenat, storage]
matrix:
  - health: [up, up, up]
    action: [recovery]
  - health: [up, up, dwn]
    action: [recovery]
  - health: [up, down, up]
    action: recovery
  - health: [up, down, down]
    action: [evacuate]
  - health: [up, down, down]
    action: []
    color: red
  - health: [down, up, down]
    action: [recovery]
  - health: [down, up, down]
    action: [alert]
  - health: [down, up, down]
    action: [recovery]
rules: []
"""
    assert problems(text) == [
        "line 1: network 'tenat' is not configured: there are manage, tenant, storage",
        "line 1: network tenant is left out: name each of manage, tenant, storage",
        "line 3: it asks for something on hosts that are up on every network: they are left alone,"
        " so write none",
        "line 5: 'dwn' is no state: write up or down",
        "line 8: 'recovery' is no action: write [recovery], [alert] or []",
        "line 10: '[evacuate]' is no action: write [recovery], [alert] or []",
        "line 11: it never has its turn: line 9 matched before; move it up or take it away",
        "line 13: key 'color' is unknown: there are health, action",
        "line 16: it contradicts line 14, which is about the same hosts:"
        " alert here, recovery there",
        "line 18: it says the same as line 14: take one of them away",
        "line 20: key 'rules' is unknown: there are sequence, matrix, for",
    ]


@pytest.mark.parametrize("left", range(1, 8))
def test_a_row_that_masakaris_format_leaves_out_is_none_and_named_in_a_warning(left: int) -> None:
    rows = MASAKARI.splitlines()
    states = rows[3 + 2 * left].partition(": ")[2].replace("'", "")
    del rows[3 + 2 * left : 5 + 2 * left]
    ha_matrix = parse("\n".join(rows), NETWORKS)
    assert ha_matrix.warning == (
        f"1 row is left out and counts as none, in the order manage, tenant, storage: {states}"
    )
    seen = health(*states.strip("[]").split(", "))
    assert ha_matrix.answer(seen).action == NONE
    assert "no rule for" in ha_matrix.answer(seen).sentence


def test_the_four_rows_of_the_consul_specification_are_the_default() -> None:
    text = """sequence: [manage, tenant, storage]
matrix:
  - {health: [up, up, down], action: [recovery]}
  - {health: [up, down, down], action: [recovery]}
  - {health: [down, up, down], action: [recovery]}
  - {health: [down, down, down], action: [recovery]}
"""
    ha_matrix = parse(text, NETWORKS)
    assert ha_matrix.agrees(default(NETWORKS))
    assert ha_matrix.warning == (
        "3 rows are left out and count as none, in the order manage, tenant, storage:"
        " [up, down, up], [down, up, up], [down, down, up]"
    )
    one = parse("sequence: [manage]\nmatrix: [{health: [down], action: [recovery]}]", ["manage"])
    assert (one.warning, actions(one)) == ("", {"u": NONE, "d": RECOVERY})


def test_a_matrix_needs_no_rule_for_healthy_hosts() -> None:
    rows = MASAKARI.splitlines()
    del rows[3:5]
    ha_matrix = parse("\n".join(rows), NETWORKS)
    assert ha_matrix.agrees(default(NETWORKS))
    assert ha_matrix.warning == default(NETWORKS).warning == ""


def test_a_health_without_a_rule_has_the_action_none() -> None:
    rule = "rules: [{when: {storage: down}, do: recovery}]"
    assert parse(rule, NETWORKS).agrees(default(NETWORKS))
    assert "[up, down, up], [down, up, up], [down, down, up]" in parse(rule, NETWORKS).warning
    assert parse(rule, ["storage"]).answer({"storage": DOWN}).action == RECOVERY
    assert parse(rule, ["storage"]).warning == ""
    assert parse(rule + "\notherwise: none", NETWORKS).warning == ""
    assert problems("rules: [{when: {a: down}, do: alert}]\notherwise: recovery", ["a"]) == [
        "line 2: it never has its turn: line 1 matched before; move it up or take it away"
    ]
    many = parse("rules: []", [f"n{number}" for number in range(5)]).warning
    assert many.startswith("31 rows are left out") and many.endswith("and 15 more")


def test_a_row_of_the_wrong_length_is_one_problem_not_many() -> None:
    text = MASAKARI.replace("['up', 'down', 'down']", "['up', 'down']")
    assert problems(text) == [
        "line 10: 2 states for 3 networks: write one for each, in their order"
    ]
    text = MASAKARI.replace("['up', 'down', 'down']", "up")
    assert problems(text) == ["line 10: `health` is 'up' and should be a list: write [ … ]"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty: write rules, or do without a file to get the default"),
        ("# nothing\n---\n", "it is empty: write rules, or do without a file to get the default"),
        ("storage", "line 1: an HA matrix begins with `rules:`, or with `sequence:`"),
        ("- storage", "line 1: an HA matrix begins with `rules:`, or with `sequence:`"),
        ("rules: 7", "line 1: `rules` is '7' and should be a list: write [ … ]"),
        ("otherwise: none", "line 1: `rules` is missing: add `rules: …`"),
        ("sequence: [manage, tenant, storage]", "line 1: `matrix` is missing: add `matrix: …`"),
        (
            "rules: []\notherwise: none\nrules: []",
            "line 3: key 'rules' is there twice: keep one of",
        ),
        ("rules: [\notherwise: none", "line 2: this is not YAML: "),
        ("rules:\n\t- a", "line 2: this is not YAML: "),
        ("a: 1\n---\nb: 2", "line 2: a second document begins: put all into one"),
        ("rules: &r []\nmatrix: *r", "line 1: anchors and aliases (& and *) are not taken here"),
        ("\nrules: *r", "line 2: anchors and aliases (& and *) are not taken here"),
        ("rules: !!python/name:os.system []", "line 1: tags (!) are not taken here"),
        ("? [a]\n: b", "line 1: what stands before a colon must be a word"),
        ("rules:\n  - \x07", "line 2: there is a character here that is not allowed in YAML"),
        ("rules:\n  - \ud800", "line 2: there is a character here that is not allowed in YAML"),
        ('rules:\n- "\\UFFFFFFFF"', "line 2: this, or a line soon after, is not YAML"),
        (b"rules:\n- \xff", "line 2: this is not UTF-8: save it as plain text"),
        ("#" * 65_537, "it is larger than the 65536 bytes that are taken"),
        ("ä" * 40_000, "it is larger than the 65536 bytes that are taken"),
    ],
)
def test_a_document_of_another_kind_is_refused_with_a_reason(text: str | bytes, said: str) -> None:
    (found,) = problems(text)
    assert found.startswith(said)


def test_a_file_that_begins_with_a_byte_order_mark_is_read() -> None:
    data = ("\ufeff" + MASAKARI.removeprefix("---\n")).encode()
    assert parse(data, NETWORKS).agrees(default(NETWORKS))


BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "[" * 60_000,
        "{a: " * 15_000,
        "- " * 30_000,
        "? " * 30_000,
        "&a " * 20_000,
        "a: " + "9" * 60_000,
        '"' + "\\u0041" * 10_000 + '"',
        "sequence: [" + "x," * 30_000 + "]\nmatrix: []",
        "sequence: ["
        + "x," * 1_000
        + "]\nmatrix:\n- {health: ["
        + "up," * 1_000
        + "], action: []}",
        "rules:\n" + "- {when: {}, do: none}\n" * 2_800,
        "rules:\n" + "- {}\n" * 1_000,
        "%YAML " + "9" * 5_000 + ".1\n---\na",
    ],
)
def test_a_hostile_file_costs_little(text: str) -> None:
    began = time.process_time()
    problems(text)
    assert time.process_time() - began < 3  # the slowest takes half a second


def test_the_message_names_the_first_problems_and_the_error_has_all() -> None:
    with pytest.raises(InvalidMatrix) as caught:
        parse("rules:\n" + "- {}\n" * 30 + "otherwise: none", NETWORKS, "matrix.yaml")
    error = caught.value
    assert error.message.startswith("matrix.yaml has 60 problems: line 2: `do` is missing")
    assert error.message.endswith("; and 40 more")
    assert len(error.problems) == len(error.details["problems"]) == 60
    assert error.details["problems"][0] == {"line": 2, "text": "`do` is missing: add `do: …`"}
    assert error.problems[0] == Problem(2, "`do` is missing: add `do: …`")


def test_networks_that_cannot_be_are_refused_before_the_file_is_read() -> None:
    with pytest.raises(InvalidMatrix, match="the list of networks has a problem: 'a b' cannot be"):
        parse(OURS, ["a b"])


# on the wire


@pytest.mark.parametrize(
    "change",
    [
        {"networks": None},
        {"networks": "manage"},
        {"networks": []},
        {"networks": ["a", "a"]},
        {"networks": [7]},
        {"networks": [{}]},
        {"source": None},
        {"source": "x" * 2_000},
        {"rules": None},
        {"rules": [{}] * 2_000},
        {"rules": [7]},
        {"rules": [{"health": ["up"], "action": "none", "for_s": 0, "line": 0}]},
        {"rules": [{"health": ["up", "up", []], "action": "none", "for_s": 0, "line": 0}]},
        {"rules": [{"health": ["up"] * 3, "action": "undecided", "for_s": 0, "line": 0}]},
        {"rules": [{"health": ["up"] * 3, "action": "none", "for_s": float("nan"), "line": 0}]},
        {"rules": [{"health": ["up"] * 3, "action": "none", "for_s": -1, "line": 0}]},
        {"rules": [{"health": ["up"] * 3, "action": "none", "for_s": "3", "line": 0}]},
        {"rules": [{"health": ["up"] * 3, "action": "none", "for_s": 3, "line": None}]},
    ],
)
def test_an_invalid_matrix_from_the_wire_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidMatrix):
        from_plain(default(NETWORKS).to_plain() | change)


def test_a_matrix_is_an_object() -> None:
    with pytest.raises(InvalidMatrix, match="is an object"):
        from_plain([])  # type: ignore[arg-type]


# properties

_names = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True)


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    networks = tuple(draw(_names))
    rule = st.builds(
        Rule,
        st.tuples(*[st.sampled_from((UP, DOWN, ANY))] * len(networks)),
        st.sampled_from((RECOVERY, ALERT, NONE)),
        st.integers(0, 86_400_000).map(lambda ms: ms / 1000),
        st.integers(0, 99),
    )
    return Matrix(networks, tuple(draw(st.lists(rule, max_size=6))), draw(st.text(max_size=9)))


def by_hand(ha_matrix: Matrix, states: Sequence[str]) -> tuple[str, float]:
    """The first rule that matches, said once more in other words."""
    if DOWN not in states:
        return NONE, 0.0
    for rule in ha_matrix.rules:
        if all(rule.health[n] == ANY or rule.health[n] == states[n] for n in range(len(states))):
            return rule.action, 0.0 if rule.action == NONE else rule.for_s
    return NONE, 0.0


@given(matrices(), st.data())
@settings(max_examples=200, deadline=None)
def test_an_answer_agrees_with_all_that_the_unknown_could_be(
    ha_matrix: Matrix, data: st.DataObject
) -> None:
    states = [data.draw(st.sampled_from((UP, DOWN, UNKNOWN))) for _ in ha_matrix.networks]
    could = itertools.product(*((s,) if s != UNKNOWN else (UP, DOWN) for s in states))
    expected = [by_hand(ha_matrix, one) for one in could]
    seen = health(*states, networks=ha_matrix.networks)
    absent = {name: state for name, state in seen.items() if state != UNKNOWN}
    answer = ha_matrix.answer(seen)
    assert answer == ha_matrix.answer(absent) == Matrix(*_parts(ha_matrix)).answer(seen)
    could_be = {action for action, _ in expected}
    assert answer.is_decided == (len(could_be) == 1)
    if could_be == {RECOVERY, ALERT}:
        assert (answer.action, answer.for_s) == (ALERT, max(for_s for _, for_s in expected))
    elif len(could_be) > 1:
        assert (answer.action, answer.for_s) == (UNDECIDED, 0.0)
    else:
        assert (answer.action, answer.for_s) == max(expected, key=lambda one: one[1])
    assert answer.sentence


def _parts(ha_matrix: Matrix) -> tuple[tuple[str, ...], tuple[Rule, ...], str]:
    return ha_matrix.networks, ha_matrix.rules, ha_matrix.source


@given(matrices())
@settings(max_examples=100, deadline=None)
def test_a_matrix_comes_back_from_the_wire_as_it_was(ha_matrix: Matrix) -> None:
    again = from_plain(json.loads(json.dumps(ha_matrix.to_plain())))
    assert again == ha_matrix
    assert again.agrees(ha_matrix)
    assert again.table() == ha_matrix.table()


@given(matrices())
@settings(max_examples=100, deadline=None)
def test_a_matrix_written_down_in_our_format_is_read_as_it_was_or_refused_for_cause(
    ha_matrix: Matrix,
) -> None:
    lines = []
    for rule in ha_matrix.rules:
        when = dict(zip(ha_matrix.networks, rule.health, strict=True))
        lasts = {} if rule.action == NONE else {"for": f"{rule.for_s:.3f}s"}
        lines.append("- " + json.dumps({"when": when, "do": rule.action, **lasts}))
    text = "\n".join(["rules:" if lines else "rules: []", *lines, "otherwise: none"])
    try:
        read = parse(text, ha_matrix.networks)
    except InvalidMatrix as error:
        said = [problem.text.split()[1] for problem in error.problems]
        assert set(said) <= {"contradicts", "says", "never", "asks"}
        return
    for row in ha_matrix.table():
        same = read.answer(health(*row.health, networks=ha_matrix.networks))
        assert (same.action, same.for_s) == (row.answer.action, pytest.approx(row.answer.for_s))


_scraps = st.lists(
    st.sampled_from(
        [
            *[
                "rules",
                "when",
                "do",
                "for",
                "otherwise",
                "networks",
                "sequence",
                "matrix",
                "health",
            ],
            *[
                "action",
                "up",
                "down",
                "any",
                "recovery",
                "manage",
                "3s",
                ":",
                ": ",
                "- ",
                "\n",
                " ",
            ],
            *["  ", "[", "]", "{", "}", ",", "&a", "*a", "!!str ", "|", ">", "'", '"', "\\U", "%"],
            *[
                "---",
                "...",
                "? ",
                "#",
                "\t",
                "~",
                "\\x",
                "9",
                "\ufeff",
                "\x85",
                "\u2028",
                "@",
                "<<",
            ],
        ]
    )
).map("".join)


@given(st.one_of(st.text(), _scraps, st.binary()))
@settings(max_examples=600, deadline=None)
def test_whatever_stands_in_a_file_it_is_a_matrix_or_bad(text: str | bytes) -> None:
    try:
        read = parse(text, NETWORKS)
    except InvalidMatrix as error:
        assert error.problems
        count = text.count("\n" if isinstance(text, str) else b"\n")  # type: ignore[arg-type]
        assert (
            isinstance(text, bytes)
            or "\r" in text
            or "\x85" in text
            or "\u2028" in text
            or ("\u2029" in text or all(problem.line <= count + 1 for problem in error.problems))
        )
    else:
        assert len(read.table()) == 8


@given(
    st.recursive(
        st.sampled_from(["up", "down", "recovery", "any", 3, None, "manage"]),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["when", "do", "for", "health", "action", "manage", "tenant", "storage", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    st.sampled_from(["rules", "matrix", "sequence", "networks", "for", "otherwise"]),
)
@settings(max_examples=250, deadline=None)
def test_any_data_is_a_matrix_or_is_refused(tree: Any, key: str) -> None:
    for whole in (tree, {key: tree}, {"rules": [tree], key: tree}, {"matrix": [tree], key: tree}):
        try:
            parse(json.dumps(whole), NETWORKS)
        except InvalidMatrix as error:
            assert error.problems
