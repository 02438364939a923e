# SPDX-License-Identifier: Apache-2.0
"""The agent's admin interface: a registry of commands, and the Unix socket that serves them.

    admin = Admin()
    admin.add({"status": lambda args: {"host": "cmp-7"}})
    list(admin.answer(b'{"command": "status"}'))     # [b'{"answer": {"host": "cmp-7"}}\\n']

A request is one line of JSON: `{"command": "guests.list", "args": {…}}`. The response is one line
too: `answer`, or `error` with `code` and `message`. A streaming command returns an iterator; the
agent sends one `item` per line, then `end`. `Admin` dispatches commands, `AdminSocket` reads
requests from the socket and writes responses. Packages register their commands: `guest_admin`,
`metrics/admin`, `metrics/plugin_manager`, `alarms/rule_manager`.
"""

import contextlib
import fcntl
import functools
import json
import logging
import os
import select
import socket
import stat
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from holdfast.model.errors import (
    Conflict,
    DriverError,
    HoldfastError,
    InvalidInput,
    NotFound,
    TooLarge,
    Unavailable,
)
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import Worker, start_call

LOG = logging.getLogger(__name__)

#: An iterator of items; None means that there is no item at this moment.
Items = Generator[Mapping[str, Any] | None, None, None]
Handler = Callable[[Mapping[str, Any]], Mapping[str, Any] | Items]


class Admin:
    """Command registry and dispatcher; thread-safe."""

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
            result = self._commands[name](args)
            if isinstance(result, Mapping):
                yield _line({"answer": result})
                return
            with contextlib.closing(result) as items:
                for item in items:
                    yield None if item is None else _line({"item": item})
            yield _line({"end": {}})
        except HoldfastError as error:
            yield self.refusal(error)
        except Exception:  # one failed request must not end the service for the next one
            LOG.exception("a request on the socket failed: unforeseen")
            yield self.refusal(HoldfastError("something unforeseen: the agent's log says what"))

    def refusal(self, error: HoldfastError) -> bytes:
        return _line({"error": {"code": error.code, "message": error.message}})


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _asked(line: bytes) -> tuple[str, Mapping[str, Any]]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a request is one line of JSON: {error}") from error
    if not isinstance(request, dict) or not isinstance(request.get("command"), str):
        raise InvalidInput('a question is written {"command": "status", "args": {}}')
    args = request.get("args", {})
    if not isinstance(args, dict):
        raise InvalidInput("`args` are written {…}")
    return request["command"], args


def only(args: Mapping[str, Any], *known: str) -> None:
    """Raise InvalidInput if `args` has a key besides `known`."""
    for name in args:
        if name not in known:
            there = ", ".join(known) or "none"
            raise InvalidInput(f"`{name[:80]}` is unknown: of `args` there are {there}")


def text(args: Mapping[str, Any], name: str) -> str:
    """Return a text argument, or "" if the request has none."""
    value = args.get(name) or ""
    if not isinstance(value, str):
        raise InvalidInput(f"`{name}` is a text")
    return value


# The Unix socket for operators on this machine: one request line, one response per connection.
#
#     AdminSocket("/run/holdfast/agent.sock", answers, clock).start()
#
# The agent works without the socket too: if it cannot open the socket it logs the error once and
# tries again every AGAIN_S seconds. The owner of the socket holds a lock file beside it. The kernel
# releases the lock when the process dies, so an agent replaces the socket of a killed process but
# never the socket of a running one.


PORT = "admin socket"
AGAIN_S = 5.0
#: How often the socket thread looks for the end of the agent.
TICK_S = 0.25


@dataclass(frozen=True)
class Limits:
    connections: int = 32
    request_bytes: int = 256 * 1024
    request_s: float = 3.0  # until the whole request has arrived
    send_s: float = 10.0  # to send one line to a client that does not read


