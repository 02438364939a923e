# SPDX-License-Identifier: Apache-2.0
"""`holdfast`: the command-line client and the operator commands.

Commands are entry points in `holdfast.commands` and are imported on use. A command that cannot be
imported reports that and does not affect other commands. Exit codes: 0 success, 1 failure, 2 wrong
usage, 130 interrupted, 141 output pipe closed.
"""

import argparse
import contextlib
import importlib.metadata
import itertools
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC
from functools import cached_property
from typing import Any

from cliff.app import App
from cliff.command import Command
from cliff.commandmanager import CommandManager, EntryPointWrapper

from holdfast import __version__
from holdfast.cli import Moment, brief
from holdfast.client.auth import read_password
from holdfast.client.client import Client
from holdfast.client.errors import ClientError
from holdfast.runtime.text import printable

NAMESPACE = "holdfast.commands"
INTERRUPTED = 130
PIPE_CLOSED = 141


class LazyCommand(EntryPointWrapper):
    """A command known by name; `load` imports the module."""

    def __init__(self, entry: importlib.metadata.EntryPoint) -> None:
        self.name = entry.name
        self.entry = entry

    def load(self) -> type[Command]:
        try:
            command: type[Command] = self.entry.load()
        except Exception as error:  # a broken module may raise anything
            return _unavailable(self.name, error)
        return command

    @property
    def value(self) -> str:
        return self.entry.value


class Commands(CommandManager):
    """Lists commands without importing modules; cliff's own manager would import all."""

    def load_commands(self, namespace: str) -> None:
        self.group_list.append(namespace)
        for entry in importlib.metadata.entry_points(group=namespace):
            self.commands.setdefault(entry.name, LazyCommand(entry))


def _unavailable(name: str, cause: Exception) -> type[Command]:
    """Return a placeholder for a command whose module cannot be imported."""

    class Unavailable(Command):
        _description = f"(not available here: {cause})"

        def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
            parser = super().get_parser(prog_name)
            parser.prefix_chars = "\0"  # the command's options are unknown: accept all
            parser.add_argument("rest", nargs="*")
            return parser

        def take_action(self, parsed_args: argparse.Namespace) -> None:
            raise RuntimeError(
                f"`holdfast {name}` is not available here: {cause}; is all of Holdfast installed?"
            ) from cause

    return Unavailable


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


class HoldfastApp(App):
    """The cliff application: global options, and the HTTP client of all commands."""

    NAME = "holdfast"
    LOG = logging.getLogger(NAME)

    def __init__(self) -> None:
        super().__init__(
            description="Reserve compute, and look after it. `holdfast lease create --help`"
            " shows how to begin.",
            version=__version__,
            command_manager=Commands(NAMESPACE),
            deferred_help=True,
        )
        self.command_manager.add_command("complete", Complete)

    def build_option_parser(
        self,
        description: str | None,
        version: str | None,
        argparse_kwargs: dict[str, Any] | None = None,
    ) -> argparse.ArgumentParser:
        # abbreviations would swallow options of the commands
        kwargs = {"allow_abbrev": False, "prog": self.NAME, **(argparse_kwargs or {})}
        parser = super().build_option_parser(description, version, kwargs)
        for action in parser._actions:
            if "--version" in action.option_strings:
                action.version = f"{self.NAME} {version}"  # type: ignore[attr-defined]
        parser.add_argument(
            "--url", help="the server; default: HOLDFAST_URL, or http://127.0.0.1:8780"
        )
        parser.add_argument("--user", help="who you are; default: HOLDFAST_USER")
        parser.add_argument(
            "--password-file",
            metavar="FILE",
            help="its first line is the password; default: HOLDFAST_PASSWORD,"
            " or the file HOLDFAST_PASSWORD_FILE",
        )
        parser.add_argument(
            "--local", action="store_true", help="show times in this machine's zone, not in UTC"
        )
        return brief(parser)

    @cached_property
    def client(self) -> Client:
        """Create the client on first use, because many commands need none."""
        path = self.options.password_file
        return Client(
            self.options.url,
            user=self.options.user,
            password=read_password(path) if path else None,
        )

    def initialize_app(self, argv: list[str]) -> None:
        Moment.zone = None if self.options.local else UTC
        if not self.options.debug:
            # the command's own error message repeats keystoneauth's warnings
            logging.getLogger("keystoneauth").setLevel(logging.ERROR)
        if not argv:
            # without a command: show the help, not cliff's interactive shell
            self.interactive_mode = False
            argv.append("help")
        if argv[0] == "help":
            # `lease create x --end +1h --help` asks for help with `lease create x`
            argv[:] = itertools.takewhile(lambda word: not word.startswith("-"), argv)

    def configure_logging(self) -> None:
        """Log as cliff does, but with the control characters of untrusted names escaped."""
        super().configure_logging()
        logging.root.handlers[-1].setFormatter(_Printable(self.CONSOLE_MESSAGE_FORMAT))

    def get_fuzzy_matches(self, cmd: str) -> list[str]:
        of_the_noun = [name for name, _ in self.command_manager if name.split()[0] == cmd]
        return sorted(of_the_noun) or super().get_fuzzy_matches(cmd)

    def clean_up(self, cmd: Command, result: int, err: BaseException | None) -> None:
        if "client" in self.__dict__:
            self.client.close()


