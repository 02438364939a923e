# SPDX-License-Identifier: Apache-2.0
"""`holdfast metric top`: rows of a snapshot, lines that fit, the command on a real terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agent.admin import Admin, AdminSocket
from holdfast.alarms.tracks import Change
from holdfast.cli.metric import COLUMNS, binary, layout, screen, short
from holdfast.metrics.admin import NUMBERS, WORDS, MetricsCommands, table
from holdfast.model.errors import InvalidInput, Unavailable
from holdfast.ports.metrics import Reading, Snapshot
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.text import fit, printable, width
from tests.metrics.sinks_world import NODE_ENTITY, UUIDS, change, disk, guest, nic, snapshot
from tests.processes import PATIENCE_S, eventually, script
from tests.simclock import SimClock

#: However busy the machine is.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

HOST = {"cpu_util_ratio": 0.5, "load1": 1.25, "mem_total_bytes": 2**34, "mem_free_bytes": 2**33}
HOSTILE = st.text(
    alphabet="ab \x1b[2J\n\r\t\x07\u202e\u200b\u0301\u05d0漢\U0001f600é\ud800", max_size=60
)


def three(second: float = 0.0) -> Snapshot:
    """A busy one, an idle one, one that is suspended."""
    full = {"util_ratio": 0.97, "steal_ratio": 0.02, "rss_kib": 2**21}
    own = {"util_ratio": 0.01, "used_ratio": 0.25, "available_kib": 2**20, "rss_kib": 2**21}
    pipe = nic(0, "tap0", {"tx_bps": 5e9})
    return snapshot(
        [
            (NODE_ENTITY, HOST),
            (guest(0), full),
            (guest(1), own),
            Reading(guest(2), {"util_ratio": 0.5}, stale="suspended: paused"),
            (disk(0, "vda"), {"rd_bytes_per_s": 1_000.0, "rd_iops": 10.0, "wr_iops": 1.0}),
            (disk(0, "vdb"), {"rd_bytes_per_s": 500.0, "rd_iops": 5.0}),
            (pipe, {"rx_bps": 1e6, "tx_bps": 2e10}),
            (nic(1, "tap1"), {"rx_bps": 2e6, "tx_bps": 0.0}),
        ],
        second,
    )


def rows(sort: str = "cpu", alarms: tuple[Change, ...] = ()) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(three(), alarms, sort)["guests"]
    return found


# rows


def test_disks_and_interfaces_of_a_guest_are_added_up() -> None:
    busy = rows()[0]
    assert (busy["name"], busy["project"], busy["cpu"]) == ("web0", "shop", 0.97)
    assert (busy["rd_bytes"], busy["rd_iops"], busy["wr_iops"]) == (1_500.0, 15.0, 1.0)
    assert busy["wr_bytes"] is None
    assert busy["contract"] == 4.0


def test_used_memory_comes_from_the_balloon_driver_if_the_guest_has_one() -> None:
    busy, idle, _ = rows()
    assert (busy["mem"], busy["mem_ratio"]) == (2**31, None)
    assert (idle["mem"], idle["mem_ratio"]) == (2**28, 0.25)


def test_a_suspended_guest_has_no_values_and_shows_the_reason() -> None:
    paused = rows()[2]
    assert paused["stale"] == "suspended: paused"
    assert {paused[name] for name in NUMBERS if name != "alarms"} == {None}


def test_alarms_are_counted_per_guest() -> None:
    alarms = (change("firing"), change("no_data", rule="b"), change("pending", rule="c"))
    said = table(three(), alarms)
    assert [one["alarms"] for one in said["guests"]] == [2, 0, 0]
    assert said["alarms"] == 2


@pytest.mark.parametrize("sort", [*NUMBERS, *WORDS])
def test_guests_with_unknown_values_sort_last_by_any_column(sort: str) -> None:
    values = [row[sort] for row in rows(sort)]
    known = [value for value in values if value is not None]
    assert values[: len(known)] == known
    assert known == sorted(known, reverse=sort in NUMBERS)


def test_an_unknown_sort_column_is_refused() -> None:
    with pytest.raises(InvalidInput, match="there are cpu, steal"):
        rows("beauty")


def test_limit_cuts_rows_but_not_the_count() -> None:
    said = table(three(), (), "name", 1)
    assert ([one["name"] for one in said["guests"]], said["total"]) == (["web0"], 3)


# lines


@CALM
@given(HOSTILE)
def test_no_name_can_do_anything_to_a_terminal(name: str) -> None:
    shown = printable(name)
    assert all(sign.isprintable() for sign in shown)
    assert not set(shown) & set("\u202e\u200b\u0301\u05d0\ud800")
    shown.encode()  # it can be


@CALM
@given(HOSTILE, st.integers(0, 30))
def test_truncated_text_fits_its_column_exactly(name: str, columns: int) -> None:
    assert width(fit(printable(name), columns)) == columns


@CALM
@given(st.lists(HOSTILE, max_size=6), st.integers(1, 200), st.integers(1, 20))
def test_a_screen_never_exceeds_the_terminal(names: list[str], columns: int, lines: int) -> None:
    found = snapshot(
        [(guest(place, name), {"util_ratio": 0.5}) for place, name in enumerate(names)]
    )
    drawn = screen(table(found, ()), columns, lines)
    assert len(drawn) <= lines
    assert all(width(line) <= columns for line in drawn)


def test_where_there_is_little_room_columns_are_left_out_from_the_end() -> None:
    guests = table(three(), ())["guests"]
    assert layout(guests, 200)[1:] == (16, list(COLUMNS))
    _, project, shown = layout(guests, 60)
    assert project == 0
    assert shown == list(COLUMNS[: len(shown)])
    assert [one.key for one in layout(guests, 10)[2]] == ["cpu"]


def test_lines_show_the_values_of_the_rows() -> None:
    drawn = screen(table(three(), (change("firing"),)), 160)
    assert drawn[0] == "cmp-7: 3 guests, CPU 50.0 %, load 1.25, 8.0Gi of 16.0Gi free, 1 alarm, " \
        "at 12:00:00"  # fmt: skip
    busy = drawn[3].split()
    assert busy == ["web0", "shop", "97.0", "2.0", "2.0Gi", "1", "1.0M", "20.0G", "4.00", "1.5k",
                    "-", "15", "1"]  # fmt: skip
    assert drawn[5].endswith("-  suspended: paused")


def test_guests_that_do_not_fit_the_screen_are_counted() -> None:
    many = snapshot([(guest(place), {"util_ratio": 0.5}) for place in range(50)])
    drawn = screen(table(many, (), limit=40), 80, 13)
    assert len(drawn) == 13
    assert drawn[-1] == "and 41 more"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.5, "0.5"), (999.4, "999"), (999.6, "1.0k"), (2e10, "20.0G"), (1e18, "1000P")],
)
def test_large_numbers_are_short(value: float, shown: str) -> None:
    assert short(value) == shown


def test_sizes_are_in_binary_units() -> None:
    assert [binary(one) for one in (0, 1023, 2**20, 150 * 2**30)] == ["0", "1023", "1.0Mi", "150Gi"]


# asked of an agent


def test_before_the_first_pass_the_command_reports_the_missing_pass() -> None:
    with pytest.raises(Unavailable, match="no pass was made yet"):
        MetricsCommands(lambda: None, SimClock()).snapshot({})


@pytest.mark.parametrize("limit", [-1, "3", True, 1.5])
def test_a_limit_that_is_no_number_is_refused(limit: object) -> None:
    with pytest.raises(InvalidInput, match="`limit` is a number"):
        MetricsCommands(three, SimClock()).snapshot({"limit": limit})


def test_each_pass_is_streamed_once() -> None:
    shots = iter([None, three(0), three(0), three(1)])
    stream = MetricsCommands(lambda: next(shots), SimClock()).top({})
    found = [next(stream) for _ in range(4)]
    stream.close()
    assert [one and one["pass_id"] for one in found] == [None, 1, None, 1_001]


class Agent:
    """Its socket, and passes by hand."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "agent.sock")
        self.last: Snapshot | None = three()
        admin = Admin()
        clock = SystemClock()
        commands = MetricsCommands(lambda: self.last, clock, lambda: [change("firing")])
        admin.add(commands.commands())
        self._socket = AdminSocket(self.path, admin, clock)
        self._socket.start()
        self._runs = True

    def stop(self) -> None:
        if self._runs:
            self._socket.stop()
        self._runs = False


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.stop()


