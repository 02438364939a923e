# SPDX-License-Identifier: Apache-2.0
"""The socket on which an agent is asked: real sockets, and callers that are up to no good."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually

from holdfast.agent.admin import Admin, AdminSocket, Items, Limits
from holdfast.client import admin as client
from holdfast.client.errors import NotReachable
from holdfast.model.errors import Conflict, HoldfastError, NotFound
from holdfast.runtime.clock import SystemClock

#: Whoever means well is waited for, however busy the machine.
PATIENT = Limits(connections=8, request_bytes=10_000, request_s=90.0, send_s=90.0)
QUICK = replace(PATIENT, request_s=2.0, send_s=2.0)
#: Holds the place of a socket as an agent would, until it is killed.
OWNER = """
import sys, time
from holdfast.agent.admin import AdminSocket
from holdfast.runtime.clock import SystemClock
from holdfast.agent.admin import Admin
AdminSocket(sys.argv[1], Admin(), SystemClock()).start()
print("ready", flush=True)
time.sleep(600)
"""


class Answering:
    """Commands, and how many streams of them go on."""

    def __init__(self) -> None:
        self.streams = 0
        self.admin = Admin()
        self.admin.add({"echo": dict, "no": self.no, "flood": self.flood, "idle": self.idle})

    def no(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        raise Conflict("not now")

    def flood(self, args: Mapping[str, Any]) -> Items:
        return self._stream({"text": "x" * 10_000})

    def idle(self, args: Mapping[str, Any]) -> Items:
        return self._stream(None)

    def _stream(self, item: Mapping[str, Any] | None) -> Items:
        self.streams += 1
        try:
            yield {"begins": True}
            while True:
                time.sleep(0.001 if item else 0.05)
                yield item
        finally:
            self.streams -= 1


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: the path of a socket has a hundred characters at most."""
    made = Path(tempfile.mkdtemp(prefix="hf-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def context() -> Answering:
    return Answering()


@pytest.fixture
def limits() -> Limits:
    return PATIENT


#: For tests of those who are not waited for.
quick = pytest.mark.parametrize("limits", [QUICK], ids=["quick"])


@pytest.fixture
def door(folder: Path, context: Answering, limits: Limits) -> Iterator[str]:
    path = str(folder / "made" / "agent.sock")
    made = AdminSocket(path, context.admin, SystemClock(), limits)
    made.start()
    yield path
    made.stop()
    eventually(lambda: context.streams == 0)
    eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("admin")])
    assert not Path(path).exists()


