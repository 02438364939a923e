# SPDX-License-Identifier: Apache-2.0
"""holdfast monitor list | register | unregister"""

import argparse
import sys
from collections.abc import Iterator

from holdfast.cli import ActOnEach, Base, ListObjects, arg
from holdfast.cli.host import Sights
from holdfast.client.client import Object, Objects


class List(ListObjects):
    """List the host monitors: registered or not, last contact, and visible networks.

    Only registered monitors vote: `holdfast monitor register`. A network that a monitor cannot
    observe is ○, with the reason: the monitor then makes no statement about hosts there. A
    monitor that is not fresh has fallen silent and does not count. `trouble` is what an
    operator has to fix: a monitor that is not registered, a Consul cluster with fewer than 3
    servers, an unusable HA matrix file, undelivered reports.
    """

    example = """  holdfast monitor list
  holdfast monitor list -f json -c observer -c fresh"""
    columns = (
        *("observer", "registered", "kind", "fresh", "seen_at", "networks", "hosts"),
        *("matrix", "trouble"),
    )

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        return self.client.monitors.list()

    def row(self, monitor: Object) -> Object:
        return {
            **monitor,
            "networks": Sights(monitor["networks"]) if monitor["networks"] else "",
            "matrix": monitor["matrix_source"],
            "trouble": "; ".join(troubles(monitor)),
        }


class Register(Base):
    """Register a host monitor as a voter, and print its token.

    The token goes into the file in the monitor's [hostmonitor] token_file. It is valid for this
    name only, and no other credential may report under this name any more. Registering a
    monitor again prints the same token. With 3 or more registered monitors, 2 must report a
    host as failed.
    """

    example = "  holdfast monitor register ctl-1 > ctl-1.token"
    arguments = (arg("observer", metavar="NAME", help="its [hostmonitor] name, or hostname"),)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        sys.stdout.write(f"{self.client.monitors.register(parsed_args.observer)}\n")


class Unregister(ActOnEach):
    """Unregister host monitors: they no longer vote, and the API refuses their tokens."""

    example = "  holdfast monitor unregister ctl-3"
    arguments = (arg("refs", nargs="+", metavar="NAME", help="as `monitor list` has it"),)

    def act(self, ref: str, args: argparse.Namespace) -> str:
        self.client.monitors.unregister(ref)
        return f"monitor {ref} unregistered"


def troubles(monitor: Object) -> Iterator[str]:
    """Yield the problems of a monitor that an operator has to fix."""
    if monitor.get("hint"):
        yield monitor["hint"]
    for name, sight in monitor["networks"].items():
        if sight.get("warning"):
            yield f"{name}: {sight['warning']}"
    if monitor.get("problem"):
        yield monitor["problem"]
    if monitor.get("waiting"):
        yield f"{monitor['waiting']} reports wait to be delivered"
    if monitor.get("parked"):
        yield f"{monitor['parked']} reports were not taken, see its log"
