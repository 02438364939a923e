# SPDX-License-Identifier: Apache-2.0
"""What somebody wrote in a form, and what is wrong with it beside the line in which it is."""

from collections.abc import Sequence

from holdfast.model.matrix import BadStrategy

#: The number of a line (0: the whole text), what is wrong with it, and how it is written there.
Wrong = tuple[int, str, str]


def entered(said: str) -> str:
    """As it was written: forms end lines as the network does."""
    return said.replace("\r\n", "\n")


def by_line(text: str, error: BadStrategy) -> Sequence[Wrong]:
    lines = text.splitlines()
    return [
        (one.line, one.text, lines[one.line - 1] if 0 < one.line <= len(lines) else "")
        for one in error.problems
    ]
