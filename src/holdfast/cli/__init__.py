# SPDX-License-Identifier: Apache-2.0
"""The `holdfast` commands, one file per noun; here are their base classes and common options."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from cliff.columns import FormattableColumn
from cliff.command import Command
from cliff.lister import Lister
from cliff.show import ShowOne

from holdfast.client import dates, syntax
from holdfast.client.errors import ClientError, NotFound, NotReachable, Unauthorized

if TYPE_CHECKING:
    from holdfast.client.client import Client


# The `holdfast` commands, one file per noun; here is what they have in common.
#
# A command teaches: its docstring says what it does, `example` shows it done. One that works
# on several objects goes on after one that fails, and ends with 1.


_T = TypeVar("_T")
Table = tuple[tuple[str, ...], Iterable[Any]]


class HasClient(Protocol):
    """What commands ask of the application they run in."""

    @property
    def client(self) -> "Client": ...


class Base(Command):
    """A command with an example, a client, and an exit code of its own."""

    example = ""
    exit_code = 0

    @property
    def client(self) -> "Client":
        return cast(HasClient, self.app).client

    def get_epilog(self) -> str:
        return f"example:\n{self.example}" if self.example else ""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        self.parser = super().get_parser(prog_name)
        self.parser.formatter_class = argparse.RawDescriptionHelpFormatter
        return self.parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        return super().run(parsed_args) or self.exit_code

    def say(self, sentence: str) -> None:
        """Progress, on stderr; --quiet silences it."""
        self.app.LOG.info(sentence)

    def each(self, refs: Iterable[str], do: Callable[[str], _T]) -> list[_T]:
        """Do it to each; a failure is said and the rest goes on, unless all would fail."""
        done = []
        for ref in refs:
            try:
                done.append(do(ref))
            except (NotReachable, Unauthorized):
                raise
            except ClientError as error:
                self.exit_code = 1
                self.app.LOG.error("%s: %s", ref, error)
        return done

    def say_deleted(self, what: str, look: Callable[[], object]) -> None:
        """After a delete: gone, or still on its way, which one look tells."""
        try:
            look()
        except NotFound:
            self.say(f"{what} deleted")
            return
        except ClientError as error:  # the delete itself was accepted
            self.app.LOG.debug("%s: %s", what, error)
        self.say(f"{what} is being deleted; `holdfast operation list` shows how far")


class ListCommand(Base, Lister):
    """A table of many."""

    def tell(self, args: argparse.Namespace, sentence: str) -> None:
        """Beside a table it is part of the answer; JSON and the like are left alone."""
        if args.formatter == "table":
            self.app.stdout.write(sentence + "\n")
        else:
            self.say(sentence)


class ShowCommand(Base, ShowOne):
    """A table of one."""


class Moment(FormattableColumn[Any]):
    """A date of the wire: UTC to the second for people, whichever API it came from."""

    def human_readable(self) -> str:
        text = str(self._value or "")
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return text
        zoned = moment.astimezone(UTC) if moment.tzinfo else moment
        return f"{zoned:%Y-%m-%d %H:%M:%S}"


class Lines(FormattableColumn[Any]):
    """A list of objects: one line each for people."""

    def human_readable(self) -> str:
        return "\n".join(self.line(each) for each in self._value or ())

    def line(self, value: Any) -> str:
        if not isinstance(value, dict):
            return str(value)
        shown = {k: v for k, v in value.items() if v not in (None, "", [], {})}
        return ", ".join(f"{key}={each}" for key, each in shown.items())


def one(values: Mapping[str, Any], **shown: type[Lines]) -> Table:
    """Columns and data of one object; dates and lists made readable, some as `shown` says."""
    return tuple(values), [
        shown[key](value) if key in shown else _column(key, value) for key, value in values.items()
    ]


def rows(columns: tuple[str, ...], objects: Iterable[Mapping[str, Any]]) -> Table:
    """Columns and data of many; what an object lacks stays empty."""
    return columns, [tuple(_column(key, each.get(key, "")) for key in columns) for each in objects]


def _column(key: str, value: Any) -> Any:
    if key.endswith(("_date", "_at")):
        return Moment(value)
    return Lines(value) if isinstance(value, list) else value


def typed(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """An argparse type whose ValueErrors reach the user as they are."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


@typed
def pair(text: str) -> tuple[str, str]:
    """key=value"""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"{text!r} is not key=value")
    return key.strip(), value


# What is wanted, as options: hosts by their number and conditions, anything else by
# --reservation.
#
# `lease create` and `availability` ask with the same words.


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
_condition = typed(syntax.check)


@typed
def _wanted(text: str) -> dict[str, Any]:
    found = syntax.parse(text)
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
        "hypervisor_properties": syntax.expression(args.hypervisor_properties),
        "resource_properties": syntax.expression(args.where),
    }
    if before_end is not None:
        hosts["before_end"] = before_end
    return [hosts, *args.reservation]
