# SPDX-License-Identifier: Apache-2.0
"""`holdfast metrics top`: the guests of this host and what they use, live. It asks the agent
itself, by its socket, and no server."""

import argparse
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import IO, Any

from holdfast.client import admin, clock
from holdfast.client.commands import typed
from holdfast.cmd.guests_live import Asking
from holdfast.cmd.metrics_top_lines import screen
from holdfast.watch.metrics.top import NUMBERS, WORDS

#: After so long without a pass, that is said.
LATE_S = 5.0
#: Where nobody says how wide it is.
USUAL = (100, 30)
# another screen, no cursor; and back
_BEGIN, _END = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
# to the corner; the rest of a line, the rest of the screen becomes empty
_HOME, _REST, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


class Top(Asking):
    """Show the guests of this host and what they use, every second, until Ctrl-C.

    CPU% is of all processors the guest has; STEAL% is how long those waited for the host's. MEM is
    what the guest uses if it says so, else what it takes of the host. OF is how much of its
    contract it uses: 1.00 is all of it. `-` is not known; a guest that is suspended says so.
    Where the terminal is narrow, columns are left out; JSON has them all.
    """

    example = """  holdfast metrics top
  holdfast metrics top --sort tx_bps --limit 10
  holdfast metrics top --once
  holdfast metrics top -f json"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("--sort", choices=(*NUMBERS, *WORDS), default="cpu", help="default: cpu")
        add("--limit", type=_count, default=0, metavar="N", help="show so many at most")
        add("--once", action="store_true", help="show it once; so it is if this is no terminal")
        add(
            *("-f", "--format"),
            dest="format",
            choices=("table", "json"),
            default="table",
            help="json: once, with everything",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        place, out = self.place(parsed_args), self.app.stdout
        args = {"sort": parsed_args.sort, "limit": parsed_args.limit}
        if parsed_args.format == "json":
            said = admin.ask(place, "metrics.snapshot", args, timeout_s=10.0)
            print(json.dumps(said, indent=2), file=out)
        elif parsed_args.once or not out.isatty():
            said = admin.ask(place, "metrics.snapshot", args, timeout_s=10.0)
            columns = _size(out)[0] if out.isatty() else 1_000
            print("\n".join(screen(said, columns)), file=out)
        else:
            with contextlib.suppress(KeyboardInterrupt), _screen(out):
                self._follow(place, args, out)

    def _follow(self, place: str, args: dict[str, Any], out: IO[str]) -> None:
        said: dict[str, Any] | None = None
        came = clock.monotonic()
        for item in admin.stream(place, "metrics.top", args):
            if item is not None:
                said, came = item, clock.monotonic()
            late_s = clock.monotonic() - came
            if said is None:
                _draw(out, ["waiting for the first pass …"])
            elif item is not None or late_s >= LATE_S:
                columns, lines = _size(out)
                drawn = screen(said, columns, lines)
                if late_s >= LATE_S:
                    drawn[1:2] = [f"no pass for {late_s:.0f} s: the agent's log says why"[:columns]]
                _draw(out, drawn)


def _draw(out: IO[str], lines: list[str]) -> None:
    """In one write and over what was there: nothing flickers."""
    out.write(_HOME + f"{_REST}\n".join(lines) + _REST + _BELOW)
    out.flush()


@contextlib.contextmanager
def _screen(out: IO[str]) -> Iterator[None]:
    """Whatever ends it, the terminal is as it was."""

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
    """Of the terminal as it is now: it may be made wider."""
    try:
        columns, lines = os.get_terminal_size(out.fileno())
    except (OSError, ValueError):
        return USUAL
    return columns or USUAL[0], lines or USUAL[1]


@typed
def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1_000_000:
        raise ValueError(f"{text!r} is no number of guests: write 10, or leave it out for all")
    return int(text)
