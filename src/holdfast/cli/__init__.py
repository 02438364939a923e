# SPDX-License-Identifier: Apache-2.0
"""The `holdfast` commands, a file per noun; this file has the kinds of commands and common options.

A command documents itself: the docstring says what the command does, `example` shows a call,
`arguments` is the table of its arguments. A file has the rows of its commands, which are lists
(`ListObjects`), objects (`ShowObject`), actions and deletions of several objects (`ActOnEach`,
`DeleteEach`), and functions for what is special. A command for several objects continues after a
failed object and ends with exit code 1.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeVar, cast

from cliff.columns import FormattableColumn
from cliff.command import Command
from cliff.lister import Lister
from cliff.show import ShowOne

from holdfast.client import dates, syntax
from holdfast.client.errors import ClientError, NotFound, NotReachable, Unauthorized, Unavailable
from holdfast.model.errors import InvalidDocument, InvalidInput
from holdfast.runtime.text import printable

if TYPE_CHECKING:
    from holdfast.client.client import Client


_T = TypeVar("_T")
Table = tuple[tuple[str, ...], Iterable[Any]]
#: The most hosts listed by name.
MOST_NAMED = 4


class HasClient(Protocol):
    """The application of a command: provides the client."""

    @property
    def client(self) -> "Client": ...


@dataclass(frozen=True)
class Argument:
    """An argument of a command, in the words of argparse's `add_argument`."""

    names: Sequence[str]
    options: Mapping[str, Any]

    @property
    def dest(self) -> str:
        return self.options.get("dest") or self.names[0].lstrip("-").replace("-", "_")


@dataclass(frozen=True)
class Either:
    """Arguments that exclude each other."""

    arguments: Sequence[Argument]
    required: bool


Arguments = Sequence[Argument | Either]


def arg(*names: str, **options: Any) -> Argument:
    return Argument(names, options)


def either(*arguments: Argument, required: bool = False) -> Either:
    return Either(arguments, required)


