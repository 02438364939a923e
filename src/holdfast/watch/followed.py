# SPDX-License-Identifier: Apache-2.0
"""A file of the operator's that counts as it is now, without a restart. A bad one leaves what was
read before it in force, and says so once."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from holdfast.model.errors import InvalidInput
from holdfast.model.yaml_lines import MAX_BYTES

LOG = logging.getLogger(__name__)

T = TypeVar("T")
_Stamp = tuple[int, int, int] | None
#: Of no file.
_UNREAD: Final = (-1, -1, -1)


class Followed(Generic[T]):
    def __init__(
        self,
        path: str | None,
        noun: str,
        default: Callable[[], T],
        parse: Callable[[bytes, str], T],
    ) -> None:
        """InvalidInput if the file cannot be read now: at the start there is no old one."""
        self._path = path
        self._noun = noun
        self._parse = parse
        self._stamp: _Stamp = None
        self.problem = ""  # of the file as it is now
        if path is None:
            self.value = default()
        else:
            self._stamp = _stamp(path)
            self.value = self._read(path)

    def follow(self) -> bool:
        """Whether there is another one now."""
        if self._path is None:
            return False
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return False
        try:
            new = self._read(self._path)
        except InvalidInput as error:
            # what the disk does not give now it may give in a moment, with the same stamp
            self._stamp = _UNREAD if isinstance(error.__cause__, OSError) else stamp
            if error.message != self.problem:
                LOG.error("the %s before it stays in force: %s", self._noun, error.message)
            self.problem = error.message
            return False
        self._stamp = stamp
        self.problem = ""
        changed = bool(new != self.value)
        self.value = new
        LOG.info("%s read again: %s", self._path, "it is in force" if changed else "the same")
        return changed

    def _read(self, path: str) -> T:
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)  # one more than is taken
        except OSError as error:
            raise InvalidInput(f"{self._noun} file {path}: {error.strerror}") from error
        return self._parse(data, path)


def _stamp(path: str) -> _Stamp:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
