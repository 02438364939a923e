# SPDX-License-Identifier: Apache-2.0
"""The commands of the lab: `python -m lab up`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time

from tests.servers.base import Missing

from lab import build, monitors, peer, up
from lab.cloud import Lab, NotRunning
from lab.part import Part, PartFailed
from lab.place import ROOT, Busy, Place
from lab.steps import Progress, StepFailed

FAILURES = (PartFailed, StepFailed, Missing, NotRunning)


def bring_up(place: Place, options: argparse.Namespace) -> int:
    """Bring the lab up; nothing to do if it is."""
    try:
        with place.lock():
            return _bring_up(place)
    except Busy as busy:
        print(f"process {busy} has the lab in hand: following it", flush=True)
        return follow(place, options)


def _bring_up(place: Place) -> int:
    progress = Progress(place.up_log)
    try:
        up.up(place, progress)
    except FAILURES as error:
        place.state.unlink(missing_ok=True)
        progress.say(f"{error}")
        progress.say(f"the lab is not up. Logs: {place.logs}. Mend it and repeat `make lab`;")
        progress.say("`python -m lab clean` before that begins with empty databases")
        return 1
    progress.say(f"the lab is up: {place.auth_url} (user admin, password pw)")
    return 0


def hold(place: Place, options: argparse.Namespace) -> int:
    """Bring the lab up; take it down when standard input closes.

    A test run that brings the lab up holds the other end, so the lab ends with the run, also
    when that is killed. Prints a line once `wait` can follow.
    """
    place.make()
    began = time.time()
    with (place.folder / "up.err").open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "lab", "up"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    while child.poll() is None and not place.busy():
        if place.up_log.exists() and place.up_log.stat().st_mtime >= began:
            break
        time.sleep(0.05)
    print(f"bringing the lab up: {place.up_log}; `python -m lab wait` waits for it", flush=True)
    sys.stdin.buffer.read()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, number)
                child.wait(10)
    return take_down(place, options)


def follow(place: Place, options: argparse.Namespace) -> int:
    """Wait for an `up` that runs, and show what it says."""
    place.make()
    shown = 0
    busy = True
    while busy:
        busy = place.busy()
        text = place.up_log.read_text() if place.up_log.exists() else ""
        print(text[shown:], end="", flush=True)
        shown = len(text)
        time.sleep(0.2 if busy else 0)
    try:
        Lab.running()
    except NotRunning:
        errors = place.folder / "up.err"  # what an `up` in the background did not foresee
        print(errors.read_text() if errors.exists() else "", end="", file=sys.stderr)
        raise
    return 0


def take_down(place: Place, options: argparse.Namespace) -> int:
    """Stop every part; the data stays."""
    place.make()
    with place.lock():
        up.down(place)
    return 0


def clean(place: Place, options: argparse.Namespace) -> int:
    """Stop every part and remove the data and the choice of ports."""
    take_down(place, options)
    with place.lock():
        up.clean(place)
        (place.folder / "ports.json").unlink(missing_ok=True)
    return 0


def line_of(part: Part) -> str:
    """What `status` says of a part."""
    where = f"127.0.0.1:{part.recipe.port}" if part.recipe.port else ""
    return f"{part.name:16} {part.state:8} {part.pid or '':>7} {where:16} {part.log}"


def status(place: Place, options: argparse.Namespace) -> int:
    """Say what runs; fails unless everything does."""
    lab = Lab(place)
    shown = [*lab.parts, *(part for part in lab.peers if part.state != "stopped")]
    print("\n".join(map(line_of, shown)))
    return 0 if all(part.state == "running" for part in lab.parts) else 1


def start(place: Place, options: argparse.Namespace) -> int:
    """Start a part and wait until it answers."""
    Lab(place).part(options.name).start()
    return 0


def stop(place: Place, options: argparse.Namespace) -> int:
    """Ask a part to end."""
    Lab(place).part(options.name).stop()
    return 0


def kill(place: Place, options: argparse.Namespace) -> int:
    """Kill a part as a power cut does."""
    Lab(place).part(options.name).kill()
    return 0


def restart(place: Place, options: argparse.Namespace) -> int:
    """Stop and start a part."""
    Lab(place).part(options.name).restart()
    return 0


def run_peer(place: Place, options: argparse.Namespace) -> int:
    """Install and start another project's service beside ours, for benchmarks."""
    settings = dict(option.split("=", 1) for option in options.set)
    progress = Progress(place.folder / "peer.log")
    with place.lock():
        print(peer.bring_up(Lab.running(), options.peer, progress, settings))
    return 0


def pins(place: Place, options: argparse.Namespace) -> int:
    """Renew the pinned versions: the newest that fit together."""
    place.make()
    build.resolve(place, f"-{options.peer}" if options.peer else "")
    return 0


def env(place: Place, options: argparse.Namespace) -> int:
    """Print the variables of a user: eval "$(python -m lab env)"."""
    for name, value in Lab(place).credentials(options.user, options.project).items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


COMMANDS = {
    "up": bring_up,
    "hold": hold,
    "wait": follow,
    "down": take_down,
    "clean": clean,
    "status": status,
    "start": start,
    "stop": stop,
    "kill": kill,
    "restart": restart,
    "env": env,
    "peer": run_peer,
    "pins": pins,
}


def main() -> int:
    """Do what the words say."""
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    words = parser.add_subparsers(dest="word", required=True)
    for word, command in COMMANDS.items():
        one = words.add_parser(word, help=command.__doc__, description=command.__doc__)
        if word in ("start", "stop", "kill", "restart"):
            one.add_argument("name", help="as `status` lists it")
        if word in ("peer", "pins"):
            known = [*peer.PEERS, *([monitors.NAME] if word == "pins" else [])]
            one.add_argument("peer", choices=known, nargs="?" if word == "pins" else None)
        if word == "peer":
            one.add_argument(
                "--set",
                action="append",
                default=[],
                metavar="OPTION=VALUE",
                help="of its configuration's [DEFAULT], until the next time",
            )
        if word == "env":
            one.add_argument("user", nargs="?", default="admin")
            one.add_argument("project", nargs="?", default="admin")
    options = parser.parse_args()
    try:
        return COMMANDS[options.word](Place(), options)
    except Busy as busy:
        print(f"process {busy} has the lab in hand: wait for it, or end it", file=sys.stderr)
    except (*FAILURES, KeyError) as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
