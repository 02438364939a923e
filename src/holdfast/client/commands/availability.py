# SPDX-License-Identifier: Apache-2.0
"""holdfast availability"""

import argparse
from typing import Any

from holdfast.client import clock, dates
from holdfast.client.commands import ListCommand, Table, asking, rows


class Availability(ListCommand):
    """Ask what you could get, and when. Nothing is booked.

    Say for how long (--for) and see the first windows that would fit, or name the window
    (--start, --end) and see whether it would. `amount` is how many hosts, slots or addresses you
    could have then. If nothing fits, one line says why, and the command ends with 1.
    """

    example = """  holdfast availability --hosts 4 --for 8h --where gpu=True
  holdfast availability --hosts 2 --start '2027-01-31 18:00' --end +12h
  holdfast availability --for 1d --from +7d --until +14d \\
      --reservation virtual:instance,vcpus=2,memory_mb=4096,disk_gb=20,amount=3"""

    def get_epilog(self) -> str:
        return super().get_epilog() + "\n" + asking.RESERVATIONS + "\n" + asking.DATES

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("--for", type=asking.span, dest="length", metavar="8h", help="for how long")
        add("--from", type=asking.date, dest="first", metavar="DATE", help="starts from here on")
        add("--until", type=asking.date, metavar="DATE", help="and up to here; default: 30 days on")
        add("--limit", type=asking.count, metavar="N", help="at most N windows; default: 5")
        add("--start", type=asking.date, metavar="DATE", help="from here; default: now …")
        add("--end", type=asking.date, metavar="DATE", help="… to here; +2h counts from --start")
        asking.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        found = self._ask(parsed_args)
        if not found["fits"]:
            self.exit_code = 1
            why = (found.get("why_not") or {}).get("message") or "nothing fits"
            self.app.LOG.error(why)
        return rows(("start_date", "end_date", "amount"), found["windows"])

    def _ask(self, args: argparse.Namespace) -> dict[str, Any]:
        wanted = asking.asked(self.parser, args)
        if len(wanted) > 1:
            self.parser.error("one kind of thing at a time: drop --reservation or the others")
        now = clock.now().replace(microsecond=0)
        try:
            if args.length is None:
                return self._then(args, wanted[0], now)
            return self._first(args, wanted[0], now)
        except ValueError as error:
            self.parser.error(str(error))

    def _then(self, args: argparse.Namespace, wanted: dict[str, Any], now: Any) -> dict[str, Any]:
        if args.end is None:
            self.parser.error("say for how long with --for 8h, or until when with --end")
        if args.first or args.until or args.limit:
            self.parser.error("--from, --until and --limit go with --for")
        start = args.start or dates.NOW
        return self.client.availability.then(
            wanted, start_date=start.on_wire(now), end_date=args.end.on_wire(start.at(now))
        )

    def _first(self, args: argparse.Namespace, wanted: dict[str, Any], now: Any) -> dict[str, Any]:
        if args.start or args.end:
            self.parser.error("--for 8h looks for windows: use --from and --until with it")
        return self.client.availability.first(
            wanted,
            duration_s=int(args.length.total_seconds()),
            start=args.first.on_wire(now) if args.first else None,
            until=args.until.on_wire(now) if args.until else None,
            limit=args.limit,
        )
