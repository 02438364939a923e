# SPDX-License-Identifier: Apache-2.0
"""What a running agent can be asked on its own machine: commands by name, each a function.

    admin = Admin()
    admin.add({"status": lambda args: {"host": "cmp-7"}})
    list(admin.answer(b'{"command": "status"}'))     # [b'{"answer": {"host": "cmp-7"}}\\n']

One line of JSON is asked, `{"command": "guests.list", "args": {…}}`; one is answered, `answer` or
`error` with `code` and `message`. A command that goes on for a while returns an iterator: an `item`
per line, then `end`. How lines come and go is `drivers/admin_socket.py`.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Generator, Mapping
from typing import Any

from holdfast.model.errors import HoldfastError, InvalidInput, NotFound

LOG = logging.getLogger(__name__)

#: None: nothing just now.
Items = Generator[Mapping[str, Any] | None, None, None]
Handler = Callable[[Mapping[str, Any]], Mapping[str, Any] | Items]


class Admin:
    """`ports.admin.Answers`; threads may share it."""

    def __init__(self) -> None:
        self._commands: dict[str, Handler] = {"commands": lambda _: {"commands": self.names}}

    def add(self, commands: Mapping[str, Handler]) -> None:
        for name, handler in commands.items():
            if name in self._commands:
                raise ValueError(f"there are two commands called {name}")
            self._commands[name] = handler

    @property
    def names(self) -> list[str]:
        return sorted(self._commands)

    def answer(self, line: bytes) -> Generator[bytes | None, None, None]:
        try:
            name, args = _asked(line)
            if name not in self._commands:
                there = ", ".join(self.names)
                raise NotFound(f"there is no command {name[:80]!r}: there are {there}")
            found = self._commands[name](args)
            if isinstance(found, Mapping):
                yield _line({"answer": found})
                return
            with contextlib.closing(found) as items:
                for item in items:
                    yield None if item is None else _line({"item": item})
            yield _line({"end": {}})
        except HoldfastError as error:
            yield self.refusal(error)
        except Exception:  # the top of a question: the next one is answered again
            LOG.exception("asked by a socket: unforeseen")
            yield self.refusal(HoldfastError("something unforeseen: the agent's log says what"))

    def refusal(self, error: HoldfastError) -> bytes:
        return _line({"error": {"code": error.code, "message": error.message}})


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _asked(line: bytes) -> tuple[str, Mapping[str, Any]]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a question is one line of JSON: {error}") from error
    if not isinstance(said, dict) or not isinstance(said.get("command"), str):
        raise InvalidInput('a question is written {"command": "status", "args": {}}')
    args = said.get("args", {})
    if not isinstance(args, dict):
        raise InvalidInput("`args` are written {…}")
    return said["command"], args


def only(args: Mapping[str, Any], *known: str) -> None:
    """InvalidInput if there are others."""
    for name in args:
        if name not in known:
            there = ", ".join(known) or "none"
            raise InvalidInput(f"`{name[:80]}` is unknown: of `args` there are {there}")


def text(args: Mapping[str, Any], name: str) -> str:
    """Empty if there is none."""
    value = args.get(name) or ""
    if not isinstance(value, str):
        raise InvalidInput(f"`{name}` is a text")
    return value
