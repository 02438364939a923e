# SPDX-License-Identifier: Apache-2.0
"""holdfast agent list | token"""

import argparse
import sys

from holdfast import conf as configuration
from holdfast.cli import Base, ListObjects, arg
from holdfast.cli.config import CONFIG
from holdfast.client.client import Object, Objects
from holdfast.model.errors import InvalidInput


class List(ListObjects):
    """List the agents of hosts: alive or not, alarm rules, guests and alarms.

    An agent that is alive sends a heartbeat every ten seconds. `rules` has a `!` if an agent
    does not hold the wanted rules: `holdfast rule list --hosts` shows why. `deaf` is why an
    agent gets no events from its hypervisor. `firing` counts the alarms on the host.
    """

    example = "  holdfast agent list"

    columns = (
        *("host", "lives", "seen_at", "started_at", "program", "rules", "deaf", "firing"),
        "waiting",
    )

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        agents = self.client.agents.list()
        unheard = [each["host"] for each in agents if not each["fresh"]]
        if unheard:
            self.note(args, f"no report lately: {', '.join(unheard)}")
        return agents

    def row(self, agent: Object) -> Object:
        rules = agent["rules"]
        mark = "" if rules["central"] == rules["wanted"] else " !"
        return {
            **agent,
            "lives": "yes" if agent["fresh"] else "no",
            "rules": rules["version"] + mark,
            "deaf": agent["deaf"] or "no",
        }


# holdfast agent token


class Token(Base):
    """Print the token of a host's agent, for the file in the agent's [agent] token_file.

    The command derives the token from the secret in [auth] agent_secret_file, so run it on a
    controller. The token is valid for this host only, as long as the secret is in the file.
    """

    example = """\
  openssl rand -hex 32 > /etc/holdfast/agent-secret
  holdfast agent token cmp-7 --config /etc/holdfast/holdfast.conf > cmp-7.token"""
    arguments = (CONFIG, arg("host", metavar="HOST", help="what the cloud calls it"))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        from holdfast.api import tokens

        path = configuration.load([], parsed_args.config).auth.agent_secret_file
        if not path:
            raise InvalidInput("[auth] agent_secret_file is not set: name a file with a secret")
        sys.stdout.write(f"{tokens.agent_token(parsed_args.host, tokens.secrets(path)[0])}\n")
