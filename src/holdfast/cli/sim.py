# SPDX-License-Identifier: Apache-2.0
"""holdfast sim show | set | fail-host | recover-host | cut | reconnect | crash-server"""

import argparse
import json
import math
from typing import Any

from holdfast.cli import Base, ListCommand, ShowCommand, Table, arg, one, pair, rows, typed

SERVER_COLUMNS = ("id", "name", "status", "power_state", "host", "running_on", "project_id")


class Show(ListCommand):
    """Show the hosts or the servers of the simulated cloud."""

    example = """  holdfast sim show
  holdfast sim show --servers --sort-column host"""
    arguments = (arg("--servers", action="store_true", help="the servers, not the hosts"),)

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
    arguments = (arg("settings", nargs="+", type=_setting, metavar="key=value"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return one(self.client.sim.change(**dict(parsed_args.settings)))


class _Fault(Base):
    """A command that breaks or repairs a part of the simulated cloud, and prints the result."""

    def do(self, args: argparse.Namespace) -> str:
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.app.stdout.write(self.do(parsed_args) + "\n")


HOST = arg("name", help="the host")
NETWORK = arg("--network", help="manage, tenant, storage, …; all of them without it")


class FailHost(_Fault):
    """Cut the power of a simulated host."""

    example = "  holdfast sim fail-host cmp-05"
    arguments = (HOST,)

    def do(self, args: argparse.Namespace) -> str:
        return self.client.sim.fail_host(args.name)


class RecoverHost(_Fault):
    """Switch a simulated host on again."""

    example = "  holdfast sim recover-host cmp-05"
    arguments = (HOST,)

    def do(self, args: argparse.Namespace) -> str:
        return self.client.sim.recover_host(args.name)


class Cut(_Fault):
    """Disconnect a simulated host from a network or from all; the servers keep running."""

    example = "  holdfast sim cut cmp-05 --network storage"
    arguments = (HOST, NETWORK)

    def do(self, args: argparse.Namespace) -> str:
        return self.client.sim.cut_host(args.name, args.network)


class Reconnect(_Fault):
    """Reconnect a simulated host after `holdfast sim cut`."""

    example = "  holdfast sim reconnect cmp-05 --network storage"
    arguments = (HOST, NETWORK)

    def do(self, args: argparse.Namespace) -> str:
        return self.client.sim.reconnect_host(args.name, args.network)


class CrashServer(_Fault):
    """Crash a simulated server."""

    example = "  holdfast sim crash-server job-01"
    arguments = (arg("server", help="name or id"),)

    def do(self, args: argparse.Namespace) -> str:
        return self.client.sim.crash_server(args.server)


def _state(host: dict[str, Any]) -> str:
    """Format power and service state: "up", "no power, still looks up", "down, forced down"."""
    service = host.get("service", {})
    state = service.get("state", "")
    words = [state]
    if not host.get("powered", True):
        words = ["no power", "still looks up" if state == "up" else state]
    words += [f"{network} cut" for network in host.get("cut", [])]
    if not service.get("enabled", True):
        words.append("disabled")
    if service.get("forced_down"):
        words.append("forced down")
    return ", ".join(word for word in words if word)
