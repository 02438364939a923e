# SPDX-License-Identifier: Apache-2.0
"""Files of alarm rules: what they mean, and what is wrong with them, by line."""

from __future__ import annotations

import doctest
import json
import random
from pathlib import Path

import pytest

from holdfast.alarms import rules, rules_file
from holdfast.alarms.rules import BadRules, Condition, Hours, Rule, Selector
from holdfast.metrics import collector, fields
from holdfast.metrics.collector import PROMISES
from holdfast.metrics.history import FIELDS
from holdfast.ports.metrics import Process, Vcpu
from tests.alarms.world import rules as world_rules

HERE = Process(1.0, 7, 1, 1, 1, 1, (Vcpu(0, 1, 1),))
GOOD = """\
group_wait: 2s
storm: 20
conditions:
  busy: {field: util_ratio, when: "> 95%"}
  starved: {field: steal_ratio, when: "> 10%", clear: 5%, hits: 3 of 5}
rules:
  - id: pipe
    on: nic
    field: tx_bps
    contract: tx_bps
    when: "> 1.2"
    burst: 30s
    severity: critical
    class: network
    summary: more than was bought
    project: [gold, "p-*"]
    actions: [notify, incident, migrate_away]
  - {id: hot, on: guest, all: [busy, starved], for: 5m, keep_firing: 1m, hours: mon-fri 08:00-18:00}
  - {id: disk, on: disk, field: used_bytes, measure: time_to_full, full: capacity_bytes, over: 1h,
     when: "< 4h", no_data: none, repeat: 2h, damp: 1m, damp_cap: 20m}
  - {id: sent, on: host, field: tx_bytes, measure: rate, over: 5m, when: ">= 1Gi", group: "gpu*",
     actions: [disable_host, repair_ahead], no_data_for: 5m}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(BadRules) as caught:
        world_rules(text)
    return [str(problem) for problem in caught.value.problems]


def test_every_key_of_a_rules_file_is_parsed() -> None:
    parsed = world_rules(GOOD)
    pipe, hot, disk, sent = parsed.rules
    assert (parsed.group_wait_s, parsed.storm) == (2.0, 20)
    assert pipe == Rule(
        "pipe",
        Selector("nic", projects=("gold", "p-*")),
        (Condition("tx_bps", ">", 1.2, 1.08, contract="tx_bps", burst_s=30.0),),
        severity="critical",
        topic="network",
        summary="more than was bought",
        actions=("notify", "incident", "migrate_away"),
    )
    assert hot.conditions[1] == Condition("steal_ratio", ">", 0.1, 0.05, hits=3, of=5)
    assert (hot.every, hot.for_s, hot.keep_s) == (True, 300.0, 60.0)
    assert hot.hours == (Hours((0, 1, 2, 3, 4), 480, 1080),)
    assert disk.conditions[0].full == "capacity_bytes"
    assert (disk.conditions[0].level, disk.conditions[0].clear) == (14400.0, 15840.0)
    assert (disk.no_data, disk.repeat_s, disk.damp_s, disk.damp_cap_s) == ("none", 7200, 60, 1200)
    assert (sent.conditions[0].level, sent.selector.groups) == (2.0**30, ("gpu*",))
    assert [rule.line for rule in parsed.rules] == [7, 18, 19, 21]


def test_the_version_has_the_number_and_the_digest_of_the_text() -> None:
    assert world_rules(GOOD, 7).version == world_rules(GOOD, 7).version
    assert world_rules(GOOD, 7).version.startswith("7-")
    assert world_rules(GOOD, 7).digest != world_rules(GOOD + "# more", 7).digest
    assert world_rules(GOOD, 7) == world_rules(GOOD + "# more", 8)  # the same rules all the same


def test_json_is_read_by_the_same_reader() -> None:
    plain = {"rules": [{"id": "r", "on": "guest", "field": "x", "when": "> 5"}]}
    text = "rules:\n  - {id: r, on: guest, field: x, when: '> 5'}"
    assert world_rules(json.dumps(plain)) == world_rules(text)
    assert world_rules('{"rules": []}').rules == ()


def rule(more: str) -> str:
    return f"rules:\n  - {{id: r, on: guest, {more}}}"


FIELD = "field: x, when: '> 5'"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty: write `rules: []` if there shall be no alarms"),
        ("- a", "line 1: alarm rules begin with `rules:`"),
        ("rules: 7", "line 1: `rules` is '7' and should be a list"),
        ("storm: 0\nrules: []", "line 1: `storm` is '0': write a number from 1 to 10000"),
        (f"storm: {'9' * 5000}\nrules: []", "write a number from 1 to 10000"),
        (f"storm: {'0' * 5000}\nrules: []", "write a number from 1 to 10000"),
        ("conditions: {a: {field: x, when: '> 5'}}\nrules: []", "line 1: no rule uses condition a"),
        (rule("field: x"), "line 2: `when` is missing"),
        (rule("when: '> 5'"), "line 2: write either `field` and `when`, or one of `all` and `any`"),
        (rule("field: x, when: 5"), "line 2: '5' is no level: write one of > >= < <= == !="),
        (rule("field: x, when: '> many'"), "line 2: '> many' is no level"),
        (rule("field: x, when: '> 1e999'"), "line 2: '> 1e999' is no level"),
        (
            rule(f"{FIELD}, clear: 6"),
            "line 2: an alarm at 5 cannot end at 6: write a `clear` below",
        ),
        (rule("field: x, when: '< 5', clear: 4"), "a `clear` above the level"),
        (rule("field: x, when: '== 5', clear: 4"), "`clear` goes with more or less, not with =="),
        (rule(f"{FIELD}, measure: rate"), "line 2: a rate needs a window: add `over: 5m`"),
        (rule(f"{FIELD}, over: 5m"), "line 2: `over` goes with a rate or a time to full"),
        (rule(f"{FIELD}, full: 5"), "line 2: `full` goes with `measure: time_to_full`"),
        (rule(f"{FIELD}, measure: time_to_full, over: 1h, full: 9"), 'write when: "< 4h"'),
        (
            rule("field: x, when: '< 4h', measure: time_to_full, over: 1h"),
            "needs to know when it is full",
        ),
        (rule("field: x, when: '< 5', burst: 3s"), "a burst is above a level that is more than 0"),
        (rule(f"{FIELD}, hits: 5 of 3"), "line 2: '5 of 3': write `hits: 3 of 5`, of 60 at most"),
        (rule(f"{FIELD}, for: soon"), "line 2: 'soon' is no length of time"),
        (rule(f"{FIELD}, severity: bad"), "'bad' is no severity: write info, warning or critical"),
        (rule(f"{FIELD}, hours: noon"), "'noon' are no hours of the week"),
        (rule(f"{FIELD}, hours: 25:00-26:00"), "are no hours of the week"),
        (rule(f"{FIELD}, actions: [reboot]"), "'reboot' is no action: there are notify, incident"),
        (rule(f"{FIELD}, actions: [disable_host]"), "disable_host is for an alarm of a host, not"),
        (rule(f"{FIELD}, damp: 5m, damp_cap: 1m"), "`damp_cap` is less than `damp`"),
        (rule(f"{FIELD}, all: [a]"), "write either `field` and `when`, or one of"),
        (rule("all: [a]"), "line 2: condition 'a' is not there: there are none"),
        (rule(f"{FIELD}, colour: red"), "line 2: key 'colour' is unknown"),
        (rule(FIELD).replace("on: guest", "on: moon"), "'moon' is no kind of thing: write host"),
        (rule(FIELD).replace("id: r", "id: r r"), "id 'r r': write up to 64 letters"),
        (
            rule(FIELD) + f"\n  - {{id: r, on: guest, {FIELD}}}",
            "line 3: line 2 has the id r already",
        ),
        ("rules:\n\t- a", "line 2: this is not YAML"),
    ],
)
def test_an_error_names_the_line_and_the_correction(text: str, said: str) -> None:
    assert any(said in problem for problem in problems(text)), problems(text)


UNKNOWN = """\
conditions:
  busy: {field: util_ration, when: "> 95%"}
  slow: {field: mean_latency, when: "> 5"}
