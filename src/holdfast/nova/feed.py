# SPDX-License-Identifier: Apache-2.0
"""What nova-compute sees, for the metric plugins: they run in a process of their own.

    feed = Feed([sys.executable, "-m", "holdfast.cmd.nova_plugins", "--file", path])
    feed.give({"host": "cmp-7", …})       # never waits

nova-compute may run on eventlet, where one plugin that does not come back would stop all of it; and
on threads they would share its memory. So nothing of them is in it but the writing end of a pipe.
The process answers each message with a byte. One that has ended, or does not answer any more, is
replaced, once a minute at most; what it did not take is dropped and counted. It ends when
nova-compute does: then there is nothing more to read.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LOG = logging.getLogger(__name__)

#: Between two starts of it.
PAUSE_S = 60.0
#: With a message that has waited for so long it hangs; the first waits until plugins are loaded.
HUNG_S = 50.0


class Feed:
    """One thread at a time. Nothing is started before the first message."""

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
        self._left = b""  # of a message that is partly written
        self._unanswered: list[float] = []  # since when each waits
        self.dropped = 0

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._process.pid if self._process is not None else None

    def give(self, message: Mapping[str, Any]) -> bool:
        """Whether it is on its way."""
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
        """Ends it; waits a moment."""
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
            self._hear(process)
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
        process.kill()  # it is buried at the next message: nobody waits for it
        self._unanswered = []
        return True

    def _hear(self, process: _Process) -> None:
        answers = process.output.read(65536)  # None: none
        if answers:
            del self._unanswered[: len(answers)]

    def _write(self) -> bool:
        """Whether nothing is left of it."""
        assert self._process is not None
        try:
            while self._left:
                written = self._process.input.write(self._left)
                if not written:
                    return False
                self._left = self._left[written:]
        except BrokenPipeError:
            return False  # it has ended: the next message finds that out
        return True


class _Process:
    """With pipes of our own, that never wait: eventlet's os.write does, and so do the pipes of its
    subprocess. Of io.FileIO it knows nothing."""

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
        """Our ends; then it ends too."""
        self.input.close()
        self.output.close()


#: What a driver's get_host_cpu_stats() has: times in nanoseconds since the host started.
TIMES = ("user", "kernel", "idle", "iowait")
KERNEL = "/proc"
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_MHZ = re.compile(r"^cpu MHz\s*:\s*([\d.]+)", re.MULTILINE)

Stats = Mapping[str, int]


class HostCpu:
    """One thread at a time. A driver that does not say is asked again each time."""

    def __init__(
        self, ask: Callable[[], Mapping[str, Any]], name: str, proc: str = "/proc"
    ) -> None:
        self._ask = ask
        self._name = name
        self._proc = proc
        self._before: Stats = {}
        self._shares: dict[str, int] = {}
        self._silent = False
        self.stats: Stats = {}  # of the last look
        self.source = ""  # the driver's name, or KERNEL

    def read(self) -> dict[str, int]:
        """Every number that Nova's CPU monitors have, by its name."""
        found, source = self._asked()
        if source != self.source:
            self._before = {}  # other counters
        self.stats, self.source = found, source
        self._shares = shares(found, self._before) or self._shares
        self._before = found
        made = {f"cpu.{name}.time": found[name] for name in TIMES}
        return {**made, "cpu.frequency": found["frequency"], **self._shares}

    def _asked(self) -> tuple[Stats, str]:
        try:
            said = self._ask()
            stats = {name: int(said[name]) for name in (*TIMES, "frequency")}
        except Exception as error:  # a driver's errors have nothing in common, and Linux knows too
            if not self._silent:
                LOG.warning(
                    "%s does not say how busy its host is, Linux is asked: %r", self._name, error
                )
            self._silent = True
            return of_linux(self._proc), KERNEL
        self._silent = False
        return stats, self._name


def shares(now: Stats, before: Stats) -> dict[str, int]:
    """In percent of the time since; {} if none has passed, or the counters were begun anew.

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
        ticks = [int(word) for word in file.readline().split()[1:8]]
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
    """In MHz, on average; 0 where the kernel does not tell."""
    try:
        with open(f"{proc}/cpuinfo") as file:
            found = [float(one) for one in _MHZ.findall(file.read())]
    except OSError:
        return 0
    return int(sum(found) / len(found)) if found else 0