def brief(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Let the parser print a line and a hint after a wrong argument, and not the whole usage."""

    def error(message: str) -> NoReturn:
        parser.exit(2, f"{parser.prog}: {message}\n{parser.prog} --help shows all arguments\n")

    parser.error = error  # type: ignore[method-assign]
    return parser


class Base(Command):
    """The base class of commands, with arguments, an example, a client and an exit code."""

    arguments: ClassVar[Arguments] = ()
    #: Arguments that become the query of a request.
    filters: ClassVar[Sequence[Argument]] = ()
    example = ""
    #: Formats of arguments, explained below the example.
    notes: ClassVar[Sequence[str]] = ()
    exit_code = 0

    @property
    def client(self) -> "Client":
        return cast(HasClient, self.app).client

    def get_epilog(self) -> str:
        return "\n".join((f"example:\n{self.example}" if self.example else "", *self.notes))

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        self.parser = brief(super().get_parser(prog_name))
        self.parser.formatter_class = argparse.RawDescriptionHelpFormatter
        for each in (*self.arguments, *self.filters):
            if isinstance(each, Argument):
                self.parser.add_argument(*each.names, **each.options)
                continue
            group = self.parser.add_mutually_exclusive_group(required=each.required)
            for argument in each.arguments:
                group.add_argument(*argument.names, **argument.options)
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

    def poll(self, read: Callable[[], _T], interval_s: float, patience: int) -> _T:
        """Wait and read; repeat while the server is unreachable, at most `patience` times."""
        for _ in range(patience - 1):
            dates.sleep(interval_s)
            try:
                return read()
            except (NotReachable, Unavailable) as error:
                self.app.LOG.debug("%s", error)
        dates.sleep(interval_s)
        return read()


class ListCommand(Base, Lister):
    """A command that prints a table of objects."""

    def note(self, args: argparse.Namespace, sentence: str) -> None:
        """Print a sentence with the table; for JSON and other formats on stderr."""
        if args.formatter == "table":
            self.app.stdout.write(sentence + "\n")
        else:
            self.say(sentence)


class ShowCommand(Base, ShowOne):
    """A command that prints the fields of a single object."""


class ListObjects(ListCommand):
    """Prints objects of the API as a table; `filters` become the query of the request."""

    columns: ClassVar[tuple[str, ...]]
    #: Columns that only --column shows.
    more_columns: ClassVar[tuple[str, ...]] = ()
    #: The most objects that the API returns without --limit; 0: all.
    most: ClassVar[int] = 0

    def fetch(self, args: argparse.Namespace, wanted: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """Return the objects; `wanted` has the values of the filters, None without a value."""
        raise NotImplementedError

    def row(self, item: dict[str, Any]) -> Mapping[str, Any]:
        """Return the values of a row by column; other values are ignored."""
        return item

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        items = list(self.fetch(parsed_args, values(self.filters, parsed_args)))
        most = self.most and (parsed_args.limit or self.most)
        if most and len(items) >= most:
            self.say(f"at most {most} are listed; --limit N lists more")
        more = tuple(name for name in self.more_columns if name in parsed_args.columns)
        return rows((*self.columns, *more), map(self.row, items))


class ShowObject(ShowCommand):
    """Prints the object that `ref` names, after an action in some commands."""

    #: The formats of fields, by name.
    formats: ClassVar[Mapping[str, type["Lines"]]] = {}

    def fetch(self, ref: str, args: argparse.Namespace) -> Mapping[str, Any]:
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return one(self.fetch(parsed_args.ref, parsed_args), **self.formats)


class ActOnEach(Base):
    """Acts on each object of `refs`, and says what happened."""

    def act(self, ref: str, args: argparse.Namespace) -> str:
        raise NotImplementedError

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.each(parsed_args.refs, lambda ref: self.say(self.act(ref, parsed_args)))


class Deletable(Protocol):
    """A resource of the client whose objects can be found and deleted."""

    def find(self, ref: str) -> dict[str, Any]: ...
    def show(self, object_id: str, /) -> dict[str, Any]: ...
    def delete(self, object_id: str, /) -> None: ...


class DeleteEach(ActOnEach):
    """Deletes each object of `refs`, and says whether the deletion is complete."""

    noun: ClassVar[str]
    #: The field with the name of an object.
    named: ClassVar[str]

    def resource(self) -> Deletable:
        raise NotImplementedError

    def act(self, ref: str, args: argparse.Namespace) -> str:
        resource = self.resource()
        item = resource.find(ref)
        resource.delete(item["id"])
        title = f"{self.noun} {item[self.named]} ({item['id']})"
        try:
            resource.show(item["id"])
        except NotFound:
            return f"{title} deleted"
        except ClientError as error:  # the API has accepted the delete
            self.app.LOG.debug("%s: %s", title, error)
        return f"{title} is being deleted; `holdfast operation list` shows how far"


def values(arguments: Iterable[Argument], args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of arguments by name; dates as the API writes them."""
    parsed, now = vars(args), dates.now()
    chosen = {argument.dest: parsed[argument.dest] for argument in arguments}
    return {
        name: value.at(now).isoformat() if isinstance(value, dates.Date) else value
        for name, value in chosen.items()
    }


@contextlib.contextmanager
def reading(name: str, form: str = "save it as plain text") -> Iterator[None]:
    """Translate the errors of reading a file, with a line for each problem of a document."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{name} is not UTF-8: {form}") from error
    except OSError as error:
        raise InvalidInput(f"cannot read {name}: {error.strerror}") from error
    except InvalidDocument as error:
        raise InvalidInput("\n".join(problem_lines(name, error))) from error


def problem_lines(name: str, error: InvalidDocument) -> Iterator[str]:
    """Format the errors of a file: matrix.yaml:7: 'dwon' is no state: write up, down or any"""
    for problem in error.problems:
        yield (
            f"{name}:{problem.line}: {problem.text}" if problem.line else f"{name}: {problem.text}"
        )


class Moment(FormattableColumn[Any]):
    """A date from either API, shown with seconds and zone: UTC, or this machine's by --local."""

    #: None: the zone of this machine. The program sets the zone at its start.
    zone: ClassVar[tzinfo | None] = UTC

    def human_readable(self) -> str:
        text = str(self._value or "")
        try:
            moment = dates.from_wire(text)
        except ValueError:
            return text
        return f"{moment.astimezone(self.zone):%Y-%m-%d %H:%M:%S %Z}"


class Untrusted(FormattableColumn[Any]):
    """Text with characters that could steer a terminal: shown with escapes."""

    def human_readable(self) -> str:
        return "\n".join(map(printable, self._value.split("\n")))

    def machine_readable(self) -> str:
        return self.human_readable() if sys.stdout.isatty() else self._value


class Lines(FormattableColumn[Any]):
    """A list of objects, shown with a line for each object."""

    def human_readable(self) -> str:
        return "\n".join(printable(self.line(each)) for each in self._value or ())

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
    if isinstance(value, str) and printable(value) != value:
        return Untrusted(value)
    return Lines(value) if isinstance(value, list) else value


def named(names: Sequence[str]) -> str:
    """Format names: cmp-1, cmp-2, cmp-3, cmp-4 and 8 more"""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


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
dates: now, +45s, +30m, +2h, +1d, +1w, today 18:00, tomorrow 9:00, 2027-01-31,
  2027-01-31 18:00[:30] (UTC), 2027-01-31T18:00+01:00"""
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
    reservation = syntax.parse(text)
    if not isinstance(reservation.get("resource_type"), str):
        raise ValueError(f"{text!r} does not say of what: write TYPE,key=value,key=value")
    return reservation


@typed
def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number: write 1 or more")
    return int(text)


RESOURCES = (
    arg("--hosts", type=count, metavar="N", help="exactly N hosts; default: 1"),
    arg("--min", type=count, metavar="N", help="at least N hosts; without --max exactly N"),
    arg("--max", type=count, metavar="N", help="at most N hosts; without --min at least 1"),
    arg(
        "--where",
        action="append",
        default=[],
        type=_condition,
        metavar="CONDITION",
        help="which hosts will do: 'vcpus>=8', gpu=True, 'rack!=rack-a', "
        "'rack in rack-a,rack-b', "
        "or a property expression in JSON; repeat it to demand more",
    ),
    arg(
        "--hypervisor-properties",
        action="append",
        default=[],
        type=_condition,
        metavar="CONDITION",
        help="the same, sent as hypervisor_properties",
    ),
    arg(
        "--reservation",
        action="append",
        default=[],
        type=_wanted,
        metavar="TYPE,KEY=VALUE,…",
        help="slots, addresses, a server, or hosts with every key there is; or the reservation as"
        " a JSON object",
    ),
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
