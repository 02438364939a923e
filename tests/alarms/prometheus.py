# SPDX-License-Identifier: Apache-2.0
"""Prometheus judges: what both of us can say, we say alike, over a day that was made up.

Our rules are written as its rules. What our engine says of the day, at each change and in the pass
just before it, is what `promtool test rules` is told to expect: which alarms fire, and which wait.

    told = judged(promtool, folder, day(7), watched(day(7)), THEIRS)
    told.returncode == 0
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from holdfast.alarms.engine import Engine
from holdfast.alarms.rules_file import parse
from holdfast.alarms.tracks import FIRING, PENDING
from holdfast.ports.metrics import GUEST, Entity, Reading, Snapshot, Table
from tests.alarms.day import GUESTS, STEP_S, Day

OURS = """
storm: 1000
conditions:
  busy: {field: cpu, when: "> 90", clear: 90}
  starved: {field: steal, when: "> 10", clear: 10}
rules:
  - {id: over, on: guest, field: cpu, when: "> 90", clear: 90}
  - {id: least, on: guest, field: cpu, when: ">= 90", clear: 90, for: 2m}
  - {id: under, on: guest, field: cpu, when: "< 70", clear: 70, for: 3m}
  - {id: most, on: guest, field: cpu, when: "<= 70", clear: 70}
  - {id: same, on: guest, field: cpu, when: "== 90"}
  - {id: other, on: guest, field: cpu, when: "!= 90", for: 5m}
  - {id: lasts, on: guest, field: cpu, when: "> 85", clear: 85, for: 10m}
  - {id: keeps, on: guest, field: cpu, when: "> 90", clear: 90, keep_firing: 5m}
  - {id: lasts_keeps, on: guest, field: cpu, when: "> 88", clear: 88, for: 3m, keep_firing: 4m}
  - {id: sticky, on: guest, field: cpu, when: "> 90", clear: 70}
  - {id: rate, on: guest, field: sent, when: "> 120", clear: 120, measure: rate, over: 290s}
  - {id: slow, on: guest, field: sent, when: "< 60", clear: 60, measure: rate, over: 170s, for: 5m}
  - {id: full, on: guest, field: used, when: "< 4h", clear: 4h, measure: time_to_full,
     over: 1750s, full: 900}
  - {id: hits, on: guest, field: even, when: "> 90", clear: 90, hits: 3 of 5}
  - {id: both, on: guest, all: [busy, starved]}
  - {id: either, on: guest, any: [busy, starved], for: 4m, keep_firing: 3m}
"""

#: What they are in its words: the expression, `for` and `keep_firing_for` in minutes.
THEIRS: dict[str, tuple[str, int, int]] = {
    "over": ("cpu > 90", 0, 0),
    "least": ("cpu >= 90", 2, 0),
    "under": ("cpu < 70", 3, 0),
    "most": ("cpu <= 70", 0, 0),
    "same": ("cpu == 90", 0, 0),
    "other": ("cpu != 90", 5, 0),
    "lasts": ("cpu > 85", 10, 0),
    "keeps": ("cpu > 90", 0, 5),
    "lasts_keeps": ("cpu > 88", 3, 4),
    "sticky": (
        'cpu > 90 or (cpu > 70 and on(guest) ALERTS{alertname="sticky",alertstate="firing"})',
        0,
        0,
    ),
    "rate": ("rate(sent[290s]) > 120 and sent", 0, 0),
    "slow": ("rate(sent[170s]) < 60 and sent", 5, 0),
    "full": ("predict_linear(used[1750s], 14400) > 900 and used", 0, 0),
    "hits": ("count_over_time((even > 90)[270s:1m]) >= 3", 0, 0),
    "both": ("cpu > 90 and steal > 10", 0, 0),
    "either": ("cpu > 90 or steal > 10", 4, 3),
}

#: By rule and state, of each step, who is in it.
Seen = dict[str, dict[str, list[frozenset[str]]]]


def watched(of: Day) -> Seen:
    """What our engine makes of it."""
    engine = Engine(parse(OURS, "ours"))
    found: Seen = {rule: {FIRING: [], PENDING: []} for rule in THEIRS}
    for snapshot in snapshots(of):
        engine.evaluate(snapshot)
        now: dict[tuple[str, str], set[str]] = defaultdict(set)
        for alarm in engine.alarms():
            now[alarm.rule, alarm.state].add(alarm.name)
        for rule, states in found.items():
            for state, steps in states.items():
                steps.append(frozenset(now[rule, state]))
    return found


def snapshots(of: Day) -> Iterator[Snapshot]:
    entities = {guest: Entity(GUEST, f"u-{guest}", guest) for guest in GUESTS}
    begin = datetime(2026, 11, 16, tzinfo=UTC)
    for step in range(len(of[GUESTS[0]]["cpu"])):
        readings = []
        for guest, series in of.items():
            values = {name: v for name, each in series.items() if (v := each[step]) is not None}
            readings.append(Reading(entities[guest], values))
        at = begin + timedelta(seconds=step * STEP_S)
        tables = {GUEST: Table(GUEST, readings)}
        yield Snapshot("h", step, at, float(step * STEP_S), float(STEP_S), tables)


def judged(
    promtool: str, folder: Path, of: Day, states: Seen, rules: dict[str, tuple[str, int, int]]
) -> subprocess.CompletedProcess[str]:
    """What Prometheus says of what we expect of these rules."""
    written = [
        {"alert": name, "expr": expr, "for": f"{for_m}m", "keep_firing_for": f"{keep_m}m"}
        for name, (expr, for_m, keep_m) in rules.items()
    ]
    (folder / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "g", "rules": written}]})
    )
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [
            {
                "interval": f"{STEP_S}s",
                "input_series": list(input_series(of)),
                "alert_rule_test": [
                    case for name in rules for case in expected(name, states[name])
                ],
                "promql_expr_test": [
                    case for name in rules for case in waiting(name, states[name])
                ],
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.dump(test, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))
    return subprocess.run(
        [promtool, "test", "rules", str(path)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def input_series(of: Day) -> Iterator[dict[str, str]]:
    for guest, series in of.items():
        for name, values in series.items():
            words = ("stale" if value is None else f"{value!r}" for value in values)
            yield {"series": f'{name}{{guest="{guest}"}}', "values": " ".join(words)}


def moments(states: list[frozenset[str]]) -> Iterator[int]:
    """Each step that changes something, and the one before it."""
    yield 0
    for step in range(1, len(states)):
        if states[step] != states[step - 1]:
            yield step - 1
            yield step
    yield len(states) - 1


def expected(name: str, states: dict[str, list[frozenset[str]]]) -> Iterator[dict[str, Any]]:
    for step in sorted(set(moments(states[FIRING]))):
        alerts = [{"exp_labels": {"guest": guest}} for guest in sorted(states[FIRING][step])]
        yield {"alertname": name, "eval_time": f"{step * STEP_S}s", "exp_alerts": alerts}


def waiting(name: str, states: dict[str, list[frozenset[str]]]) -> Iterator[dict[str, Any]]:
    for step in sorted(set(moments(states[PENDING]))):
        labels = f'alertname="{name}", alertstate="pending"'
        samples = [
            {"labels": f'ALERTS{{{labels}, guest="{guest}"}}', "value": 1}
            for guest in sorted(states[PENDING][step])
        ]
        expr = f"ALERTS{{{labels}}}"
        yield {"expr": expr, "eval_time": f"{step * STEP_S}s", "exp_samples": samples}
