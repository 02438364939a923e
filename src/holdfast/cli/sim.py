# SPDX-License-Identifier: Apache-2.0
"""holdfast sim show | set | fail-host | recover-host | cut | reconnect | crash-server"""

import argparse
import json
import math
from typing import Any

from holdfast.cli import Base, ListCommand, ShowCommand, Table, one, pair, rows, typed

SERVER_COLUMNS = ("id", "name", "status", "power_state", "host", "running_on", "project_id")


class Show(ListCommand):
    """Show the hosts or the servers of the simulated cloud."""

    example = """  holdfast sim show
  holdfast sim show --servers --sort-column host"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--servers", action="store_true", help="the servers, not the hosts")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        sim = self.client.sim.show()
        if parsed_args.servers:
            return rows(SERVER_COLUMNS, sim.get("servers", []))
        hosts = [{**each, "state": _state(each)} for each in sim.get("hosts", [])]
        return rows(("name", "rack", "state", "pools", "servers"), hosts)


@typed
def _setting(text: str) -> tuple[str, Any]:
    """Parse key=value; the value is a number, a boolean, a list of calls, or text."""
    key, value = pair(text)
    if key == "only_calls" and not value.lstrip().startswith("["):
        return key, [each.strip() for each in value.split(",") if each.strip()]
    if value.lower() in ("true", "false"):
        return key, value.lower() == "true"
    try:
        read = json.loads(value)
    except ValueError:
        return key, value
    if isinstance(read, float) and not math.isfinite(read):
        raise ValueError(f"{key}: {value} is not a finite number")
    return key, read


class Set(ShowCommand):
    """Change the behaviour of the simulated cloud; prints all settings."""

    example = """  holdfast sim set latency_s=0.2 lost_reply_rate=0.1
  holdfast sim set down=True
  holdfast sim set only_calls=servers.stop,servers.start"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("settings", nargs="+", type=_setting, metavar="key=value")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return one(self.client.sim.change(**dict(parsed_args.settings)))


class FailHost(Base):
    """Cut the power of a simulated host."""

    example = "  holdfast sim fail-host cmp-05"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", help="the host")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.app.stdout.write(self.client.sim.fail_host(parsed_args.name) + "\n")


class RecoverHost(Base):
    """Switch a simulated host on again."""

    example = "  holdfast sim recover-host cmp-05"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", help="the host")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.app.stdout.write(self.client.sim.recover_host(parsed_args.name) + "\n")


class Cut(Base):
    """Disconnect a simulated host from a network or from all; the servers keep running."""

    example = "  holdfast sim cut cmp-05 --network storage"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _with_network(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        said = self.client.sim.cut_host(parsed_args.name, parsed_args.network)
        self.app.stdout.write(said + "\n")


class Reconnect(Base):
    """Reconnect a simulated host after `holdfast sim cut`."""

    example = "  holdfast sim reconnect cmp-05 --network storage"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        return _with_network(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        said = self.client.sim.reconnect_host(parsed_args.name, parsed_args.network)
        self.app.stdout.write(said + "\n")


def _with_network(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("name", help="the host")
    parser.add_argument("--network", help="manage, tenant, storage, …; all of them without it")
    return parser


class CrashServer(Base):
    """Crash a simulated server."""

    example = "  holdfast sim crash-server job-01"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("server", help="name or id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        said = self.client.sim.crash_server(parsed_args.server)
        self.app.stdout.write(said + "\n")


def _state(host: dict[str, Any]) -> str:
    """Format power and service state: "up", "no power, still looks up", "down, forced down"."""
    service = host.get("service", {})
    looks = service.get("state", "")
    words = [looks]
    if not host.get("powered", True):
        words = ["no power", "still looks up" if looks == "up" else looks]
    words += [f"{network} cut" for network in host.get("cut", [])]
    if not service.get("enabled", True):
        words.append("disabled")
    if service.get("forced_down"):
        words.append("forced down")
    return ", ".join(word for word in words if word)
