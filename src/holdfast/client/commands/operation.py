# SPDX-License-Identifier: Apache-2.0
"""holdfast operation list"""

import argparse

from holdfast.client.commands import ListCommand, Table, rows
from holdfast.client.refs import UUID
from holdfast.model.moves import OPERATION


class List(ListCommand):
    """List durable work: what is due, running, waiting for another try, or done.

    `failures` is how often it was tried in vain.
    """

    example = """  holdfast operation list --sort-column due_at
  holdfast operation list --lease nightly-tests --status retrying
  holdfast operation list -f json -c kind -c status -c sentence"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--lease", metavar="REF", help="only of this lease: its name, or its id even if deleted"
        )
        parser.add_argument(
            "--status",
            metavar="STATUS",
            choices=sorted(OPERATION),
            help=f"only in this state: {', '.join(sorted(OPERATION))}",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        subject = parsed_args.lease
        if subject and not UUID.fullmatch(subject):
            subject = self.client.leases.find(subject)["id"]
        found = self.client.operations.list(subject=subject, status=parsed_args.status)
        columns = ("id", "kind", "subject", "status", "due_at", "failures", "sentence")
        return rows(columns, ({**each, "failures": each.get("attempts")} for each in found))
