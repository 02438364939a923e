# SPDX-License-Identifier: Apache-2.0
"""Sends nova-compute's data to the metric plugins, which run in a child process.

    feed = Feed([sys.executable, "-m", "holdfast.cmd.nova_plugins", "--file", path])
    feed.send({"host": "cmp-7", …})       # never waits

nova-compute may run on eventlet, where a plugin that hangs would stop the whole service; on threads
plugins would share its memory. Therefore nova-compute only holds pipes to the child process. The
child answers each message with one byte. The feed replaces a child that has ended or does not
answer, at most once a minute; it drops and counts messages that the child did not take. The child
ends with nova-compute, when its input ends.

The module also reads the host's CPU counters, from the Nova driver or from Linux (`HostCpu`), and
installs the compute monitor into Nova: `python -m holdfast.nova.feed --install` (or `--remove`).
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

LOG = logging.getLogger(__name__)

#: Least seconds between two starts of the child process.
PAUSE_S = 60.0
#: The child hangs if a message has waited this long; the first one waits until plugins are loaded.
HUNG_S = 50.0


class Feed:
    """The child process and the pipe to it; one thread at a time.

    The first message starts the child.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        pause_s: float = PAUSE_S,
        hung_s: float = HUNG_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = list(command)
        self._pause_s = pause_s
        self._hung_s = hung_s
        self._monotonic = monotonic
        self._process: _Process | None = None
        self._started: float | None = None
        self._left = b""  # unwritten rest of a message
        self._unanswered: list[float] = []  # time of each message without an answer
        self.dropped = 0

    @property
    def pid(self) -> int | None:
        """Return the child's pid, or None while there is no child."""
        return self._process.pid if self._process is not None else None

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message without waiting; return whether the feed accepted it."""
        if not self._is_there():
            self.dropped += 1
            return False
        if self._left and not self._write():
            self.dropped += 1
            return False
        self._left = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._unanswered.append(self._monotonic())
        self._write()
        return True

    def close(self) -> None:
        """Kill the child and wait up to 5 s for its end."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                LOG.warning("the process of the metric plugins, %d, takes long to end", process.pid)
            finally:
                process.close()

    def _is_there(self) -> bool:
        process, now = self._process, self._monotonic()
        if process is not None:
            self._read_answers(process)
            code = process.poll()
            if code is None:
                return not self._is_hung(process, now)
            LOG.error("the process of the metric plugins ended with %d, its lines are above", code)
            process.close()
            self._process = None
        if self._started is not None and now - self._started < self._pause_s:
            return False
        self._started = now
        return self._start()

    def _start(self) -> bool:
        self._left, self._unanswered = b"", []
        try:
            self._process = _Process(self._command)
        except OSError as error:
            LOG.error("the metric plugins cannot run: %s: %s", self._command[0], error.strerror)
            return False
        LOG.info("the metric plugins run in process %d", self._process.pid)
        return True

    def _is_hung(self, process: _Process, now: float) -> bool:
        if not self._unanswered or now - self._unanswered[0] < self._hung_s:
            return False
        LOG.error(
            "the process of the metric plugins, %d, does not answer: it is ended", process.pid
        )
        process.kill()  # the next message reaps it: nova-compute does not wait
        self._unanswered = []
        return True

    def _read_answers(self, process: _Process) -> None:
        answers = process.output.read(65536)  # None: no answer yet
        if answers:
            del self._unanswered[: len(answers)]

    def _write(self) -> bool:
        """Write the rest of the message; return whether all of it is written."""
        assert self._process is not None
        try:
            while self._left:
                written = self._process.input.write(self._left)
                if not written:
                    return False
                self._left = self._left[written:]
        except BrokenPipeError:
            return False  # the child has ended: the next message notices that
        return True


class _Process:
    """The child process, with non-blocking pipes.

    eventlet patches os.write and the pipes of subprocess to wait; it does not patch io.FileIO.
    """

    def __init__(self, command: Sequence[str]) -> None:
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self.input = io.FileIO(ours_in, "w")
        self.output = io.FileIO(ours_out, "r")
        try:
            os.set_blocking(ours_in, False)
            os.set_blocking(ours_out, False)
            self._popen = subprocess.Popen(command, stdin=theirs_in, stdout=theirs_out)
        except OSError:
            self.close()
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self.pid = self._popen.pid
        self.poll = self._popen.poll
        self.kill = self._popen.kill
        self.wait = self._popen.wait

    def close(self) -> None:
        """Close the pipes; the child then ends too."""
        self.input.close()
        self.output.close()


#: Keys of a driver's get_host_cpu_stats(): times in nanoseconds since the host started.
TIMES = ("user", "kernel", "idle", "iowait")
KERNEL = "/proc"
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_MHZ = re.compile(r"^cpu MHz\s*:\s*([\d.]+)", re.MULTILINE)

