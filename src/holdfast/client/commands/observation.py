# SPDX-License-Identifier: Apache-2.0
"""holdfast observation list"""

import argparse
from datetime import datetime
from typing import Any

from holdfast.client import clock
from holdfast.client.commands import ListCommand, Moment, Table, asking, rows
from holdfast.model.observed import STATES, Observed
from holdfast.model.votes import HOST_HEALTH

COLUMNS = ("observed_at", "observer", "subject", "state", "what", "since", "incident_id")
WORDS = ("failed", "noted", "well", "alert", "raised", "again", "no_data", "cleared")


class List(ListCommand):
    """List what host monitors and the agents of hosts reported, the newest first: guests and
    services that failed or run again, what was only noted of a guest, votes about hosts, alarms.

    `incident_id` is what a report led to; of what has none nothing was done.
    """

    example = """  holdfast observation list --state noted
  holdfast observation list --host cmp-07 --since '2027-01-31 18:00'
  holdfast observation list --subject server:3c0f4b9e-6d0a-4f3c-9a51-0b6f7d1f2a3b
  holdfast observation list --subject process:cmp-07:libvirtd -f json"""

    def get_epilog(self) -> str:
        return super().get_epilog() + "\n" + asking.DATES

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("--subject", help="server:UUID, process:HOST:NAME or host:NAME")
        add("--host", help="about this host, and what was seen on it")
        add("--kind", choices=(*STATES, HOST_HEALTH), help="only of this kind")
        add("--state", choices=WORDS, help="only in this state")
        add("--since", type=asking.date, metavar="DATE", help="observed then or later")
        add("--limit", type=asking.count, metavar="N", help="at most N; default: 100")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        wanted = {name: getattr(args, name) for name in ("subject", "host", "kind", "state")}
        since = args.since and args.since.at(clock.now()).isoformat()
        found = self.client.observations.list(**wanted, since=since, limit=args.limit)
        return rows(COLUMNS, map(_row, found))


def _row(one: dict[str, Any]) -> dict[str, Any]:
    """What was seen, in words."""
    names = ("id", "observer", "subject", "kind", "state", "evidence")
    since = datetime.fromisoformat(one["since"])
    what = Observed(**{name: one[name] for name in names}, since=since).what
    times = {name: Moment(one[name]) for name in ("since", "observed_at")}
    return {**one, **times, "what": what, "incident_id": one["incident_id"] or ""}
