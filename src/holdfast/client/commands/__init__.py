# SPDX-License-Identifier: Apache-2.0
"""The `holdfast` commands, one file per noun; here is what they have in common.

A command teaches: its docstring says what it does, `example` shows it done. One that works
on several objects goes on after one that fails, and ends with 1.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from cliff.columns import FormattableColumn
from cliff.command import Command
from cliff.lister import Lister
from cliff.show import ShowOne

from holdfast.client.errors import ClientError, NotFound, NotReachable, Unauthorized

if TYPE_CHECKING:
    from holdfast.client.client import Client

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
