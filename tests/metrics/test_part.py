# SPDX-License-Identifier: Apache-2.0
"""The metrics of an agent as a whole: the beat, stages that fail, what plugins say, their file, and
the commands by which they are changed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import conf as configuration
from holdfast.agent.admin import Admin, AdminSocket
from holdfast.alarms.engine import Engine, Outcome
from holdfast.alarms.tracks import CLEARED, RAISED, Change, Group
from holdfast.app.agent import Measuring, measuring
from holdfast.cmd import client
from holdfast.metrics import plugin_code
from holdfast.metrics.passes import MetricsPart, Stages
from holdfast.metrics.plugin_child import callbacks
from holdfast.metrics.plugin_code import BadPlugins, Wanted
from holdfast.metrics.plugin_events import MOST_RAISED, PluginEvents
from holdfast.metrics.plugin_input import SharedDicts
from holdfast.metrics.plugin_manager import PluginManager
from holdfast.metrics.plugin_runner import Limits, PluginRunner
from holdfast.metrics.plugins import LogExceptional, NoisyNeighbour
from holdfast.model.errors import Unavailable
from holdfast.ports.metric_plugins import Context, Note
from holdfast.ports.metrics import Snapshot
from holdfast.runtime.clock import Clock, SystemClock
from tests.metrics.plugged import FOLDER, HERE, SEEN, Host
from tests.metrics.test_collect import World
from tests.processes import eventually
from tests.simclock import SimClock

PAGE = Path(__file__).parents[2] / "docs/reference/metric-plugins.md"


#: Nobody is blamed for a busy machine.
PATIENT = Limits(slow_s=30.0, turn_s=30.0, hang_s=60.0, change_s=60.0)


def soon(true: Callable[[], object]) -> None:
    eventually(true, every=0.01)


class Sink:
    def __init__(self, name: str = "kept", fails: Callable[[int], bool] = lambda _: False) -> None:
        self.name = name
        self.fails = fails
        self.tries = 0
        self.got: list[tuple[int, Sequence[Change]]] = []
        self.closed = False

    def offer(self, snapshot: Snapshot, changes: Sequence[Change]) -> None:
        self.tries += 1
        if self.fails(self.tries):
            raise RuntimeError("of the sink")
        self.got.append((snapshot.pass_id, changes))

    def close(self) -> None:
        self.closed = True


class BrokenAlarms:
    def evaluate(self, snapshot: Snapshot) -> Outcome:
        raise RuntimeError("of the alarms")


class Site:
    def __init__(self, clock: Clock | None = None, **stages: Any) -> None:
        self.host = Host()
        self.news = PluginEvents("cmp-7")
        self.runner = PluginRunner(PATIENT, self.news)
        self.sink = Sink()
        sinks = (*stages.pop("sinks", ()), self.sink)
        made = Stages(self.runner, self.news, sinks=sinks, **stages)
        clock = clock or SystemClock()
        self.part = MetricsPart(self.host, 0.05, clock, made)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plugins write down what they saw."""
    folder = tmp_path / "seen"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))


@pytest.fixture
def build() -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def site(**stages: Any) -> Site:
        made.append(Site(**stages))
        return made[-1]

    yield site
    for one in made:
        one.part.stop()


# passes


def test_passes_keep_a_steady_interval_and_skip_late_passes(build: Callable[..., Site]) -> None:
    clock, times = SimClock(), list[float]()
    site = build(clock=clock)
    take_snapshot = site.host.snapshot

    def timed() -> Snapshot:
        times.append(clock.monotonic())
        if len(times) == 5:
            clock.advance(0.18)  # three passes are missed, and not made up for
        return take_snapshot()

    site.host.snapshot = timed  # type: ignore[method-assign]
    site.part.start()
    soon(lambda: len(times) >= 20)
    site.part.stop()
    assert site.part.skipped == 3
    # they do not come in a bunch, and are still where the first one put them
    assert [round(time / 0.05, 3) for time in times[:20]] == [0, 1, 2, 3, 4, *range(8, 23)]
    assert site.sink.closed


def test_a_failing_stage_is_logged_once_and_does_not_affect_other_stages(
    build: Callable[..., Site], caplog: pytest.LogCaptureFixture
) -> None:
    broken = Sink("broken", lambda n: n <= 5)
    site = build(alarms=BrokenAlarms(), sinks=[broken])
    site.runner.add("good", f"{HERE}:Counting", {"key": "good"})
    with caplog.at_level(logging.INFO):
        for number in range(1, 9):
            site.part.turn()
            soon(lambda number=number: len(SEEN["good"]) == number)  # type: ignore[misc]
    assert [number for number, _ in site.sink.got] == list(range(1, 9))
    assert [number for number, _ in broken.got] == [6, 7, 8]
    messages = [
        record.getMessage() for record in caplog.records if "unforeseen" in record.getMessage()
    ]
    assert [message.partition(":")[0] for message in messages] == ["alarms", "sink broken"]
    assert "sink broken: all is well again" in caplog.text
    assert site.part.failures() == {"alarms": "RuntimeError: of the alarms"}


