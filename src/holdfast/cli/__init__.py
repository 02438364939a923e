# SPDX-License-Identifier: Apache-2.0
"""The `holdfast` commands, a file per noun; this file has the base classes and common options.

A command documents itself: the docstring says what the command does, `example` shows a call. A
command for several objects continues after a failed object and ends with exit code 1.
"""

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


_T = TypeVar("_T")
Table = tuple[tuple[str, ...], Iterable[Any]]


class HasClient(Protocol):
    """The application of a command: provides the client."""

    @property
    def client(self) -> "Client": ...


class Base(Command):
    """The base class of commands, with an example, a client and an exit code."""

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
        """Print progress on stderr; --quiet suppresses the message."""
        self.app.LOG.info(sentence)

    def each(self, refs: Iterable[str], do: Callable[[str], _T]) -> list[_T]:
        """Call `do` for each object; log a failure and continue.

        Raises NotReachable and Unauthorized, because the other objects would fail too.
        """
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
        """Report a deletion as complete or still running; `look` reads the object to find out."""
        try:
            look()
        except NotFound:
            self.say(f"{what} deleted")
            return
        except ClientError as error:  # the API has accepted the delete
            self.app.LOG.debug("%s: %s", what, error)
        self.say(f"{what} is being deleted; `holdfast operation list` shows how far")


class ListCommand(Base, Lister):
    """A command that prints a table of objects."""

    def tell(self, args: argparse.Namespace, sentence: str) -> None:
        """Print a sentence with the table; for JSON and other formats on stderr."""
        if args.formatter == "table":
            self.app.stdout.write(sentence + "\n")
        else:
            self.say(sentence)


class ShowCommand(Base, ShowOne):
    """A command that prints the fields of a single object."""


class Moment(FormattableColumn[Any]):
    """A date from the API, shown in UTC with seconds, from either API."""

    def human_readable(self) -> str:
        text = str(self._value or "")
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return text
        zoned = moment.astimezone(UTC) if moment.tzinfo else moment
        return f"{zoned:%Y-%m-%d %H:%M:%S}"


class Lines(FormattableColumn[Any]):
    """A list of objects, shown with a line for each object."""

    def human_readable(self) -> str:
        return "\n".join(self.line(each) for each in self._value or ())

    def line(self, value: Any) -> str:
        if not isinstance(value, dict):
            return str(value)
        shown = {k: v for k, v in value.items() if v not in (None, "", [], {})}
        return ", ".join(f"{key}={each}" for key, each in shown.items())


def one(values: Mapping[str, Any], **shown: type[Lines]) -> Table:
    """Return columns and data of an object, with readable dates and lists.

    `shown` names columns with a format class of their own.
    """
    return tuple(values), [
        shown[key](value) if key in shown else _column(key, value) for key, value in values.items()
    ]


def rows(columns: tuple[str, ...], objects: Iterable[Mapping[str, Any]]) -> Table:
    """Return columns and data of many objects; missing values stay empty."""
    return columns, [tuple(_column(key, each.get(key, "")) for key in columns) for each in objects]


def _column(key: str, value: Any) -> Any:
    if key.endswith(("_date", "_at")):
        return Moment(value)
    return Lines(value) if isinstance(value, list) else value


def typed(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return an argparse type that shows the text of a ValueError to the user."""

    def convert(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


@typed
def pair(text: str) -> tuple[str, str]:
    """Parse key=value"""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"{text!r} is not key=value")
    return key.strip(), value


# Options for the wanted resources, shared by `lease create` and `availability`: hosts by number
# and conditions, other resources by --reservation.


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
    """Add the options for the wanted resources."""
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
    """Return the reservations from the options; by default a single host."""
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
