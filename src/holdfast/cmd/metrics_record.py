# SPDX-License-Identifier: Apache-2.0
"""`holdfast metrics record`: what is measured on this host, pass by pass, into a file that
`holdfast rules test` replays. It asks the agent itself, by its socket, and no server."""

import argparse
import contextlib
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import IO

from holdfast.client import admin, clock
from holdfast.client.commands import asking
from holdfast.cmd.guests_live import Asking
from holdfast.model.errors import InvalidInput


class Record(Asking):
    """Write all that is measured on this host to a file, until Ctrl-C or for as long as is said.

    A line of JSON for each pass, with every number of the host, its guests, their disks and
    interfaces, as rules see them: `holdfast rules test` replays it through any rules, here or
    elsewhere, as often as you like. A guest takes about 3 kB of it every second.
    """

    example = """  holdfast metrics record monday.jsonl --for 10m
  holdfast rules test alarms.yaml monday.jsonl"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("file", help="where to; one that is there already is not written over")
        parser.add_argument(
            "--for", dest="lasts", type=asking.span, metavar="LENGTH", help="10m, 2h"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        name, passes = parsed_args.file, 0
        lines = _lines(self.place(parsed_args), parsed_args.lasts)
        first = list(itertools.islice(lines, 1))  # before there is a file: the agent may be away
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
    """Written line by line, so that what was recorded before somebody pulls the plug is there."""
    try:
        return open(name, "x", encoding="utf-8", buffering=1)
    except FileExistsError as error:
        raise InvalidInput(f"{name} is there already: name another file") from error


def _lines(place: str, lasts: timedelta | None) -> Iterator[str]:
    """Passes as they are made, until that time is over."""
    until = None if lasts is None else clock.monotonic() + lasts.total_seconds()
    for item in admin.stream(place, "metrics.record"):
        if item is not None:
            yield item["line"]
        if until is not None and clock.monotonic() >= until:
            return
