# SPDX-License-Identifier: Apache-2.0
"""`holdfast metric plugin | record | top`: the metrics of this host and their plugins.

The commands ask the running agent through its socket, and no server.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import IO, Any, ClassVar, Final, NamedTuple

from holdfast import cli
from holdfast.cli import Arguments, ListCommand, ShowCommand, Table, arg, one, pair, rows, typed
from holdfast.cli.guest import AgentCommand
from holdfast.client import admin, dates
from holdfast.metrics.admin import NUMBERS, WORDS
from holdfast.metrics.plugin_code import value
from holdfast.model.errors import InvalidInput
from holdfast.runtime.text import fit, printable, width

#: The timeout of a change: the agent imports the plugin, and runs a pass to try new code.
CHANGE_S = 30.0
_SHORT = ("name", "use", "state", "why", "passes", "dropped", "strikes", "mean_ms", "slowest_ms")
_LONG = (
    *("name", "use", "source", "state", "why", "callbacks", "config", "config_version", "passes"),
    *("dropped", "strikes", "mean_ms", "cpu_ms", "slowest_ms", "grew_kib", "notes", "reloads"),
    "can_roll_back",
)


class List(AgentCommand, ListCommand):
    """List the metric plugins of this host: state, cost, and why a plugin is off.

    `dropped` counts passes for which a plugin was too slow, `strikes` faults within the last
    minute; with five strikes the agent switches a plugin off. JSON and YAML have everything.
    """

    example = """  holdfast metric plugin list
  holdfast metric plugin list -f json --socket /run/holdfast/agent.sock"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        answer = admin.ask(self.place(parsed_args), "metrics.plugins.list", timeout_s=10.0)
        if answer["problem"]:
            self.app.LOG.warning(answer["problem"])
        full = parsed_args.formatter in ("json", "yaml")
        return rows(_LONG if full else _SHORT, answer["plugins"])


SET = arg(
    "--set",
    metavar="NAME=VALUE",
    type=pair,
    action="append",
    default=[],
    help="an option of the plugin; numbers, true, false and ~ are read as in YAML",
)