def test_a_failing_collection_is_logged_once_and_the_next_pass_runs(
    build: Callable[..., Site], caplog: pytest.LogCaptureFixture
) -> None:
    site, tries = build(), list[int]()
    take_snapshot = site.host.snapshot

    def failing() -> Snapshot:
        tries.append(1)
        if len(tries) in (2, 3, 4):
            raise Unavailable("the kernel is away")
        return take_snapshot()

    site.host.snapshot = failing  # type: ignore[method-assign]
    for _ in range(6):
        site.part.turn()
    assert len(site.sink.got) == 3
    assert caplog.text.count("the kernel is away") == 1


def test_rule_alarms_and_plugin_alarms_reach_the_same_receivers(build: Callable[..., Site]) -> None:
    from holdfast.alarms.rules_file import parse

    groups: list[Group] = []
    rules = parse("rules:\n  - {id: hot, on: guest, field: util_ratio, when: '> 0.5'}\n", "test")
    site = build(alarms=Engine(rules), notify=groups.extend)
    site.runner.add("t", f"{HERE}:Notifying", {"names": ["web1"]})
    both = {"hot", "plugin:t"}
    soon(
        lambda: (
            site.part.turn()
            or {change.rule for group in groups for change in group.changes} == both
        )
    )
    changes = [change for _, offered in site.sink.got for change in offered]
    mine = [change for change in changes if change.rule == "plugin:t"]
    (first,) = mine
    assert (first.entity, first.name, first.project, first.event) == ("u1", "web1", "p", RAISED)
    assert (first.value, first.threshold, first.summary) == (0.9, 0.5, "web1 is hot")


# what plugins say


def note(plugin: str, about: str, at: Snapshot) -> Note:
    return Note(plugin, "cmp-7", about, f"{about} is so", at.at, "warning", 1.0, 0.5)


def test_a_repeated_plugin_note_is_a_single_alarm_cleared_a_minute_after_the_last_note() -> None:
    host, events = Host(), PluginEvents("cmp-7")
    changes: list[Change] = []
    for number in range(200):
        now = next(host)
        if number < 100:
            events.note(note("p", "u0", now))
        changes += events.consume(now)
    raised, cleared = changes
    assert (raised.event, cleared.event) == (RAISED, CLEARED)
    assert raised.key == cleared.key
    assert (cleared.at - raised.at).total_seconds() == 160


def test_a_switched_off_plugin_is_an_alarm_until_switched_on() -> None:
    host, events = Host(), PluginEvents("cmp-7")
    events.off("p", "5 strikes")
    (raised,) = events.consume(next(host))
    assert (raised.rule, raised.kind, raised.entity) == ("plugin:p/off", "host", "cmp-7")
    assert raised.summary == "plugin p is switched off: 5 strikes"
    host.step_s = 1000.0
    assert events.consume(next(host)) == []
    events.on("p")
    (cleared,) = events.consume(next(host))
    assert (cleared.event, cleared.key) == (CLEARED, raised.key)


def test_notes_of_a_noisy_plugin_are_accepted_up_to_a_limit() -> None:
    host, events = Host(500), PluginEvents("cmp-7")
    changes: list[Change] = []
    for _ in range(20):
        now = next(host)
        for guest in host.guests:
            events.note(note("p", guest.id, now))
        events.note(note("q", "u0", now))
        changes += events.consume(now)
    assert len([change for change in changes if change.rule == "plugin:p"]) == MOST_RAISED
    assert len([change for change in changes if change.rule == "plugin:p/storm"]) == 1
    assert len([change for change in changes if change.rule == "plugin:q"]) == 1
    assert len(changes) == MOST_RAISED + 2
    assert events.ignored["p"] == (500 - MOST_RAISED) * 20


def test_a_note_about_an_unknown_guest_is_an_alarm_of_the_host() -> None:
    host, events = Host(), PluginEvents("cmp-7")
    now = next(host)
    events.note(note("p", "elsewhere", now))
    (raised,) = events.consume(now)
    assert (raised.kind, raised.entity, raised.rule) == ("host", "cmp-7", "plugin:p/elsewhere")


# the file


