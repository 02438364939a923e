# SPDX-License-Identifier: Apache-2.0
"""Shell lines of examples, and whether the `holdfast` commands in them exist and parse."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.cmd.client import HoldfastApp
from tests.docs.pages import reference

#: Words that end a command in a line of shell.
_ENDS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<"})


@functools.cache
def table() -> dict[str, Any]:
    found: dict[str, Any] = reference.commands()
    return found


@functools.cache
def parser(name: str) -> argparse.ArgumentParser:
    return reference.command_parser(name, table()[name])  # type: ignore[no-any-return]


@functools.cache
def _globals() -> argparse.ArgumentParser:
    return HoldfastApp().parser


def typed(text: str, prompts: bool) -> Iterator[str]:
    """Yield the commands in an example, joined over their continuation lines.

    With `prompts` only lines after `$ ` or `# ` are commands; the others are output.
    """
    lines = iter(text.splitlines())
    for line in lines:
        if prompts and not re.match(r"[$#] ", line):
            continue
        command = line[2:] if prompts else line
        while command.endswith("\\"):
            command = command[:-1] + next(lines)
        yield command


def calls(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each `holdfast` in a line of shell, of $(…) too."""
    for inner in re.findall(r"\$\(([^()]*)\)", line):
        yield from calls(inner)
    lexer = shlex.shlex(re.sub(r"\$\([^()]*\)", "VALUE", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word in _ENDS:
            found.append([])
        else:
            found[-1].append(word)
    for words in found:
        if words and words[0].rpartition("/")[2] == "holdfast":
            yield words[1:]


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the longest command name at the start, and the rest; "" if there is no command."""
    for length in range(len(words), 0, -1):
        if (name := " ".join(words[:length])) in table():
            return name, list(words[length:])
    return "", list(words)


def problem(words: Sequence[str]) -> str:
    """Return why `holdfast WORDS` is refused, or ""; nothing runs."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            _options, rest = _globals().parse_known_args(list(words))
            name, arguments = split(rest)
            if not name:
                return f"holdfast has no command `{' '.join(rest)}`"
            parser(name).parse_args(arguments)
        except SystemExit:
            return said.getvalue().strip().splitlines()[0]
    return ""


def span_problem(words: Sequence[str]) -> str:
    """Return what is wrong with a command named in prose, which may lack its arguments."""
    name, rest = split(words)
    if not name:
        bare = [word for word in words if not word.startswith("-")]
        known = any(f"{name} ".startswith(f"{' '.join(bare)} ".lstrip()) for name in table())
        return "" if known else f"holdfast has no command `{' '.join(words)}`"
    options = {*parser(name)._option_string_actions, *_globals()._option_string_actions}
    wrong = [word for word in rest if word.startswith("--") and word.split("=")[0] not in options]
    return f"`holdfast {name}` has no option {', '.join(wrong)}" if wrong else ""