class _Change(AgentCommand, ShowCommand):
    """A command that changes a plugin and shows the result."""

    command = ""
    arguments: ClassVar[Arguments] = (
        *AgentCommand.arguments,
        arg("name", help="name of the plugin on this host"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = {"name": parsed_args.name, **self.more(parsed_args)}
        place = self.place(parsed_args)
        answer = admin.ask(place, f"metrics.plugins.{self.command}", args, timeout_s=CHANGE_S)
        return one({name: answer["plugin"].get(name, "") for name in _LONG if name != "source"})

    def more(self, asked: argparse.Namespace) -> Mapping[str, Any]:
        return {}


class Add(_Change):
    """Add a metric plugin to the running agent, until the agent ends.

    The plugin is the name of an entry point, module:Class, or a Python file, with :Class if the
    file has several. For a plugin to be there after a restart, add it to the file in [metrics]
    plugins_file.
    """

    command = "add"
    example = """  holdfast metric plugin add noisy noisy_neighbour --set steal_ratio=0.2
  holdfast metric plugin add mine /etc/holdfast/plugins/mine.py
  holdfast metric plugin add gpu acme_gpu:Temperature"""
    arguments = (
        *_Change.arguments,
        arg("use", help="an entry point, module:Class, or FILE.py[:Class]"),
        SET,
    )

    def more(self, asked: argparse.Namespace) -> Mapping[str, Any]:
        path, colon, name = asked.use.partition(".py")
        is_file = colon and os.path.exists(path + colon)
        use = os.path.abspath(path + colon) + name if is_file else asked.use
        return {"use": use, "config": _config(asked.set)}


class Configure(_Change):
    """Configure a metric plugin of the running agent, from the next pass on.

    Values you do not name stay; with --replace they are removed. If the plugin refuses, the
    command shows why, and nothing changes.
    """

    command = "configure"
    example = """  holdfast metric plugin configure noisy --set steal_ratio=0.2 --set for_s=30
  holdfast metric plugin configure noisy --replace"""
    arguments = (
        *_Change.arguments,
        SET,
        arg("--replace", action="store_true", help="leave nothing of the configuration before"),
    )

    def more(self, asked: argparse.Namespace) -> Mapping[str, Any]:
        if not asked.set and not asked.replace:
            raise InvalidInput("name a change: --set NAME=VALUE, or --replace")
        return {"config": _config(asked.set), "merge": not asked.replace}


class Remove(AgentCommand):
    """Remove a metric plugin from the running agent.

    A plugin in the file of [metrics] plugins_file is back after a restart.
    """

    example = "  holdfast metric plugin remove noisy"
    arguments = (*AgentCommand.arguments, arg("name", help="name of the plugin on this host"))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        args = {"name": parsed_args.name}
        place = self.place(parsed_args)
        admin.ask(place, "metrics.plugins.remove", args, timeout_s=CHANGE_S)
        self.say(f"plugin {parsed_args.name} is removed")


class Enable(_Change):
    """Enable a switched-off metric plugin again.

    The agent reads the plugin's code again; the plugin starts fresh, with the same configuration.
    """

    command = "enable"
    example = "  holdfast metric plugin enable noisy"


class Reload(_Change):
    """Reload the code of a metric plugin in the running agent.

    The new code runs a pass beside the old code. If the pass succeeds, the new code replaces
    the old; otherwise the old code continues and the command shows the error. The agent does
    not reload modules that a plugin imports. --roll-back returns to the previous code.
    """

    command = "reload"
    example = """  holdfast metric plugin reload mine
  holdfast metric plugin reload mine --roll-back"""
    arguments = (
        *_Change.arguments,
        arg("--roll-back", action="store_true", help="to the code before the last reload"),
    )

    def more(self, asked: argparse.Namespace) -> Mapping[str, Any]:
        return {"roll_back": asked.roll_back}


def _config(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {name: value(text) for name, text in pairs}


# holdfast metric record: writes the measurements of this host, pass by pass, to a file for
# `holdfast rule test`


class Record(AgentCommand):
    """Record all metrics of this host to a file, until Ctrl-C or for a given time.

    There is a JSON line for each pass, with every value of the host, its guests, their disks
    and interfaces, as alarm rules see them: `holdfast rule test` replays the file through any
    rules, here or elsewhere, as often as you like. A guest takes about 3 kB per second.
    """

    example = """  holdfast metric record monday.jsonl --for 10m
  holdfast rule test alarms.yaml monday.jsonl"""
    arguments = (
        *AgentCommand.arguments,
        arg("file", help="file to write; an existing file is an error"),
        arg("--for", dest="lasts", type=cli.span, metavar="LENGTH", help="10m, 2h"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        name, passes = parsed_args.file, 0
        lines = _lines(self.place(parsed_args), parsed_args.lasts)
        # before the file is created: the agent may be unreachable
        first = list(itertools.islice(lines, 1))
        try:
            with _opened(name) as file, contextlib.suppress(KeyboardInterrupt):
                for line in itertools.chain(first, lines):
                    file.write(line + "\n")
                    passes += 1
        except OSError as error:
            raise InvalidInput(f"cannot write {name}: {error.strerror}") from error
        finally:
            self.say(f"{passes} {'pass' if passes == 1 else 'passes'} recorded")


def _opened(name: str) -> IO[str]:
    """Create the file, line buffered, to keep all recorded lines after a power failure."""
    try:
        return open(name, "x", encoding="utf-8", buffering=1)
    except FileExistsError as error:
        raise InvalidInput(f"{name} is there already: name another file") from error


def _lines(place: str, lasts: timedelta | None) -> Iterator[str]:
    """Yield the line of each pass until the time is over."""
    until = None if lasts is None else dates.monotonic() + lasts.total_seconds()
    for item in admin.stream(place, "metrics.record"):
        if item is not None:
            yield item["line"]
        if until is not None and dates.monotonic() >= until:
            return


# Guests as lines for a terminal: columns that fit, names without control characters. Pure.


Answer = Mapping[str, Any]
#: A name shrinks to this width before the layout drops a column.
LEAST_NAME: Final = 12
MOST_NAME: Final = 40
UNKNOWN: Final = "-"


def percent(value: float) -> str:
    return f"{value * 100:.1f}" if value < 10 else f"{value * 100:.0f}"


def short(value: float) -> str:
    """Format a number: 1536: 1.5k"""
    for sign in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            plain = not sign and (value == int(value) or abs(value) >= 99.5)
            return f"{value:.0f}{sign}" if plain or abs(value) >= 99.5 else f"{value:.1f}{sign}"
        value /= 1000
    return f"{value:.0f}P"


def binary(value: float) -> str:
    """Format a number of bytes: 1073741824: 1.0Gi"""
    for sign in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(value) < 1023.5:
            return f"{value:.0f}{sign}" if not sign or value >= 99.5 else f"{value:.1f}{sign}"
        value /= 1024
    return f"{value:.0f}Pi"


def ratio(value: float) -> str:
    return f"{value:.2f}"


class Column(NamedTuple):
    """A column of the table."""

    head: str
    key: str
    show: Callable[[float], str]
    columns: int


#: In display order. Without room the layout drops the last columns first, but keeps alarms.
COLUMNS: Final = (
    Column("CPU%", "cpu", percent, 6),
    Column("STEAL%", "steal", percent, 6),
    Column("MEM", "mem", binary, 7),
    Column("ALARMS", "alarms", lambda value: f"{value:.0f}", 6),
    Column("RX b/s", "rx_bps", short, 7),
    Column("TX b/s", "tx_bps", short, 7),
    Column("OF", "contract", ratio, 5),
    Column("RD B/s", "rd_bytes", short, 7),
    Column("WR B/s", "wr_bytes", short, 7),
    Column("RD/s", "rd_iops", short, 6),
    Column("WR/s", "wr_iops", short, 6),
)
PROJECT: Final = 16


def screen(snapshot: Answer, columns: int, lines: int | None = None) -> list[str]:
    """Return the screen, at most `lines` lines of at most `columns` columns."""
    guests: Sequence[Answer] = snapshot["guests"]
    name, project, shown = layout(guests, columns)
    head = [*_summary(snapshot), ""]
    heads = [fit("NAME", name)]
    if project:
        heads.append(fit("PROJECT", project))
    heads += [column.head.rjust(column.columns) for column in shown]
    head.append(" ".join(heads))
    room = len(guests) if lines is None else max(0, lines - len(head))
    if room < len(guests):
        room = max(0, room - 1)
    printed = head + [_line(guest, name, project, shown) for guest in guests[:room]]
    left = snapshot["total"] - min(room, len(guests))
    if left > 0:
        printed.append(f"and {left} more")
    return [fit(line, columns).rstrip() for line in printed][:lines]


def layout(guests: Sequence[Answer], columns: int) -> tuple[int, int, list[Column]]:
    """Return the widths of name and project (0: not shown), and the columns with room."""
    longest = max((width(_name(guest)) for guest in guests), default=0)
    name = max(LEAST_NAME, min(MOST_NAME, longest))
    shown = list(COLUMNS)
    project = PROJECT if any(guest["project"] for guest in guests) else 0

    def taken(name: int) -> int:
        beside = 1 + project if project else 0
        return name + beside + sum(column.columns + 1 for column in shown)

    while taken(LEAST_NAME) > columns and (project or len(shown) > 1):
        if project:
            project = 0
        else:
            shown.pop()
    return min(name, max(1, columns - taken(0))), project, shown


def _summary(snapshot: Answer) -> list[str]:
    node: Answer = snapshot["node"]
    parts = [f"{printable(snapshot['host'])}: {snapshot['total']} guests"]
    if node["cpu_util_ratio"] is not None:
        parts.append(f"CPU {percent(node['cpu_util_ratio'])} %")
    if node["load1"] is not None:
        parts.append(f"load {node['load1']:.2f}")
    if node["mem_total_bytes"] is not None and node["mem_free_bytes"] is not None:
        parts.append(f"{binary(node['mem_free_bytes'])} of {binary(node['mem_total_bytes'])} free")
    parts.append(f"{snapshot['alarms']} alarms" if snapshot["alarms"] != 1 else "1 alarm")
    return [", ".join(parts) + f", at {str(snapshot['at'])[11:19]}"]


def _line(row: Answer, name: int, project: int, shown: Sequence[Column]) -> str:
    cells = [fit(_name(row), name)]
    if project:
        cells.append(fit(printable(row["project"]), project))
    for column in shown:
        number = row[column.key]
        text = UNKNOWN if number is None else column.show(number)
        cells.append(text.rjust(column.columns))
    stale = f"  {printable(row['stale'])}" if row["stale"] else ""
    return " ".join(cells) + stale


def _name(row: Answer) -> str:
    return printable(row["name"]) or str(row["uuid"])


# holdfast metric top: the guests of this host and their resource use, live


#: After this time without a pass the screen shows a notice.
LATE_S = 5.0
#: The size if the terminal does not report one.
USUAL = (100, 30)
# Switch to the alternate screen and hide the cursor; and back.
_BEGIN, _END = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
# Move to the top left; clear the rest of the line; clear the rest of the screen.
_HOME, _REST, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@typed
def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1_000_000:
        raise ValueError(f"{text!r} is no number of guests: write 10, or omit --guests for all")
    return int(text)


class Top(AgentCommand):
    """Show the guests of this host and their resource use, every second, until Ctrl-C.

    CPU% is of all processors of the guest; STEAL% is how long they waited for processors of the
    host. MEM is the memory the guest uses if the guest reports it, otherwise what it takes from
    the host. OF is the used share of its contract: 1.00 is all of it. `-` is unknown; a
    suspended guest is marked. On a narrow terminal the command leaves out columns; JSON has
    them all.
    """

    example = """  holdfast metric top
  holdfast metric top --sort tx_bps --limit 10
  holdfast metric top --once
  holdfast metric top -f json"""
    arguments = (
        *AgentCommand.arguments,
        arg("--sort", choices=(*NUMBERS, *WORDS), default="cpu", help="default: cpu"),
        arg("--limit", type=_count, default=0, metavar="N", help="maximum number of guests"),
        arg("--once", action="store_true", help="print the table once; default without a terminal"),
        arg(
            *("-f", "--format"),
            dest="format",
            choices=("table", "json"),
            default="table",
            help="json: once, with everything",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        place, out = self.place(parsed_args), self.app.stdout
        args = {"sort": parsed_args.sort, "limit": parsed_args.limit}
        if parsed_args.format == "json":
            snapshot = admin.ask(place, "metrics.snapshot", args, timeout_s=10.0)
            print(json.dumps(snapshot, indent=2), file=out)
        elif parsed_args.once or not out.isatty():
            snapshot = admin.ask(place, "metrics.snapshot", args, timeout_s=10.0)
            columns = _size(out)[0] if out.isatty() else 1_000
            print("\n".join(screen(snapshot, columns)), file=out)
        else:
            with contextlib.suppress(KeyboardInterrupt), _screen(out):
                self._follow(place, args, out)

    def _follow(self, place: str, args: dict[str, Any], out: IO[str]) -> None:
        snapshot: dict[str, Any] | None = None
        came = dates.monotonic()
        for item in admin.stream(place, "metrics.top", args):
            if item is not None:
                snapshot, came = item, dates.monotonic()
            late_s = dates.monotonic() - came
            if snapshot is None:
                _draw(out, ["waiting for the first pass …"])
            elif item is not None or late_s >= LATE_S:
                columns, lines = _size(out)
                drawn = screen(snapshot, columns, lines)
                if late_s >= LATE_S:
                    drawn[1:2] = [f"no pass for {late_s:.0f} s: the agent's log says why"[:columns]]
                _draw(out, drawn)


def _draw(out: IO[str], lines: list[str]) -> None:
    """Draw the screen in a single write over the old contents, to avoid flicker."""
    out.write(_HOME + f"{_REST}\n".join(lines) + _REST + _BELOW)
    out.flush()


@contextlib.contextmanager
def _screen(out: IO[str]) -> Iterator[None]:
    """Restore the terminal however the command ends."""

    def ended(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, ended)
    out.write(_BEGIN)
    try:
        yield
    finally:
        out.write(_END)
        out.flush()
        signal.signal(signal.SIGTERM, before)


def _size(out: IO[str]) -> tuple[int, int]:
    """Return the current size of the terminal, because the user may resize the window."""
    try:
        columns, lines = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        return USUAL
    return columns or USUAL[0], lines or USUAL[1]
