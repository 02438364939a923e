# SPDX-License-Identifier: Apache-2.0
"""Text for terminals, logs and spreadsheets: untrusted names made printable, audit lines as CSV."""

import csv
import io
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

# Names that strangers chose, made harmless for a terminal or a log: no control characters, no
# writing from right to left, nothing that hides in or sits on other letters.
#
#     printable("a\x1b[2Jb")     # a\x1b[2Jb, with a backslash that is one


def printable(text: str) -> str:
    """The same on one line; what cannot be shown is written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def width(text: str) -> int:
    """So many columns of a terminal does it take; of text that is printable."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def fit(text: str, columns: int) -> str:
    """Cut, or filled with blanks, to exactly so many columns; … stands for what was cut."""
    taken = width(text)
    if taken <= columns:
        return text + " " * (columns - taken)
    if columns <= 0:
        return ""
    found = "".join(_first(text, columns - 1)) + "…"
    return found + " " * (columns - width(found))


def _first(text: str, columns: int) -> Iterator[str]:
    for sign in text:
        columns -= _columns(sign)
        if columns < 0:
            return
        yield sign


def _columns(sign: str) -> int:
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1


def _shown(sign: str) -> str:
    hidden = not sign.isprintable() or unicodedata.category(sign).startswith("M")
    right_to_left = unicodedata.bidirectional(sign) in ("R", "AL", "AN")
    if hidden or right_to_left:
        return sign.encode("unicode_escape").decode()
    return sign


# A line of the audit: one decision as a sentence. As a row of a table for other programs too.


COLUMNS: Final = ("id", "at", "subject", "project_id", "actor", "request_id", "sentence")
HEAD: Final = ",".join(COLUMNS) + "\r\n"
#: What a spreadsheet would take for a formula: whoever names a lease could else compute there.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def csv_row(line: Mapping[str, Any]) -> str:
    """RFC 4180; what begins like a formula has an apostrophe before it."""
    out = io.StringIO()
    csv.writer(out).writerow(_cell(line[name]) for name in COLUMNS)
    return out.getvalue()


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
