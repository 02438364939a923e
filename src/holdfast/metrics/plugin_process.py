# SPDX-License-Identifier: Apache-2.0
"""Process of the metric plugins, as the agent sees it: messages, the plugin at work, the end.

    process = PluginProcess(192 * 2**20)
    process.send({"do": "begin", ...})        # never waits; False if the message did not fit
    for message in process.receive(): ...     # JSON that a plugin may have written
    process.at_work()                         # (number, index in CALLS, since) or None
    process.kill()

`plugin_child` is the other side.
"""

import contextlib
import marshal
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.metrics.plugin_child import DATA_AT, read_word, tasks

#: Longest message from the process.
MOST_BYTES: Final = 2**20
#: Seconds until a killed process has ended.
END_S: Final = 5.0
ROUNDS: Final = 100


class PluginProcess:
    """A running process of the plugins; for use by the thread that started the process.

    The process ends when this thread ends.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._memory = os.memfd_create("holdfast-plugins")
        os.ftruncate(self._memory, DATA_AT)
        self._word = mmap.mmap(self._memory, DATA_AT, prot=mmap.PROT_READ)
        self.control.setblocking(False)
        inherited = (theirs.fileno(), self._memory)
        numbers = (*inherited, os.getpid(), memory_bytes)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast.metrics.plugin_child", *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,
            )
        except OSError:
            self._close()
            raise
        finally:
            theirs.close()
        self.pid = self._popen.pid

    @property
    def code(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._popen.poll()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message without waiting; False if the process has too many unread messages."""
        try:
            self.control.send(marshal.dumps(dict(message)))
        except BlockingIOError:
            return False
        except OSError:  # the process has ended, which the next `receive` notices
            return True
        return True

    def write(self, data: bytes) -> None:
        """Write the snapshot of the next pass; the process must not be in a pass."""
        os.pwrite(self._memory, data, DATA_AT)

    def receive(self) -> Iterator[bytes]:
        """Yield the messages that are there; EOFError if the process has ended."""
        while True:
            try:
                data = self.control.recv(MOST_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            yield data

    def at_work(self) -> tuple[int, int, float] | None:
        """Return number of the plugin at work, index of its call in CALLS, and since when."""
        return read_word(self._word)

    def waited_s(self) -> float:
        """Return how long the main thread of the process has waited for a processor."""
        try:
            with open(f"/proc/{self.pid}/schedstat", "rb") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError):  # a kernel without schedstat, or the process has ended
            return 0.0

    def descendants(self, most: int) -> list[int]:
        """Return the processes that plugins have started, about `most` of them at most."""
        pids, todo = list[int](), [self.pid]
        while todo and len(pids) < most:
            more = [pid for _, started in tasks(todo.pop()) for pid in started]
            pids += more
            todo += more
        return pids

    def kill(self) -> None:
        """End the process, and all processes that plugins have started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGSTOP)  # nothing in its group can fork any more
        killed: set[int] = set()
        for _ in range(ROUNDS):  # those that left the group may fork meanwhile
            new = set(self.descendants(10_000)) - killed
            killed |= new
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not new:
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(END_S)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process; False if it still runs."""
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._close()
        return True

    def _close(self) -> None:
        self.control.close()
        self._word.close()
        if self._memory >= 0:
            os.close(self._memory)
        self._memory = -1
