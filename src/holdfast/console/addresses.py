# SPDX-License-Identifier: Apache-2.0
"""Addresses of pages with what was asked of them; without anything there is no question mark."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode


def address(path: str, query: Mapping[str, str] | Sequence[tuple[str, str]]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