Stats = Mapping[str, int]


class HostCpu:
    """CPU counters of the host, from the Nova driver or from Linux; one thread at a time.

    A driver without counters is asked again each time.
    """

    def __init__(
        self, read_driver: Callable[[], Mapping[str, Any]], name: str, proc: str = "/proc"
    ) -> None:
        self._read_driver = read_driver
        self._name = name
        self._proc = proc
        self._before: Stats = {}
        self._shares: dict[str, int] = {}
        self._silent = False
        self.stats: Stats = {}  # of the last read
        self.source = ""  # the driver's name, or KERNEL

    def read(self) -> dict[str, int]:
        """Return the metrics of Nova's CPU monitors by name."""
        stats, source = self._read_stats()
        if source != self.source:
            self._before = {}  # the new source has other counters
        self.stats, self.source = stats, source
        self._shares = shares(stats, self._before) or self._shares
        self._before = stats
        made = {f"cpu.{name}.time": stats[name] for name in TIMES}
        return {**made, "cpu.frequency": stats["frequency"], **self._shares}

    def _read_stats(self) -> tuple[Stats, str]:
        try:
            counters = self._read_driver()
            stats = {name: int(counters[name]) for name in (*TIMES, "frequency")}
        except Exception as error:  # drivers raise anything, and Linux has the counters too
            if not self._silent:
                LOG.warning(
                    "%s reports no CPU counters, Linux is read instead: %r", self._name, error
                )
            self._silent = True
            return of_linux(self._proc), KERNEL
        self._silent = False
        return stats, self._name


def shares(now: Stats, before: Stats) -> dict[str, int]:
    """Return CPU use in percent since `before`; {} if no time passed or the counters restarted.

    >>> one = {"user": 100, "kernel": 50, "idle": 800, "iowait": 50}
    >>> shares(one, {})["cpu.percent"]
    20
    """
    ran = {name: now[name] - before.get(name, 0) for name in TIMES}
    total = sum(ran.values())
    if total <= 0 or min(ran.values()) < 0:
        return {}
    made = {f"cpu.{name}.percent": 100 * ran[name] // total for name in TIMES}
    return {**made, "cpu.percent": 100 * (total - ran["idle"]) // total}


def of_linux(proc: str = "/proc") -> Stats:
    with open(f"{proc}/stat") as file:
        ticks = [int(number) for number in file.readline().split()[1:8]]
    user, nice, system, idle, iowait, irq, softirq = ticks
    counted = {
        "user": user + nice,
        "kernel": system + irq + softirq,
        "idle": idle,
        "iowait": iowait,
    }
    stats = {name: ticks * _TICK_NS for name, ticks in counted.items()}
    return {**stats, "frequency": _speed(proc)}


def _speed(proc: str) -> int:
    """Return the average CPU frequency in MHz; 0 if the kernel does not report it."""
    try:
        with open(f"{proc}/cpuinfo") as file:
            frequencies = [float(number) for number in _MHZ.findall(file.read())]
    except OSError:
        return 0
    return int(sum(frequencies) / len(frequencies)) if frequencies else 0


# Installer of the compute monitor; run it with the Python of nova-compute.
#
# Nova finds monitors by entry points but accepts only modules of its own package
# nova.compute.monitors.cpu, and skips all others. The installer therefore writes a file with one
# import into that package. No package owns the file: it survives an in-place upgrade of Nova, and
# must be written again after a new installation.


PACKAGE = "nova.compute.monitors.cpu"
TEXT = """\
# Written by `python -m holdfast.nova.feed --install`; the option --remove deletes this file.
from holdfast.nova.compute_monitor import Monitor  # noqa: F401
"""


def monitor_file() -> Path:
    """Return the path of the file; ModuleNotFoundError if Nova is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise ModuleNotFoundError(f"no module named {PACKAGE}")
    return Path(folders[0]) / "holdfast.py"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.nova.feed")
    actions = parser.add_mutually_exclusive_group(required=True)
    actions.add_argument("--install", action="store_true", help="add the compute monitor to Nova")
    actions.add_argument("--remove", action="store_true", help="remove the monitor from Nova")
    arguments = parser.parse_args(words)
    try:
        file = monitor_file()
        if arguments.remove:
            file.unlink(missing_ok=True)
        else:
            file.write_text(TEXT)
    except ModuleNotFoundError:
        print(f"{sys.executable} has no Nova: run this with nova-compute's Python", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}: run this as its owner", file=sys.stderr)
        return 1
    print(f"{file} is {'gone' if arguments.remove else 'there'}: restart nova-compute")
    return 0


if __name__ == "__main__":
    sys.exit(main())
