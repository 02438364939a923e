# SPDX-License-Identifier: Apache-2.0
"""Styles and scripts, of our own and nobody else's. Their addresses name what is in them, so that a
browser keeps them for as long as they stay the same."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from holdfast.api.ask import Ask, Reply
from holdfast.model.errors import NotFound

_FOLDER = Path(__file__).parent / "static"
_KINDS: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def _files() -> Mapping[str, bytes]:
    return {one.name: one.read_bytes() for one in _FOLDER.iterdir() if one.suffix in _KINDS}


@cache
def address(name: str) -> str:
    return f"/console/static/{name}?v={hashlib.sha256(_files()[name]).hexdigest()[:12]}"


def show(ask: Ask) -> Reply:
    name = ask.path["name"]
    if name not in _files():
        raise NotFound(f"there is no file {name}")
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'",
    }
    return Reply(_files()[name], headers=headers, content_type=_KINDS[Path(name).suffix])
