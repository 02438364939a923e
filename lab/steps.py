# SPDX-License-Identifier: Apache-2.0
"""Steps that depend on each other, done side by side, remembered when they are done.

A step with a stamp is skipped while its stamp says what it said when the step was last
done. The stamp is written after success: a step that was interrupted is done again.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from lab.part import PartFailed
from lab.place import write


class StepFailed(Exception):
    """A step could not be done."""


@dataclass(frozen=True)
class Step:
    """Something to be done once those it needs are done."""

    name: str
    do: Callable[[], object]
    needs: Sequence[str] = ()
    stamp: str = ""  # "": done every time


class Stamps:
    """What is known to be done."""

    def __init__(self, folder: Path) -> None:
        """Kept as files of this folder."""
        self.folder = folder

    def has(self, name: str, stamp: str) -> bool:
        """Whether this was done as it would be done now."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text() == stamp
        return False

    def set(self, name: str, stamp: str) -> None:
        """It is done."""
        write(self.folder / name, stamp)


class Progress:
    """Lines with the time since the beginning, on standard output and in a file."""

    def __init__(self, file: Path) -> None:
        """Begin a new file."""
        self._began = time.monotonic()
        self._file = file
        self._lock = threading.Lock()
        file.write_text("")

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def say(self, line: str) -> None:
        """Add a line."""
        text = f"{self.elapsed:6.1f} s  {line}\n"
        with self._lock:
            with self._file.open("a") as file:
                file.write(text)
            # whoever listened may have gone away: the file has it all
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.write(text)
                sys.stdout.flush()


def do_all(steps: Sequence[Step], stamps: Stamps, progress: Progress) -> None:
    """Do the steps, each as soon as it may; the first that fails ends it."""
    waiting = {step.name: step for step in steps}
    done: set[str] = set()
    running: dict[Future[None], Step] = {}
    failed: Exception | None = None
    with ThreadPoolExecutor(max_workers=len(steps)) as pool:
        while running or (waiting and failed is None):
            if failed is None:
                for step in ready(waiting, done):
                    del waiting[step.name]
                    running[pool.submit(do_one, step, stamps, progress)] = step
                assert running, f"nobody does what these need: {sorted(waiting)}"
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                step = running.pop(future)
                error = future.exception()
                if isinstance(error, Exception):
                    progress.say(f"{step.name} failed")
                    failed = failed or explained(step, error)
                elif error is not None:
                    raise error
                done.add(step.name)
    if failed is not None:
        raise failed


def explained(step: Step, error: Exception) -> Exception:
    """An error that says what failed, in a sentence."""
    if isinstance(error, StepFailed | PartFailed):
        return error
    explanation = StepFailed(f"{step.name}: {type(error).__name__}: {error}")
    explanation.__cause__ = error
    return explanation


def ready(waiting: Mapping[str, Step], done: set[str]) -> list[Step]:
    """Those whose needs are done."""
    return [step for step in waiting.values() if done.issuperset(step.needs)]


def do_one(step: Step, stamps: Stamps, progress: Progress) -> None:
    """Do one step unless its stamp says that it is done."""
    if step.stamp and stamps.has(step.name, step.stamp):
        return
    began = time.monotonic()
    step.do()
    if step.stamp:
        stamps.set(step.name, step.stamp)
    took = time.monotonic() - began
    if took >= 0.1:
        progress.say(f"{step.name} ({took:.1f} s)")