rules:
  - {id: a, on: guest, any: [busy]}
  - {id: b, on: guest, all: [busy]}
  - {id: c, on: host, field: util_ratio, when: "> 9"}
  - {id: d, on: disk, field: allocation_bytes, measure: time_to_full, over: 1h, when: "< 4h",
     full: capacity}
  - {id: e, on: nic, field: nosuchfield, when: "> 9"}
  - {id: f, on: guest, field: vcpu12_steal_ratio, when: "> 9"}
  - {id: g, on: disk, any: [slow]}
"""


def test_an_unmeasured_field_is_an_error_with_the_closest_field_name() -> None:
    assert len(world_rules(UNKNOWN).rules) == 7  # of a recording, say
    with pytest.raises(BadRules) as caught:
        rules_file.parse(UNKNOWN, "f", known_fields=True)
    assert sorted(str(problem) for problem in caught.value.problems) == [
        "line 10: 'nosuchfield' is no field of a nic: docs/concepts/metrics.md has their names",
        "line 2: 'util_ration' is no field of a guest: do you mean util_ratio?",
        "line 3: 'mean_latency' is no field of a disk: do you mean mean_latency_ns?",
        "line 7: 'util_ratio' is no field of a host: do you mean cpu_util_ratio?",
        "line 8: 'capacity' is no field of a disk: do you mean capacity_bytes?",
    ]


def test_every_measured_field_is_known_to_the_parser() -> None:
    made = {
        "host": collector.HOST_FIELDS | PROMISES | {"cpu_steal_ns", "cpus", "mem_available_bytes"},
        "guest": collector.RAM
        | collector.HALTPOLL
        | collector.PROCESS_RATES
        | collector.process_rates(HERE, HERE, 1)[0].keys(),
        "disk": collector.DISK_FIELDS,
        "nic": collector.NIC_FIELDS,
    }
    for kind, names in {**FIELDS, **made}.items():
        assert not [name for name in names if not fields.is_known(kind, name)]
    for kind, names in made.items():
        assert not [field for field in FIELDS[kind] if field not in names]


def test_the_example_in_the_docs_can_be_used() -> None:
    text = (Path(__file__).parents[2] / "docs/concepts/alarms.md").read_text()
    parsed = rules_file.parse(
        text.split("```yaml alarms.yaml\n")[1].split("```")[0], "docs", known_fields=True
    )
    assert len(parsed.rules) == 6


def test_all_errors_are_reported_at_once() -> None:
    text = GOOD.replace("30s", "soon").replace("critical", "bad").replace("< 4h", "~ 4h")
    assert [problem.split(":")[0] for problem in problems(text)] == [
        "line 12",
        "line 13",
        "line 20",
    ]


def test_no_garbage_gets_through_or_breaks_the_reader() -> None:
    """Thousands of files with something wrong: they are read, or refused with a sentence."""
    chance = random.Random(7)
    refused = 0
    for _ in range(1500):
        text = list(GOOD)
        for _ in range(chance.randrange(1, 6)):
            text[chance.randrange(len(text))] = chance.choice("{}[]:,-&*!|>'\"%#\n x0\x07\ud800é")
        try:
            world_rules("".join(text))
        except BadRules as error:
            assert error.problems and error.message
            refused += 1
    assert refused > 500


def test_examples_in_the_words_are_true() -> None:
    for module in (rules_file, rules, rules_file):
        assert doctest.testmod(module).failed == 0