def command(agent: Agent, *words: str) -> list[str]:
    return [str(script("holdfast")), "metric", "top", "--socket", agent.path, *words]


def run(agent: Agent, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(agent, *words), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_once_is_a_table_without_escapes(agent: Agent) -> None:
    ran = run(agent, "--once", "--sort", "rx_bps")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["web1", "web0", "web2"]
    assert "\x1b" not in ran.stdout


def test_json_has_everything(agent: Agent) -> None:
    ran = run(agent, "-f", "json", "--limit", "1")
    said = json.loads(ran.stdout)
    assert (said["total"], said["guests"][0]["uuid"]) == (3, UUIDS[0])
    assert said["guests"][0]["alarms"] == 1


def test_without_an_agent_the_command_names_the_next_action(agent: Agent) -> None:
    agent.stop()
    ran = run(agent, "--once")
    assert ran.returncode != 0
    assert "start holdfast-agent" in ran.stderr


#: Tests that are begun in the background of a shell ignore SIGINT, and so would what they begin.
OBEDIENT = ("env", "--default-signal=INT")


class Terminal:
    """A real one, and what is written on it."""

    def __init__(self, columns: int, lines: int) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.text = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            if select.select([self.master], [], [], 0.05)[0]:
                self.text += os.read(self.master, 65_536).decode(errors="replace")

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self.master)
        os.close(self.slave)