def test_the_plugins_file_lists_plugins_and_their_configuration() -> None:
    text = """
plugins:
  - {name: noisy, use: noisy_neighbour, config: {steal_ratio: 0.2, for_s: 30, who: ~, a: [1, x]}}
  - name: mine
    use: /etc/holdfast/mine.py
"""
    config = {"steal_ratio": 0.2, "for_s": 30, "who": None, "a": [1, "x"]}
    assert plugin_code.parse(text, "f") == (
        Wanted("noisy", "noisy_neighbour", config),
        Wanted("mine", "/etc/holdfast/mine.py"),
    )
    assert plugin_code.parse("", "f") == ()
    assert plugin_code.parse("plugins: []", "f") == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("plugins:\n  - {name: a}\n", "line 2: `use` is missing"),
        ("plugins:\n  - {name: A b, use: x}\n", "line 2: 'A b' is no name"),
        ("plugins:\n  - {name: a, use: x}\n  - {name: a, use: y}\n", "line 3: a is there twice"),
        ("plugins:\n  - {name: a, use: x, config: 3}\n", "line 2: `config` is '3'"),
        ("plugin: []\n", "line 1: key 'plugin' is unknown"),
        ("plugins: {a: b}\n", "line 1: `plugins` is a map"),
        ("plugins: [", "this is not YAML"),
    ],
)
def test_an_invalid_plugins_file_is_refused_with_the_line_of_each_error(
    text: str, why: str
) -> None:
    with pytest.raises(BadPlugins) as caught:
        plugin_code.parse(text, "f")
    assert why in caught.value.message


def test_the_plugins_file_is_followed_and_only_changed_entries_are_applied(
    build: Callable[..., Site], tmp_path: Path
) -> None:
    site, file = build(), tmp_path / "plugins.yaml"
    rule_manager = PluginManager(site.runner, str(file), SystemClock())
    rule_manager.follow()
    assert "is not there yet" in rule_manager.list_all({})["problem"]

    def write(*lines: str) -> dict[str, Any]:
        file.write_text("\n".join(("plugins:", *(f"  - {{{line}}}" for line in lines))))
        rule_manager.follow()
        return {row["name"]: row for row in rule_manager.list_all({})["plugins"]}

    a, b = f"name: a, use: '{HERE}:Counting'", f"name: b, use: '{HERE}:Everything'"
    rows = write(f"{a}, config: {{key: a}}", b)
    assert {name: row["state"] for name, row in rows.items()} == {"a": "on", "b": "on"}
    site.part.turn()
    soon(lambda: SEEN["a"] == [1])
    rule_manager.add({"name": "asked", "use": f"{HERE}:Counting", "config": {"key": "c"}})
    rows = write(f"{a}, config: {{key: other}}", "name: bad, use: nowhere")
    assert {name: row["source"] for name, row in rows.items()} == {
        "a": "file",
        "asked": "asked",
        "bad": "file",
    }
    assert rows["a"]["passes"] == 1  # the same one, configured anew
    assert (rows["a"]["config"], rows["a"]["config_version"]) == ({"key": "other"}, 2)
    assert "there is no plugin 'nowhere'" in rows["bad"]["why"]
    file.write_text("plugins: [")
    rule_manager.follow()
    said = rule_manager.list_all({})
    assert "not YAML" in said["problem"]
    assert [row["name"] for row in said["plugins"]] == ["a", "asked", "bad"]
    rows = write()
    assert list(rows) == ["asked"]