class AdminSocket:
    """The thread that accepts connections on the admin socket; each connection gets a thread."""

    def __init__(
        self, path: str, answers: Admin, clock: Clock, limits: Limits | None = None
    ) -> None:
        self._path = path
        self._answers = answers
        self._clock = clock
        self._limits = limits or Limits()
        self._place: _Place | None = None
        self._complained = ""
        self._talking: set[Future[None]] = set()
        self._worker = Worker(f"{PORT} {path}", clock, self._turn, retry_s=TICK_S, stop_s=5.0)

    def start(self) -> None:
        """Open the socket and start the thread; if opening fails, log why and go on."""
        self._open()
        self._worker.start()

    def stop(self) -> None:
        self._worker.stop()
        wait(self._talking, timeout=2)
        if self._place is not None:
            self._place.leave()

    # accepting connections

    def _turn(self) -> float:
        """Open the socket if necessary and accept a client; return the seconds until a retry."""
        if self._place is None and not self._open():
            return AGAIN_S
        return self._let_in()

    def _open(self) -> bool:
        try:
            self._place = _Place(self._path)
        except HoldfastError as error:
            if error.message != self._complained:
                LOG.error(
                    "the admin socket does not work, the agent goes on without it: %s",
                    error.message,
                )
            self._complained = error.message
            return False
        if self._complained:
            LOG.info("%s %s: is there now", PORT, self._path)
        self._complained = ""
        return True

    def _let_in(self) -> float:
        assert self._place is not None
        try:
            caller, _ = self._place.listener.accept()
        except TimeoutError:
            return 0.0
        except OSError as error:  # for example no file descriptor left
            LOG.warning("%s %s: %s", PORT, self._path, error)
            return TICK_S
        self._talking = {talk for talk in self._talking if not talk.done()}
        if len(self._talking) >= self._limits.connections:
            with caller, contextlib.suppress(OSError):
                caller.settimeout(0)
                full = f"{self._limits.connections} are being answered: try again in a moment"
                caller.sendall(self._answers.refusal(Unavailable(full)))
            return 0.0
        self._talking.add(start_call("admin-talk", functools.partial(self._talk, caller)))
        return 0.0

    # one connection

    def _talk(self, caller: socket.socket) -> None:
        with caller:
            try:
                self._converse(caller)
            except TimeoutError:
                LOG.warning(
                    "%s: a client that read nothing for %g s is disconnected",
                    PORT,
                    self._limits.send_s,
                )
            except OSError as error:  # the client went away
                LOG.debug("%s: %s", PORT, error)
            except Exception:  # the top of the thread
                LOG.exception("%s: unforeseen", PORT)

    def _converse(self, caller: socket.socket) -> None:
        try:
            line = self._question(caller)
        except HoldfastError as error:
            self._send(caller, self._answers.refusal(error))
            return
        answer = self._answers.answer(line)
        with contextlib.closing(answer):
            for reply_line in answer:
                if self._worker.stopping.is_set():
                    self._send(caller, self._answers.refusal(Unavailable("the agent stops")))
                    return
                if reply_line is not None:
                    self._send(caller, reply_line)
                elif _gone(caller):
                    return

    def _question(self, caller: socket.socket) -> bytes:
        """Return the first line that the client sends; end of file ends the line too."""
        limits, received = self._limits, bytearray()
        until = self._clock.monotonic() + limits.request_s
        late = InvalidInput(
            f"no question came within {limits.request_s:g} s: end it with a new line"
        )
        while b"\n" not in received:
            left = until - self._clock.monotonic()
            if left <= 0:
                raise late
            caller.settimeout(left)
            try:
                got = caller.recv(64 * 1024)
            except TimeoutError:
                raise late from None
            if not got:
                break
            received += got
            if len(received) > limits.request_bytes:
                raise TooLarge(f"a question has at most {limits.request_bytes} bytes")
        return bytes(received.partition(b"\n")[0])

    def _send(self, caller: socket.socket, line: bytes) -> None:
        caller.settimeout(self._limits.send_s)
        caller.sendall(line)


def _gone(caller: socket.socket) -> bool:
    """Whether the client hung up; a client that only shut down its sending side has not."""
    poll = select.poll()
    poll.register(caller, 0)  # poll reports hang-ups and errors in any case
    return bool(poll.poll(0))


class _Place:
    """The socket file and its lock file, while this agent owns them."""

    def __init__(self, path: str) -> None:
        self._path = path
        with contextlib.ExitStack() as undo:
            try:
                os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
                self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                undo.callback(os.close, self._lock)
                self._claim()
                self.listener = undo.enter_context(socket.socket(socket.AF_UNIX))
                self.listener.bind(path)
                os.chmod(path, 0o600)  # before `listen`, so that no client can connect earlier
                self.listener.listen(128)
                self.listener.settimeout(TICK_S)
            except OSError as error:
                why = f"{path}: {error.strerror or error}: name another file by [agent] socket"
                raise DriverError(PORT, why, retryable=True) from error
            undo.pop_all()

    def _claim(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"another agent listens at {self._path}: stop it, or name another file "
                "by [agent] socket"
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self._path).st_mode):
                raise Conflict(f"{self._path} is no socket: name another file by [agent] socket")
            os.unlink(self._path)  # left by a process that died

    def leave(self) -> None:
        self.listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._lock)
