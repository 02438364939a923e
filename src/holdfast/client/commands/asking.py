# SPDX-License-Identifier: Apache-2.0
"""What is wanted, as options: hosts by their number and conditions, anything else by --reservation.

`lease create` and `availability` ask with the same words.
"""

import argparse
from typing import Any

from holdfast.client import dates, reservations, where
from holdfast.client.commands import typed

DATES = """
dates: now, +45s, +30m, +2h, +1d, 2027-01-31 18:00[:30] (UTC), 2027-01-31T18:00+01:00"""
RESERVATIONS = """
reservations: TYPE,key=value,…
  virtual:instance,vcpus=2,memory_mb=4096,disk_gb=20,amount=3,affinity=false
  flavor:instance,flavor_id=m1.large,amount=2
  virtual:floatingip,network_id=9c5a…,amount=2
  virtual:server,server_id=4f2c…,on_end=shelve"""

date = typed(dates.parse)
span = typed(dates.span)
_condition = typed(where.check)


@typed
def _wanted(text: str) -> dict[str, Any]:
    found = reservations.parse(text)
    if not isinstance(found.get("resource_type"), str):
        raise ValueError(f"{text!r} does not say of what: write TYPE,key=value,key=value")
    return found


@typed
def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number: write 1 or more")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what is wanted."""
    add = parser.add_argument
    add("--hosts", type=count, metavar="N", help="exactly N hosts; default: 1")
    add("--min", type=count, metavar="N", help="at least N hosts; without --max exactly N")
    add("--max", type=count, metavar="N", help="at most N hosts; without --min at least 1")
    add(
        "--where",
        action="append",
        default=[],
        type=_condition,
        metavar="CONDITION",
        help="which hosts will do: 'vcpus>=8', gpu=True, 'rack!=rack-a', "
        "'rack in rack-a,rack-b', "
        "or a property expression in JSON; repeat it to demand more",
    )
    add(
        "--hypervisor-properties",
        action="append",
        default=[],
        type=_condition,
        metavar="CONDITION",
        help="the same, sent as hypervisor_properties",
    )
    add(
        "--reservation",
        action="append",
        default=[],
        type=_wanted,
        metavar="TYPE,KEY=VALUE,…",
        help="slots, addresses, a server, or hosts with every key there is; or the reservation as"
        " a JSON object",
    )


def asked(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The reservations that the options mean: one host, unless they say anything else."""
    before_end = getattr(args, "before_end", None)
    about_hosts = (args.hosts, args.min, args.max, args.where, args.hypervisor_properties)
    if args.reservation and not any(about_hosts) and before_end is None:
        return list(args.reservation)
    if args.hosts and (args.min or args.max):
        parser.error("--hosts N already says --min N --max N: drop one of them")
    low = args.hosts or args.min or 1
    high = args.hosts or args.max or low
    if low > high:
        parser.error(f"--min {low} is more than --max {high}")
    hosts = {
        "resource_type": "physical:host",
        "min": low,
        "max": high,
        "hypervisor_properties": where.expression(args.hypervisor_properties),
        "resource_properties": where.expression(args.where),
    }
    if before_end is not None:
        hosts["before_end"] = before_end
    return [hosts, *args.reservation]
