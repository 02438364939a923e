# SPDX-License-Identifier: Apache-2.0
"""Files of /proc and /sys that are read again and again: opened once, read from the beginning.

    files = Files()
    files.read("/proc/4711/stat")     # None once the process has gone

Reading one that is open already costs a third of opening it each time. Of more than a share of what
the process may have open nothing is kept; then it costs more, and works.
"""

import os
import resource
from typing import Final

#: The share of the files we may have open that is spent on this.
SHARE: Final = 0.5
BLOCK: Final = 1024
LARGE: Final = 65536


class Files:
    """One thread at a time."""

    def __init__(self, most: int | None = None) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = int(soft * SHARE) if most is None else most
        self._open: dict[str, int] = {}

    def read(self, path: str, size: int = BLOCK) -> bytes | None:
        """The first `size` bytes; None if it is not there, or no longer."""
        number = self._open.get(path)
        try:
            if number is None:
                number = self._opened(path)
            if number is None:
                return _once(path, size)
            return os.pread(number, size, 0)
        except OSError:
            self.forget(path)
            return None

    def read_all(self, path: str) -> bytes | None:
        """Of a file longer than what the kernel gives at a time."""
        found = self.read(path, LARGE)
        number = self._open.get(path)
        if not found or number is None:
            return found
        try:
            while more := os.pread(number, LARGE, len(found)):
                found += more
        except OSError:
            self.forget(path)
            return None
        return found

    def forget(self, path: str) -> None:
        number = self._open.pop(path, None)
        if number is not None:
            os.close(number)

    def close(self) -> None:
        for path in list(self._open):
            self.forget(path)

    def _opened(self, path: str) -> int | None:
        if len(self._open) >= self._most:
            return None
        number = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return number


def _once(path: str, size: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        found = b""
        while len(found) < size and (more := file.read(size - len(found))):
            found += more
        return found