@contextlib.contextmanager
def on_terminal(
    agent: Agent, columns: int = 90, lines: int = 12
) -> Iterator[tuple[subprocess.Popen[bytes], Terminal]]:
    terminal = Terminal(columns, lines)
    try:
        with subprocess.Popen(
            [*OBEDIENT, *command(agent)],
            stdin=terminal.slave,
            stdout=terminal.slave,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                yield process, terminal
            finally:
                process.kill()
    finally:
        terminal.close()


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_on_a_terminal_the_table_is_redrawn_in_each_pass_until_interrupted(
    agent: Agent, ended_by: signal.Signals
) -> None:
    with on_terminal(agent) as (process, terminal):
        eventually(lambda: "web0" in terminal.text)
        agent.last = three(7)
        eventually(lambda: "at 12:00:07" in terminal.text)
        process.send_signal(ended_by)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == (0 if ended_by == signal.SIGINT else 128 + signal.SIGTERM)
        eventually(lambda: terminal.text.endswith("\x1b[?25h\x1b[?1049l"))
        assert errors == b""
    assert terminal.text.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
    assert "\x1b[2J" not in terminal.text  # an empty screen between two would flicker
    drawn = terminal.text.split("\x1b[H")[1:]
    for one in drawn:
        lines = re.sub(r"\x1b\[[?0-9]*[a-zA-Z]", "", one).split("\r\n")
        assert len(lines) <= 12
        assert all(width(line) <= 90 for line in lines)


def test_the_end_of_the_agent_restores_the_terminal_and_is_an_error(agent: Agent) -> None:
    with on_terminal(agent) as (process, terminal):
        eventually(lambda: "web0" in terminal.text)
        agent.last = three(7)
        eventually(lambda: "at 12:00:07" in terminal.text)
        agent.stop()
        _, errors = process.communicate(timeout=PATIENCE_S)
        eventually(lambda: terminal.text.endswith("\x1b[?25h\x1b[?1049l"))
        assert process.returncode != 0
        assert b"agent" in errors
