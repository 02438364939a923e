# SPDX-License-Identifier: Apache-2.0
"""One process of the lab, with all that it forks: started here, and outliving us.

It is known by its process id and start time, kept in a file: Nova's programs overwrite
their own environment and name. It leads a session, so a signal reaches all of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import tail

from lab.place import Place, digest, is_free, write

LOG_LIMIT = 20_000_000
# it must not be our child: who reaps it when a test that started it goes on for hours?
DETACH = 'setsid "$@" </dev/null >>"$0" 2>&1 & echo $!'


class PartFailed(Exception):
    """A part of the lab did not do what it was told."""


@dataclass(frozen=True)
class Recipe:
    """How a part is run, and how one sees that it works."""

    name: str
    command: tuple[str, ...]
    ready: Callable[[], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()  # what it reads when it starts
    port: int = 0
    patience_s: float = 300
    grace_s: float = 10

    @property
    def made_of(self) -> str:
        """Another value means: start it again to see what changed."""
        env = {key: value for key, value in self.env.items() if key not in ("PATH", "HOME")}
        texts = [file.read_text() if file.exists() else "" for file in self.files]
        return digest(self.command, env, texts)


@dataclass(frozen=True)
class Running:
    """What the file of a running part says."""

    pid: int
    started: int
    made_of: str


class Part:
    """A part of the lab, by name."""

    def __init__(self, place: Place, recipe: Recipe) -> None:
        """Look at it; nothing is started."""
        self.name = recipe.name
        self.recipe = recipe
        self.log = place.logs / f"{recipe.name}.log"
        self.folder = place.folder
        self.file = place.run / f"{recipe.name}.json"

    def __repr__(self) -> str:
        """Name and state."""
        return f"<{self.name}: {self.state}>"

    @property
    def running(self) -> bool:
        """Whether its process lives, frozen or not."""
        return self.pid is not None

    @property
    def pid(self) -> int | None:
        """Its process id, None if it does not run."""
        known = self._known()
        if known is None or _stat(known.pid)[:1] in ([], ["Z"], ["X"]):
            return None
        return known.pid if _started(known.pid) == known.started else None

    @property
    def state(self) -> str:
        """In a word: running, frozen, stopped, or dead if nobody stopped it."""
        pid = self.pid
        if pid is None:
            return "dead" if self.file.exists() else "stopped"
        return "frozen" if _stat(pid)[:1] == ["T"] else "running"

    @property
    def current(self) -> bool:
        """Whether it runs, not frozen, as its recipe says today."""
        known = self._known()
        return (
            self.state == "running" and known is not None and known.made_of == self.recipe.made_of
        )

    def start(self) -> None:
        """Start it and wait until it answers; if it runs already, only that."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start it, unless it runs, without waiting."""
        if self.running:
            self.resume()
            return
        port = self.recipe.port
        if port and not is_free(port):
            raise PartFailed(
                f"{self.name} cannot start: something else listens on port {port}. "
                "End that, or choose other ports with `python -m lab clean` and `make lab`"
            )
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.old"))
        done = subprocess.run(
            ["/bin/sh", "-c", DETACH, str(self.log), *self.recipe.command],
            env=dict(self.recipe.env),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        pid = int(done.stdout)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write(self.file, json.dumps([pid, _started(pid), self.recipe.made_of]))
        deadline = time.monotonic() + 60
        while _group(pid) not in (0, pid) and time.monotonic() < deadline:
            time.sleep(0.005)

    def wait_ready(self) -> None:
        """Wait until it answers; a death is noticed at once."""
        deadline = time.monotonic() + self.recipe.patience_s
        while not self.recipe.ready():
            if not self.running:
                raise PartFailed(f"{self.name} ended\n{self.tail()}")
            if time.monotonic() > deadline:
                patience = self.recipe.patience_s
                raise PartFailed(f"{self.name} does not answer for {patience:g} s\n{self.tail()}")
            time.sleep(0.25)

    def stop(self) -> None:
        """Ask it to end and see that it does; by force after its time of grace."""
        self.ask_to_end()
        self.see_it_end()

    def ask_to_end(self) -> None:
        """Send what asks it politely, without waiting."""
        if self.running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def see_it_end(self) -> None:
        """Wait until nothing of it is left."""
        if not self._gone_within(self.recipe.grace_s):
            self._signal(signal.SIGKILL)
            self._gone_within(10)
        self.file.unlink(missing_ok=True)

    def kill(self) -> None:
        """End it as a power cut does, with all it forked. `state` says dead then."""
        self._signal(signal.SIGKILL)
        self._gone_within(10)

    def restart(self) -> None:
        """Stop and start it."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it: connections stay open, and nothing answers."""
        if not self.running:
            raise PartFailed(f"{self.name} does not run: it cannot be frozen")
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._signal(signal.SIGCONT)

    def tail(self) -> str:
        """The end of its log, for messages of failure."""
        return f"--- {self.log}\n{tail(self.log, 25)}"

    def _known(self) -> Running | None:
        try:
            return Running(*json.loads(self.file.read_text()))
        except FileNotFoundError:
            return None

    def _signal(self, number: int) -> None:
        """To the whole group, whose leader may have died before the others."""
        known = self._known()
        if known is None or not self._members(known):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(known.pid, number)

    def _members(self, known: Running) -> list[int]:
        """Who lives of its group; none if that number belongs to others now."""
        if _stat(known.pid) and _started(known.pid) != known.started:
            return []
        alive = (int(name) for name in os.listdir("/proc") if name.isdigit())
        return [
            pid
            for pid in alive
            if (stat := _stat(pid))
            and stat[2] == str(known.pid)
            and stat[0] not in "ZX"
            and int(stat[19]) >= known.started
        ]

    def _gone_within(self, seconds: float) -> bool:
        known = self._known()
        deadline = time.monotonic() + seconds
        while known is not None and self._members(known):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def _started(pid: int) -> int:
    """When a process started, in ticks since the machine did; 0 if it is gone."""
    stat = _stat(pid)
    return int(stat[19]) if stat else 0


def _group(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[2]) if stat else 0
