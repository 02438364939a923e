# SPDX-License-Identifier: Apache-2.0
"""Text for terminals, logs and spreadsheets: untrusted names made printable, audit lines as CSV."""

import csv
import io
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

# Untrusted names for a terminal or a log: escape control characters, right-to-left letters, and
# combining or invisible characters.
#
#     printable("a\x1b[2Jb")     # a\x1b[2Jb, with a literal backslash


def printable(text: str) -> str:
    """Return the text on one line, with unsafe characters as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def width(text: str) -> int:
    """Return the number of terminal columns of printable text."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def fit(text: str, columns: int) -> str:
    """Cut or pad text to exactly `columns` columns; … marks a cut."""
    taken = width(text)
    if taken <= columns:
        return text + " " * (columns - taken)
    if columns <= 0:
        return ""
    cut = "".join(_first(text, columns - 1)) + "…"
    return cut + " " * (columns - width(cut))


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


# Audit lines as CSV.


COLUMNS: Final = ("id", "at", "subject", "project_id", "actor", "request_id", "sentence")
HEAD: Final = ",".join(COLUMNS) + "\r\n"
#: A spreadsheet takes a cell that begins like this for a formula, and users choose lease names.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def csv_row(line: Mapping[str, Any]) -> str:
    """Return an audit line as CSV (RFC 4180), with an apostrophe before formula-like cells."""
    out = io.StringIO()
    csv.writer(out).writerow(_cell(line[name]) for name in COLUMNS)
    return out.getvalue()


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
