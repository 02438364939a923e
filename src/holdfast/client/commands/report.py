# SPDX-License-Identifier: Apache-2.0
"""holdfast incident report: what a monitor would say, said by a person."""

import argparse

from holdfast.client.commands import Base


class Report(Base):
    """Report that a host, or a server on it, has died.

    It is taken like a monitor's report: guards are asked, the host is fenced before anything of it
    starts elsewhere. `incident list` shows what comes of it.
    """

    example = """  holdfast incident report cmp-07
  holdfast incident report cmp-07 --server 3c0f4b9e-6d0a-4f3c-9a51-0b6f7d1f2a3b
  holdfast incident report cmp-07 --process nova-compute"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("host", help="the host that died, or on which something did")
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--server", metavar="UUID", help="only this server on it died")
        which.add_argument("--process", metavar="NAME", help="only this process on it died")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        args = parsed_args
        made = self.client.incidents.report(args.host, server=args.server, process=args.process)
        self.say(
            f"reported as notification {made['notification_uuid']}; see `holdfast incident list`"
        )
