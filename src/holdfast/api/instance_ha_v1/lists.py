# SPDX-License-Identifier: Apache-2.0
"""What every list of the contract takes: limit, marker, sort keys and directions, filters."""

from collections.abc import Sequence
from typing import Any

from holdfast.api.ask import Ask
from holdfast.model.errors import InvalidInput
from holdfast.model.segment import truth
from holdfast.store.pages import MOST, Page

_ALWAYS = ("created_at", "id")


def page(ask: Ask) -> Page:
    """Unknown parameters are left aside, as the contract has it."""
    return Page(_limit(ask.query.get("limit")), ask.query.get("marker"), _sort(ask))


def filters(ask: Ask, texts: Sequence[str], flags: Sequence[str] = ()) -> dict[str, Any]:
    """What the query asks for by name; words of flags must mean true or false."""
    found: dict[str, Any] = {name: ask.query[name] for name in texts if name in ask.query}
    return found | {name: truth(ask.query[name], name) for name in flags if name in ask.query}


def _limit(text: str | None) -> int:
    if text is None:
        return MOST
    try:
        wanted = int(text) if len(text) < 19 else -1
    except ValueError:
        wanted = -1
    if wanted < 0:
        raise InvalidInput(f"limit: {text[:40]!r} is not a number from 0 on")
    return min(wanted, MOST)


def _sort(ask: Ask) -> tuple[tuple[str, bool], ...]:
    """Newest first. Keys without a direction go as the first direction says."""
    keys, words = list(ask.every.get("sort_key", [])), list(ask.every.get("sort_dir", []))
    for word in words:
        if word not in ("asc", "desc"):
            raise InvalidInput(f"sort_dir: {word[:40]!r} is neither asc nor desc")
    keys = keys or ["created_at"]
    if len(words) > len(keys):
        raise InvalidInput("sort_dir: there are more directions than keys; name one for each")
    usual = words[0] if words else "desc"
    words += [usual] * (len(keys) - len(words))
    more = [(key, usual) for key in _ALWAYS if key not in keys]
    return tuple((key, word == "desc") for key, word in [*zip(keys, words, strict=True), *more])
