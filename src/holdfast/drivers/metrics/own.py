# SPDX-License-Identifier: Apache-2.0
"""What this process takes of its host: memory, and the time that its threads have to wait."""

import contextlib
import os
import time


class OwnProcess:
    """`plugin_limits.Own`."""

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def rss(self) -> int:
        """In bytes; takes a few microseconds."""
        return int(os.pread(self._file, 128, 0).split()[1]) * self._page

    def waits(self) -> "OwnWaits":
        return OwnWaits()

    def close(self) -> None:
        os.close(self._file)


class OwnWaits:
    """`plugin_limits.Waits` of the thread that makes it."""

    def __init__(self) -> None:
        self._file = -1
        with contextlib.suppress(OSError):  # a kernel that does not count it
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def seconds(self) -> float:
        """In the queue for a processor; and what other threads ran meanwhile, for they may have had
        the interpreter."""
        others_s = time.process_time() - time.thread_time()
        if self._file < 0:
            return others_s
        return others_s + int(os.pread(self._file, 128, 0).split()[1]) / 1e9

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
