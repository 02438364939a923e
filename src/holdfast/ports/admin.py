# SPDX-License-Identifier: Apache-2.0
"""Questions that people on its own machine put to a running program, and their answers."""

from collections.abc import Generator
from typing import Protocol

from holdfast.model.errors import HoldfastError


class Answers(Protocol):
    def answer(self, line: bytes) -> Generator[bytes | None, None, None]:
        """Lines to be sent, one after the other; None: nothing just now, is anybody there still?
        Close it when nobody is. What is wrong with the question is an answer too."""
        ...

    def refusal(self, error: HoldfastError) -> bytes:
        """The line that says why there is no answer."""
        ...