@contextlib.contextmanager
def caller(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(90)
        made.connect(path)
        yield made


def rest(client_socket: socket.socket) -> list[dict[str, Any]]:
    """All that is said until the other side hangs up."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while more := client_socket.recv(65536):
            got += more
    return [json.loads(line) for line in got.splitlines()]


def test_a_question_is_answered_and_only_its_owner_may_ask(door: str) -> None:
    assert client.ask(door, "echo", {"a": [1, "ü"]}) == {"a": [1, "ü"]}
    assert stat.S_IMODE(os.stat(door).st_mode) == 0o600
    with pytest.raises(Conflict, match="not now"):
        client.ask(door, "no")
    with pytest.raises(NotFound, match="there are commands, echo, flood, idle, no"):
        client.ask(door, "nonsense")


def test_a_request_without_a_newline_counts_at_the_end_of_the_stream(door: str) -> None:
    with caller(door) as client_socket:
        client_socket.sendall(b'{"command": "echo"}')
        client_socket.shutdown(socket.SHUT_WR)
        assert rest(client_socket) == [{"answer": {}}]


def test_a_client_that_shut_down_its_sending_side_still_gets_a_stream(
    door: str, context: Answering
) -> None:
    with caller(door) as client_socket:
        client_socket.sendall(b'{"command": "idle"}\n')
        client_socket.shutdown(socket.SHUT_WR)
        assert json.loads(client_socket.recv(4096))["item"]
        time.sleep(0.3)
        assert context.streams == 1
    eventually(lambda: context.streams == 0)  # and who has left is missed


@pytest.mark.parametrize(
    "said", [b"", b"\x00\xff\n", b"GET / HTTP/1.1\r\n\r\n", b"[" * 9_000 + b"\n"]
)
def test_a_malformed_request_is_refused_and_the_next_request_answered(
    door: str, said: bytes
) -> None:
    with caller(door) as client_socket:
        client_socket.sendall(said)
        client_socket.shutdown(socket.SHUT_WR)
        (answer,) = rest(client_socket)
        assert answer["error"]["code"] == "holdfast.request.invalid"
    assert client.ask(door, "echo") == {}


def test_a_question_without_end_is_cut_short(door: str) -> None:
    with caller(door) as client_socket:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client_socket.sendall(b"x" * 5_000_000)
        (answer,) = rest(client_socket)
    assert answer["error"]["code"] == "holdfast.request.toolarge"
    with pytest.raises(Exception, match="at most 10000 bytes"):
        client.ask(door, "echo", {"text": "x" * 1_000_000})
    assert client.ask(door, "echo") == {}


@quick
def test_a_silent_or_slow_client_is_disconnected(door: str) -> None:
    began = time.monotonic()
    with caller(door) as silent, caller(door) as dribbling:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() < began + 100:
                dribbling.sendall(b" ")
                time.sleep(0.02)
        assert time.monotonic() - began < 60
        for client_socket in (silent, dribbling):
            (answer,) = rest(client_socket)
            assert "no question came within 2 s" in answer["error"]["message"]


@quick
def test_a_client_that_does_not_read_is_disconnected_and_delays_no_other(
    door: str, context: Answering, caplog: pytest.LogCaptureFixture
) -> None:
    with caller(door) as client_socket:
        client_socket.sendall(b'{"command": "flood"}\n')
        eventually(lambda: context.streams == 1)
        eventually(lambda: answers(door))
        eventually(lambda: context.streams == 0)
        eventually(lambda: "is disconnected" in caplog.text)
        eventually(lambda: answers(door))


@quick
def test_two_hundred_simultaneous_clients_get_an_answer_or_a_retry(
    door: str, context: Answering
) -> None:
    with contextlib.ExitStack() as stack:
        crowd = []
        for number in range(200):
            one = stack.enter_context(socket.socket(socket.AF_UNIX))
            one.settimeout(90)
            _knock(one, door)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                one.sendall(b'{"command": "echo"}\n' if number % 2 else b"")
            crowd.append(one)
        said = [answer for one in crowd for answer in rest(one)]
    codes = {answer.get("error", {}).get("code", "") for answer in said}
    assert len(said) >= 190  # one who was refused at once may have lost it on the way
    assert codes <= {"", "holdfast.service.unavailable", "holdfast.request.invalid"}
    assert "holdfast.service.unavailable" in codes
    eventually(lambda: answers(door))


def _knock(one: socket.socket, door: str) -> None:
    def so() -> bool:
        try:
            one.connect(door)
        except BlockingIOError:
            return False
        return True

    eventually(so, every=0.01)


def test_a_stream_ends_when_the_agent_stops(folder: Path, context: Answering) -> None:
    path = str(folder / "agent.sock")
    made = AdminSocket(path, context.admin, SystemClock(), PATIENT)
    made.start()
    with caller(path) as client_socket:
        client_socket.sendall(b'{"command": "idle"}\n')
        eventually(lambda: context.streams == 1)
        made.stop()
        assert rest(client_socket)[-1]["error"]["message"] == "the agent stops"


@contextlib.contextmanager
def owner(path: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OWNER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == "ready\n"
            yield made
        finally:
            made.kill()


def test_the_socket_of_a_dead_agent_is_replaced_and_of_a_living_agent_kept(
    folder: Path,
    context: Answering,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.agent.admin.AGAIN_S", 0.05)
    path = str(folder / "agent.sock")
    with owner(path) as other:
        mine = AdminSocket(path, context.admin, SystemClock(), PATIENT)
        mine.start()
        try:
            assert f"another agent listens at {path}: stop it" in caplog.text
            time.sleep(0.2)
            assert client.ask(path, "commands") == {"commands": ["commands"]}  # the other's
            assert caplog.text.count("another agent") == 1
            other.kill()
            other.wait()
            eventually(lambda: answers(path))
        finally:
            mine.stop()
    assert not Path(path).exists()


def answers(path: str) -> bool:
    try:
        return client.ask(path, "echo") == {}
    except (NotReachable, HoldfastError):
        return False


def test_a_regular_file_at_the_socket_path_is_left_alone(
    folder: Path, context: Answering, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "agent.sock"
    path.write_text("precious")
    made = AdminSocket(str(path), context.admin, SystemClock(), PATIENT)
    made.start()
    made.stop()
    assert path.read_text() == "precious"
    assert "is no socket: name another file" in caplog.text


def test_an_unusable_socket_path_is_reported(
    folder: Path, context: Answering, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "file").write_text("")
    for path in (folder / "file" / "agent.sock", folder / ("x" * 200)):
        made = AdminSocket(str(path), context.admin, SystemClock(), PATIENT)
        made.start()
        made.stop()
    assert caplog.text.count("name another file by [agent] socket") == 2


# the asking side


def test_without_an_agent_the_error_names_the_next_step(folder: Path) -> None:
    with pytest.raises(NotReachable, match="start holdfast-agent, or name its socket"):
        client.ask(str(folder / "none.sock"), "status")
    stale = str(folder / "stale.sock")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(stale)
    with pytest.raises(NotReachable, match="start holdfast-agent"):
        client.ask(stale, "status")


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can become somebody else")
def test_a_caller_without_access_learns_which_account_has_access(door: str) -> None:
    os.chmod(Path(door).parent.parent, 0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(NotReachable, match="do it as root, or as the agent's own user"):
            client.ask(door, "echo")
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def stranger(path: str, says: Callable[[socket.socket], None]) -> Iterator[None]:
    """Something else that listens there."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def talk() -> None:
            one, _ = listener.accept()
            with one, contextlib.suppress(OSError):
                says(one)

        thread = threading.Thread(target=talk)
        thread.start()
        yield
        thread.join()


def read_on(one: socket.socket) -> None:
    """Until the other side hangs up."""
    while one.recv(4096):
        pass


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (lambda one: one.sendall(b"220 mail.example.org ESMTP\n"), "is not holdfast-agent"),
        (lambda one: one.sendall(b'{"item": {}}\n'), "is not holdfast-agent"),
        (lambda one: one.sendall(b"[]\n"), "is not holdfast-agent"),
        (lambda one: None, "is gone"),
        (lambda one: one.sendall(b'{"answer"'), "is gone"),
        (read_on, "does not answer within 0.3 s"),
    ],
)
def test_an_invalid_answer_is_reported_with_the_reason(
    folder: Path, says: Callable[[socket.socket], None], why: str
) -> None:
    path, timeout_s = str(folder / "other.sock"), 0.3 if "0.3 s" in why else 90.0
    with stranger(path, says), pytest.raises(NotReachable, match=why):
        client.ask(path, "status", timeout_s=timeout_s)