# Completion: the script of a shell asks `holdfast complete --words` for each word, which reads the
# entry points, and the parser of a single command.


_SCRIPTS = {
    "bash": """_holdfast() {
  local IFS=$'\\n'
  COMPREPLY=($(holdfast complete --words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _holdfast holdfast
""",
    "fish": """complete -c holdfast -f -a '(holdfast complete --words \\
  (commandline -opc)[2..-1] (commandline -ct | string collect --allow-empty) 2>/dev/null)'
""",
    "zsh": """#compdef holdfast
_holdfast() {
  local -a found
  found=("${(@f)$(holdfast complete --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compadd -a found
}
compdef _holdfast holdfast
""",
}
#: Names that a shell takes as they are; others are not offered.
_PLAIN = re.compile(r"[\w.:@%+,/-]+")


class Complete(Command):
    """Print the script that completes `holdfast` commands in a shell."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = brief(super().get_parser(prog_name))
        parser.add_argument("--shell", choices=sorted(_SCRIPTS), default="bash")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.app.stdout.write(_SCRIPTS[parsed_args.shell])


def completions(words: Sequence[str]) -> list[str]:
    """Return what the last word may become: commands, options, choices, and names."""
    *before, current = words or [""]
    app = HoldfastApp()
    app.options, before = app.parser.parse_known_args(before)
    names = [name.split() for name, _ in app.command_manager]
    known = {name[len(before)] for name in names if name[: len(before)] == before != name}
    command = max((n for n in names if n and before[: len(n)] == n), key=len, default=[])
    if command:
        known |= set(_arguments(app, " ".join(command), before[len(command) :], current))
    return sorted(word for word in known if word.startswith(current) and _PLAIN.fullmatch(word))


def _arguments(app: HoldfastApp, name: str, before: Sequence[str], current: str) -> Iterator[str]:
    factory: Any = app.command_manager.commands[name].load()
    actions = factory(app, None).get_parser(name)._actions
    options = {text: action for action in actions for text in action.option_strings}
    if current.startswith("-"):
        yield from options
        return
    last = options.get(before[-1]) if before else None
    if last is not None and last.nargs != 0:
        wanted = [last]
    else:
        wanted = [action for action in actions if not action.option_strings]
    for action in wanted:
        yield from map(str, action.choices or ())
        noun = action.metavar if isinstance(action.metavar, str) else action.dest
        with contextlib.suppress(ClientError):
            if "lease" in (action.dest, noun.lower()):
                yield from (lease["name"] for lease in app.client.leases.list())
            if "host" in (action.dest, noun.lower()):
                yield from (host["hypervisor_hostname"] for host in app.client.hosts.list())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    handlers = logging.root.handlers[:]
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:2] == ["complete", "--words"]:
            sys.stdout.writelines(f"{word}\n" for word in completions(words[2:]))
            code = 0
        else:
            code = HoldfastApp().run(words)
        sys.stdout.flush()
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(bool(exit.code))
    except BrokenPipeError:
        code = PIPE_CLOSED
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        logging.root.handlers[:] = handlers
    if code == PIPE_CLOSED:
        _close_stdout()
    return code


def _close_stdout() -> None:
    """Redirect stdout to /dev/null, to avoid the interpreter's error about the closed pipe."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
