# SPDX-License-Identifier: Apache-2.0
"""holdfast agent list"""

import argparse
import sys
from typing import Any

from cliff.command import Command

from holdfast import conf as configuration
from holdfast.cli import Base, ListCommand, Table, rows
from holdfast.cli.config import config_option
from holdfast.client.reports import Agents
from holdfast.model.errors import InvalidInput

COLUMNS = (
    "host",
    "lives",
    "seen_at",
    "started_at",
    "program",
    "rules",
    "deaf",
    "firing",
    "waiting",
)


class List(ListCommand):
    """List the agents of hosts: which live and since when, by which alarm rules they go, whether
    they hear of their guests, and how many alarms stand there.

    One that lives says so every ten seconds. `rules` has a `!` where an agent does not hold the
    rules that it should: `holdfast rules list --hosts` says why.
    """

    example = "  holdfast agent list"

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        found = Agents(self.client.wire).list()
        silent = [each["host"] for each in found if not each["fresh"]]
        if silent:
            self.tell(parsed_args, f"not heard of lately: {', '.join(silent)}")
        return rows(COLUMNS, [_row(each) for each in found])


def _row(agent: dict[str, Any]) -> dict[str, Any]:
    rules = agent["rules"]
    mark = "" if rules["central"] == rules["wanted"] else " !"
    return {
        **agent,
        "lives": "yes" if agent["fresh"] else "no",
        "rules": rules["version"] + mark,
        "deaf": agent["deaf"] or "no",
    }


# `holdfast agent token`: what the agent of one host shows.


class Token(Base, Command):
    """Print the token of one host's agent, for the file that its [agent] token_file names.

    It is made of the secret in [auth] agent_secret_file, so it runs on a controller. It is good for
    that host alone, for as long as the secret is in the file.
    """

    example = """\
  openssl rand -hex 32 > /etc/holdfast/agent-secret
  holdfast agent token cmp-7 --config /etc/holdfast/holdfast.conf > cmp-7.token"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        config_option(parser)
        parser.add_argument("host", metavar="HOST", help="what the cloud calls it")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from holdfast.api import tokens

        path = configuration.load([], parsed_args.config).auth.agent_secret_file
        if not path:
            raise InvalidInput("[auth] agent_secret_file is not set: name a file with a secret")
        sys.stdout.write(f"{tokens.agent_token(parsed_args.host, tokens.secrets(path)[0])}\n")
