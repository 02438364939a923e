# SPDX-License-Identifier: Apache-2.0
"""`holdfast agent token`: what the agent of one host shows."""

import argparse
import sys

from cliff.command import Command

from holdfast import conf as configuration
from holdfast.client.commands import Base
from holdfast.cmd.db import config_option
from holdfast.model.errors import InvalidInput


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
        from holdfast.api import agents

        path = configuration.load([], parsed_args.config).auth.agent_secret_file
        if not path:
            raise InvalidInput("[auth] agent_secret_file is not set: name a file with a secret")
        sys.stdout.write(f"{agents.token(parsed_args.host, agents.secrets(path)[0])}\n")
