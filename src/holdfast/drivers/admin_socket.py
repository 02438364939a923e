# SPDX-License-Identifier: Apache-2.0
"""A Unix socket on which people on this machine ask a running program: one line, one answer.

    AdminSocket("/run/holdfast/agent.sock", answers, clock).start()

It is only a way to ask: a program that cannot have its socket does its work all the same, says so
once and tries again. Who owns the socket owns a lock beside it, which the kernel takes from the
dead: what a killed program left behind is replaced, what a living one uses is not.
"""

import contextlib
import fcntl
import logging
import os
import select
import socket
import stat
import threading
from dataclasses import dataclass

from holdfast.model.errors import (
    Conflict,
    DriverError,
    HoldfastError,
    InvalidInput,
    TooLarge,
    Unavailable,
)
from holdfast.ports.admin import Answers
from holdfast.ports.clock import Clock

LOG = logging.getLogger(__name__)

PORT = "admin socket"
AGAIN_S = 5.0
#: How often a thread that waits for people looks whether it shall end.
TICK_S = 0.25


@dataclass(frozen=True)
class Limits:
    connections: int = 32
    request_bytes: int = 256 * 1024
    request_s: float = 3.0  # until the question is there
    send_s: float = 10.0  # for one line, to one who does not read


class AdminSocket:
    def __init__(
        self, path: str, answers: Answers, clock: Clock, limits: Limits | None = None
    ) -> None:
        self._path = path
        self._answers = answers
        self._clock = clock
        self._limits = limits or Limits()
        self._stop = threading.Event()
        self._place: _Place | None = None
        self._complained = ""
        self._talking: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._forever, name="admin", daemon=True)

    def start(self) -> None:
        """It is there when this returns, or the log says why not."""
        self._open()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        for talk in list(self._talking):
            talk.join(timeout=2)
        if self._place is not None:
            self._place.leave()

    # the door

    def _forever(self) -> None:
        while not self._stop.is_set():
            try:
                if self._place is None and not self._open():
                    self._clock.wait(self._stop, AGAIN_S)
                else:
                    self._let_in()
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("%s %s: unforeseen", PORT, self._path)
                self._clock.wait(self._stop, TICK_S)

    def _open(self) -> bool:
        try:
            self._place = _Place(self._path)
        except HoldfastError as error:
            if error.message != self._complained:
                LOG.error("nobody can ask us, all else goes on: %s", error.message)
            self._complained = error.message
            return False
        if self._complained:
            LOG.info("%s %s: is there now", PORT, self._path)
        self._complained = ""
        return True

    def _let_in(self) -> None:
        assert self._place is not None
        try:
            caller, _ = self._place.listener.accept()
        except TimeoutError:
            return
        except OSError as error:  # no descriptor left, or the like
            LOG.warning("%s %s: %s", PORT, self._path, error)
            self._clock.wait(self._stop, TICK_S)
            return
        self._talking = {one for one in self._talking if one.is_alive()}
        if len(self._talking) >= self._limits.connections:
            with caller, contextlib.suppress(OSError):
                caller.settimeout(0)
                full = f"{self._limits.connections} are being answered: try again in a moment"
                caller.sendall(self._answers.refusal(Unavailable(full)))
            return
        talk = threading.Thread(target=self._talk, args=(caller,), name="admin-talk", daemon=True)
        self._talking.add(talk)
        talk.start()

    # one conversation

    def _talk(self, caller: socket.socket) -> None:
        with caller:
            try:
                self._converse(caller)
            except TimeoutError:
                LOG.warning(
                    "%s: one who read nothing for %g s is cut off", PORT, self._limits.send_s
                )
            except OSError as error:  # it went away
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
            for said in answer:
                if self._stop.is_set():
                    self._send(caller, self._answers.refusal(Unavailable("the agent stops")))
                    return
                if said is not None:
                    self._send(caller, said)
                elif _gone(caller):
                    return

    def _question(self, caller: socket.socket) -> bytes:
        """Its first line; the end of what is said is the end of a line too."""
        limits, said = self._limits, bytearray()
        until = self._clock.monotonic() + limits.request_s
        late = InvalidInput(
            f"no question came within {limits.request_s:g} s: end it with a new line"
        )
        while b"\n" not in said:
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
            said += got
            if len(said) > limits.request_bytes:
                raise TooLarge(f"a question has at most {limits.request_bytes} bytes")
        return bytes(said.partition(b"\n")[0])

    def _send(self, caller: socket.socket, line: bytes) -> None:
        caller.settimeout(self._limits.send_s)
        caller.sendall(line)


def _gone(caller: socket.socket) -> bool:
    """One that only has nothing more to say is still there."""
    poll = select.poll()
    poll.register(caller, 0)  # hang-ups and errors are told anyway
    return bool(poll.poll(0))


class _Place:
    """The socket in the file system, while it is ours."""

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
                os.chmod(path, 0o600)  # before anybody can reach it
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
                f"another agent that runs is asked at {self._path}: stop it, or name another file "
                "by [agent] socket"
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self._path).st_mode):
                raise Conflict(f"{self._path} is no socket: name another file by [agent] socket")
            os.unlink(self._path)  # of one that died

    def leave(self) -> None:
        self.listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._lock)
