# SPDX-License-Identifier: Apache-2.0
"""Filter files: what they mean, and that all that is wrong with one is named with its line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent import guest_filters
from holdfast.agent.guest_filters import (
    ACTIONS,
    DEFAULT_TEXT,
    EVENTS,
    LASTING,
    BadFilter,
    Filter,
    Symptom,
    Tally,
    default,
    parse,
)

DIED = Symptom("stopped", "failed")


def do(filters: Filter, sign: Symptom, **about: str) -> str:
    return filters.judge(sign, about, {}, 0.0)[0].do


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(BadFilter) as bad:
        parse(text, "f.yaml")
    return [str(problem) for problem in bad.value.problems]


@pytest.mark.parametrize(
    ("sign", "about", "wanted"),
    [
        (DIED, {}, "recover"),
        (DIED, {"ha": "no"}, "ignore"),
        (DIED, {"ha": "yes"}, "recover"),
        (Symptom("stopped", "vanished"), {}, "recover"),
        (Symptom("stopped", "terminated"), {}, "report"),
        (Symptom("stopped", "shutdown"), {}, "ignore"),
        (Symptom("stopped", "destroyed"), {}, "ignore"),
        (Symptom("stopped", "migrated"), {}, "ignore"),
        (Symptom("panic", "panicked"), {}, "recover"),
        (Symptom("panic", "panicked"), {"on_crash": "preserve"}, "recover"),
        (Symptom("panic", "panicked"), {"on_crash": "restart"}, "report"),
        (Symptom("io_error", "pause"), {}, "recover"),
        (Symptom("io_error", "pause", "enospc"), {}, "report"),
        (Symptom("io_error", "report"), {}, "recover"),
        (Symptom("io_error", "none"), {}, "report"),
        (Symptom("watchdog", "pause"), {}, "recover"),
        (Symptom("watchdog", "poweroff"), {}, "recover"),
        (Symptom("watchdog", "reset"), {}, "report"),
        (Symptom("monitor", "stuck"), {}, "recover"),
        (Symptom("control_error"), {}, "report"),
        (Symptom("reboot"), {}, "ignore"),
        (Symptom("agent", "disconnected"), {}, "ignore"),
    ],
)
def test_the_default_rules_recover_lost_guests_and_ignore_ordinary_events(
    sign: Symptom, about: dict[str, str], wanted: str
) -> None:
    assert do(default(), sign, **about) == wanted


def test_a_pause_by_storage_has_its_grace_time_by_default() -> None:
    verdict, _ = default().judge(Symptom("io_error", "pause"), {}, {}, 0.0)
    assert verdict.after_s == 30.0


def test_the_first_rule_that_fits_counts_and_the_defaults_follow() -> None:
    filters = parse(
        """\
rules:
  - {event: stopped, detail: failed, project: "batch-*", do: report}
  - {event: io_error, disk: ["scratch*", vdb], do: ignore}
