# SPDX-License-Identifier: Apache-2.0
"""A line of the audit: one decision as a sentence. As a row of a table for other programs too."""

import csv
import io
from collections.abc import Mapping
from typing import Any, Final

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
