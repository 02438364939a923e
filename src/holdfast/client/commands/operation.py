# SPDX-License-Identifier: Apache-2.0
"""holdfast operation list"""

import argparse

from holdfast.client.commands import ListCommand, Table, rows


class List(ListCommand):
    """List durable work: what is due, running, waiting for another try, or done."""

    example = """  holdfast operation list --sort-column due_at
  holdfast operation list -f json -c kind -c status -c sentence"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        columns = ("id", "kind", "subject", "status", "due_at", "attempts", "sentence")
        return rows(columns, self.client.operations.list())