""",
        "f.yaml",
    )
    assert do(filters, DIED, project="1234", project_name="batch-7") == "report"
    assert do(filters, DIED, project="batch", project_name="web") == "recover"
    assert do(filters, Symptom("io_error", "pause", disk="vdb")) == "ignore"
    assert do(filters, Symptom("io_error", "pause", disk="vdc", path="scratch/7")) == "ignore"
    assert do(filters, Symptom("io_error", "pause", disk="vda")) == "recover"


def test_otherwise_takes_the_place_of_the_defaults() -> None:
    filters = parse("rules: [{event: panic, do: recover}]\notherwise: report", "f.yaml")
    assert do(filters, DIED) == "report"


def test_a_rate_is_counted_and_forgotten() -> None:
    filters = parse(
        "rules: [{event: stopped, detail: failed, rate: 3 in 10m, do: report}]", "f.yaml"
    )
    tally: Tally = {}
    said = []
    for now in (0.0, 100.0, 200.0, 250.0, 2000.0):
        verdict, tally = filters.judge(DIED, {}, tally, now)
        said.append(verdict.do)
    assert said == ["recover", "recover", "report", "report", "recover"]
    assert all(len(times) <= 3 for times in tally.values())


def test_an_event_evaluated_again_is_not_counted_twice() -> None:
    filters = parse("rules: [{event: panic, rate: 2 in 1m, do: ignore}]", "f.yaml")
    sign = Symptom("panic", "panicked")
    _, tally = filters.judge(sign, {}, {}, 0.0)
    assert filters.judge(sign, {}, tally, 1.0, again=True)[0].do == "recover"
    assert filters.judge(sign, {}, tally, 1.0)[0].do == "ignore"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["it is empty: write rules, or do without a file to get the default"]),
        ("- a", ["line 1: a filter begins with `rules:`"]),
        ("rule: []", ["line 1: `rules` is missing", "line 1: key 'rule' is unknown"]),
        ("rules:\n - {event: died, do: recover}", ["line 2: 'died' is no event: write stopped, "]),
        ("rules:\n - {event: panic}", ["line 2: `do` is missing: add `do: …`"]),
        ("rules:\n - {do: restart}", ["line 2: 'restart' is no action: write recover, report or"]),
        (
            "rules:\n - {event: watchdog, detail: paused, do: report}",
            ["line 2: 'paused' is no detail of watchdog: there are pause, "],
        ),
        (
            "rules:\n - {event: [panic, reboot], detail: panicked, do: report}",
            ["line 2: none of the details is one of reboot: give it a rule of its own"],
        ),
        ("rules:\n - {detail: failed, do: report}", ["line 2: a detail is of an event"]),
        (
            "rules:\n - {event: reboot, after: 3s, do: report}",
            ["line 2: reboot is over at once: leave `after` out"],
        ),
        (
            "rules:\n - {event: watchdog, after: 30s, do: recover}",
            [
                "line 2: watchdog reset, shutdown, none, dump or inject-nmi are over at once: of"
                " watchdog only pause and poweroff last; say so with `detail`"
            ],
        ),
        (
            "rules:\n - {event: [hang, io_error], after: 9s, do: report}",
            ["line 2: io_error report or none are over at once: of io_error only pause lasts; say"],
        ),
        (
            "rules:\n - {event: agent, detail: [connected, disconnected], after: 3s, do: report}",
            ["line 2: agent connected is over at once: of agent only disconnected lasts; say so"],
        ),
        ("rules:\n - {event: panic, after: 3s, do: ignore}", ["line 2: the rule takes no action"]),
        ("rules:\n - {event: panic, after: soon, do: recover}", ["line 2: 'soon' is no length of"]),
        ("rules:\n - {event: reboot, rate: often, do: report}", ["line 2: 'often' is no rate: "]),
        ("rules:\n - {event: reboot, rate: 1 in 5m, do: report}", ["line 2: 1 times: write a"]),
        ("rules:\n - {ha: maybe, do: ignore}", ["line 2: `ha` is 'maybe': write yes or no"]),
        (
            "rules:\n - {event: panic, do: report}\n - {event: panic, ha: yes, do: recover}",
            ["line 3: it never has its turn: line 2 fits all that it fits; move it up or take it"],
        ),
        ("rules: [{event: panic, do: report}]\notherwise: sleep", ["line 2: 'sleep' is no end"]),
    ],
)
def test_each_problem_is_named_with_line_and_correction(text: str, said: list[str]) -> None:
    found = problems(text)
    assert len(found) == len(said)
    for one, wanted in zip(found, said, strict=True):
        assert one.startswith(wanted)


def test_all_problems_are_named_at_once() -> None:
    found = problems("rules:\n - {event: died, do: recover}\n - {event: panic, do: cry}\nx: y")
    assert [one.split(":")[0] for one in found] == ["line 2", "line 3", "line 4"]


def test_lasting_conditions_and_module_events_may_have_a_grace_time() -> None:
    text = textwrap.dedent((guest_filters.__doc__ or "").split("\n\n")[1])
    after = [rule.after_s for rule in parse(text, "f.yaml").rules if rule.source == "f.yaml"]
    assert after == [0.0, 0.0, 90.0, 90.0]
    parse("rules: [{event: watchdog, detail: [pause, poweroff], after: 9s, do: report}]", "f")


def test_a_rule_with_a_rate_hides_no_later_one() -> None:
    parse(
        "rules:\n - {event: panic, rate: 3 in 1h, do: ignore}\n - {event: panic, do: report}", "f"
    )


def test_the_default_rules_equal_the_written_default_file() -> None:
    assert parse(DEFAULT_TEXT, "defaults") == default()


@settings(deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_filter_file_is_read_or_refused_with_problems(data: bytes | str) -> None:
    try:
        parse(data, "f.yaml")
    except BadFilter as bad:
        assert bad.problems


RULES = st.builds(
    lambda event, do, ha: f" - {{event: {event}, ha: {ha}, do: {do}}}",
    st.sampled_from(sorted(EVENTS)),
    st.sampled_from(ACTIONS),
    st.sampled_from(["yes", "no"]),
)
SIGNS = st.sampled_from([Symptom(event, one) for event, d in EVENTS.items() for one in d or ("",)])


@settings(deadline=None)
@given(st.lists(RULES, min_size=1, max_size=6), SIGNS, st.sampled_from(["yes", "no"]))
def test_a_file_is_either_refused_or_means_its_first_line_that_fits(
    lines: list[str], sign: Symptom, ha: str
) -> None:
    try:
        filters = parse("rules:\n" + "\n".join(lines) + "\notherwise: ignore", "f.yaml")
    except BadFilter as bad:
        assert all("never has its turn" in str(problem) for problem in bad.problems)
        return
    fits = [line for line in lines if f"event: {sign.event}, ha: {ha}," in line]
    wanted = fits[0].rpartition("do: ")[2].rstrip("}") if fits else "ignore"
    assert do(filters, sign, ha=ha) == wanted


def test_the_manual_names_all_lasting_conditions() -> None:
    text = (Path(__file__).parents[2] / "docs/concepts/guests.md").read_text()
    said = next(one for one in text.split("\n\n") if one.startswith("What goes on, and may"))
    for event, detail in LASTING:
        whole = all((event, one) in LASTING for one in EVENTS[event])
        assert f"`{event}`" in said if whole else f"`{detail}`" in said or f" {detail}`" in said