# commands, by the real socket and the real program


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[Measuring, str]]:
    conf = configuration.load([], [])
    conf.set_override("interval_s", 0.1, "metrics")
    admin, clock = Admin(), SystemClock()
    made = Measuring("cmp-7", World(), conf.metrics, admin, clock)
    made.runner._limits = PATIENT
    place = str(tmp_path / "agent.sock")
    door = AdminSocket(place, admin, clock)
    door.start()
    made.start()
    yield made, place
    door.stop()
    made.stop()


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = client.main(["metric", "plugin", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_plugins_are_changed_by_commands_while_the_agent_runs(
    agent: tuple[Measuring, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, place = agent
    file = tmp_path / "mine.py"
    code = (
        "from tests.metrics.plugged import saw\n"
        "class Mine:\n"
        "    def configure(self, config): self.key = config.get('key', 'mine')\n"
        "    def on_host(self, d): saw(self.key, {n})\n"
    )
    file.write_text(code.format(n=1))
    there = ("--socket", place)

    def shown(*args: str) -> Any:
        status, out, err = run(capsys, *args, *there, "-f", "json")
        assert status == 0, err
        return json.loads(out)

    assert shown("list") == []
    assert shown("add", "mine", str(file), "--set", "key=first")["state"] == "on"
    soon(lambda: len(SEEN["first"]) > 1)
    assert shown("configure", "mine", "--set", "n=2")["config"] == {"key": "first", "n": 2}
    assert shown("configure", "mine", "--set", "key=second", "--replace")["config_version"] == 3
    soon(lambda: SEEN["second"])
    file.write_text(code.format(n=22))
    assert shown("reload", "mine")["reloads"] == 1
    soon(lambda: SEEN["second"][-1] == 22)
    shown("reload", "mine", "--roll-back")
    soon(lambda: SEEN["second"][-1] == 1)
    (row,) = shown("list")
    assert (row["name"], row["source"], row["callbacks"]) == ("mine", "asked", ["on_host"])
    status, _, err = run(capsys, "enable", "mine", *there)
    assert (status, "is on already" in err) == (1, True)
    status, _, err = run(capsys, "add", "mine", "noisy_neighbour", *there)
    assert (status, "there is a plugin mine" in err) == (1, True)
    status, _, err = run(capsys, "configure", "mine", *there)
    assert (status, "name a change" in err) == (1, True)
    assert run(capsys, "remove", "mine", *there)[0] == 0
    status, _, err = run(capsys, "remove", "mine", *there)
    assert (status, "there is no plugin mine" in err) == (1, True)
    assert shown("add", "n", "noisy_neighbour", "--set", "steal_ratio=0.2")["state"] == "on"
    status, _, err = run(capsys, "configure", "n", "--set", "steel=1", *there)
    assert (status, "steel is unknown: there are steal_ratio" in err) == (1, True)


def test_a_host_is_measured_unless_disabled_or_unsupported() -> None:
    conf = configuration.load([], [])
    conf.set_override("guests", "sim", "agent")
    assert measuring(conf, "cmp-7", Admin(), SystemClock()) == ()
    conf.set_override("guests", "libvirt", "agent")
    conf.set_override("enabled", False, "metrics")
    assert measuring(conf, "cmp-7", Admin(), SystemClock()) == ()


# those that are shipped


def drive(plugin: Any, host: Host, passes: int) -> list[Note]:
    notes: list[Note] = []
    for _ in range(passes):
        now = next(host)
        shared = SharedDicts(now)
        ctx = Context(
            *("n", "cmp-7", now.pass_id, now.at, now.monotonic, 1.0, 1, False),
            notes.append,
        )
        for callback in callbacks(plugin):
            for d in shared.of(callback.name):
                callback.call(d, ctx) if callback.wants_ctx else callback.call(d)
    return notes


def test_noisy_neighbour_names_the_guest_that_takes_the_cpu_time() -> None:
    host, plugin = Host(4), NoisyNeighbour()
    plugin.configure({"for_s": 10, "steal_ratio": 0.2})
    assert drive(plugin, host, 30) == []  # busy, and nobody waits
    host.cpu |= {"util_ratio": 0.1, "steal_ratio": 0.5}
    host.of["u2"] = {"util_ratio": 1.0}
    notes = drive(plugin, host, 30)
    assert {note.about for note in notes} == {"", "u2"}
    assert "web2 takes 77% of the CPU time" in notes[1].sentence
    assert "4 guests wait for a CPU 50% of the time" in notes[0].sentence
    assert 36 <= len(notes) <= 40  # for ten seconds it was not told
    host.cpu["steal_ratio"] = 0.0
    drive(plugin, host, 1)
    assert drive(plugin, host, 30) == []


def test_log_exceptional_logs_the_beginning_and_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host, plugin = Host(2), LogExceptional()
    plugin.configure({"cpu_ratio": 0.8, "for_s": 5})
    host.cpu["util_ratio"] = 0.1
    host.of["u1"] = {"util_ratio": 0.99}
    own = LogExceptional.__module__

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == own]

    with caplog.at_level(logging.INFO, own):
        drive(plugin, host, 4)
        assert said() == []
        drive(plugin, host, 20)
        host.of = {}
        drive(plugin, host, 20)
    assert said() == [
        "web1 (u1): util_ratio is 0.99, above 0.8",
        "web1 (u1): util_ratio is 0.1 again, after 23 s",
    ]


@pytest.mark.parametrize("kind", [LogExceptional, NoisyNeighbour])
def test_shipped_plugins_report_configuration_errors(kind: Any) -> None:
    for config in ({"strange": 1}, {"for_s": "5m"}, {"for_s": -1}, {"for_s": True}):
        with pytest.raises(ValueError, match=r"is unknown|write a number"):
            kind().configure(config)


def test_the_documented_example_plugin_works(build: Callable[..., Site], tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## A complete plugin")[2]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    file = tmp_path / "crowded.py"
    file.write_text(code)
    site = build()
    site.runner.add("crowded", str(file), {"ratio": 0.5})
    soon(lambda: site.part.turn() or any(offered for _, offered in site.sink.got))
    assert site.runner.row("crowded")["strikes"] == []
