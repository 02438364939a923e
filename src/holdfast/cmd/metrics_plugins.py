# SPDX-License-Identifier: Apache-2.0
"""`holdfast metrics plugins list | add | configure | remove | enable | reload`: the metric plugins
of this host, while its agent runs. They ask the agent itself, by its socket, and no server."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.client import admin
from holdfast.client.commands import ListCommand, ShowCommand, Table, one, pair, rows
from holdfast.cmd.guests_live import Asking
from holdfast.model.errors import InvalidInput
from holdfast.model.metric_plugins_file import value

#: A change waits for the plugin: for its import, and for a pass in which new code is tried.
CHANGE_S = 30.0
_SHORT = ("name", "use", "state", "why", "passes", "dropped", "strikes", "mean_ms", "slowest_ms")
_LONG = (
    *("name", "use", "source", "state", "why", "callbacks", "config", "config_version", "passes"),
    *("dropped", "strikes", "mean_ms", "cpu_ms", "slowest_ms", "grew_kib", "notes", "reloads"),
    *("can_roll_back", "lost_threads"),
)


class List(Asking, ListCommand):
    """List the metric plugins of this host: what they do, what they cost, why one is off.

    `dropped` are passes that a plugin was too slow for, `strikes` what it did wrong within the
    last minute; with five of them it is switched off. JSON and YAML have everything.
    """

    example = """  holdfast metrics plugins list
  holdfast metrics plugins list -f json --socket /run/holdfast/agent.sock"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        said = admin.ask(self.place(parsed_args), "metrics.plugins.list", timeout_s=10.0)
        if said["problem"]:
            self.app.LOG.warning(said["problem"])
        full = parsed_args.formatter in ("json", "yaml")
        return rows(_LONG if full else _SHORT, said["plugins"])


class _Change(Asking, ShowCommand):
    """Names one plugin, and shows it afterwards."""

    command = ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", help="what the plugin is called on this host")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = {"name": parsed_args.name, **self.more(parsed_args)}
        place = self.place(parsed_args)
        said = admin.ask(place, f"metrics.plugins.{self.command}", args, timeout_s=CHANGE_S)
        return one({name: said["plugin"].get(name, "") for name in _LONG if name != "source"})

    def more(self, asked: argparse.Namespace) -> Mapping[str, Any]:
        return {}


class Add(_Change):
    """Add a metric plugin while the agent runs, until it ends.

    It is found by the name of its entry point, as module:Class, or as a file of Python, with :Class
    if there are several in it. What is to be there after a restart too belongs in the file that
    [metrics] plugins_file names.
    """

    command = "add"
    example = """  holdfast metrics plugins add noisy noisy_neighbour --set steal_ratio=0.2
  holdfast metrics plugins add mine /etc/holdfast/plugins/mine.py
  holdfast metrics plugins add gpu acme_gpu:Temperature"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("use", help="an entry point, module:Class, or FILE.py[:Class]")
        return _with_config(parser)

    def more(self, asked: argparse.Namespace) -> Mapping[str, Any]:
        path, colon, name = asked.use.partition(".py")
        is_file = colon and os.path.exists(path + colon)
        use = os.path.abspath(path + colon) + name if is_file else asked.use
        return {"use": use, "config": _config(asked.set)}


class Configure(_Change):
    """Configure a metric plugin while the agent runs; from its next pass on.

    What is not named stays as it is, with --replace it goes. A plugin that refuses says why, and
    nothing changes.
    """

    command = "configure"
    example = """  holdfast metrics plugins configure noisy --set steal_ratio=0.2 --set for_s=30
  holdfast metrics plugins configure noisy --replace"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = _with_config(super().get_parser(prog_name))
        parser.add_argument(
            "--replace", action="store_true", help="leave nothing of the configuration before"
        )
        return parser

    def more(self, asked: argparse.Namespace) -> Mapping[str, Any]:
        if not asked.set and not asked.replace:
            raise InvalidInput("say what changes: --set NAME=VALUE, or --replace")
        return {"config": _config(asked.set), "merge": not asked.replace}


class Remove(Asking):
    """Remove a metric plugin while the agent runs.

    One that the file of [metrics] plugins_file names is there again after a restart.
    """

    example = "  holdfast metrics plugins remove noisy"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", help="what the plugin is called on this host")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        args = {"name": parsed_args.name}
        place = self.place(parsed_args)
        admin.ask(place, "metrics.plugins.remove", args, timeout_s=CHANGE_S)
        self.say(f"plugin {parsed_args.name} is removed")


class Enable(_Change):
    """Switch a metric plugin on again that was switched off.

    It begins anew, with the code and the configuration it had.
    """

    command = "enable"
    example = "  holdfast metrics plugins enable noisy"


class Reload(_Change):
    """Read the code of a metric plugin anew, while the agent runs.

    The new code gets one pass beside the old. If it does that without a fault it takes its place;
    else the old one goes on, and what was wrong is said. Of the modules that a plugin imports none
    are read anew. --roll-back returns to the code before.
    """

    command = "reload"
    example = """  holdfast metrics plugins reload mine
  holdfast metrics plugins reload mine --roll-back"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--roll-back", action="store_true", help="to the code before the last reload"
        )
        return parser

    def more(self, asked: argparse.Namespace) -> Mapping[str, Any]:
        return {"roll_back": asked.roll_back}


def _with_config(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        type=pair,
        action="append",
        default=[],
        help="a part of its configuration; numbers, true, false and ~ are what they look like",
    )
    return parser


def _config(said: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {name: value(text) for name, text in said}
