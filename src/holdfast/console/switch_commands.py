# SPDX-License-Identifier: Apache-2.0
"""The command that does the same as a form of switches, as it is filled in; static/commands.js
says the same of what is chosen later. Values in, values out.

>>> pause({"segment": "north", "lasts": "forever"})
['holdfast', 'incident', 'pause', '--segment', 'north', '--for', 'forever', '--reason', 'TEXT']
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from holdfast.console.lengths import LENGTHS

Given = Mapping[str, str]
FOREVER: Final = "forever"
#: What is chosen at first, in seconds.
HOUR: Final = "3600"
_WORDS: Final[Mapping[str, str]] = {seconds: word for seconds, word, _ in LENGTHS} | {
    FOREVER: FOREVER
}
#: In the order in which the form asks for them.
_NAMED: Final = ("host", "segment", "kind", "server")


def pause(given: Given) -> list[str]:
    where = [("--segment", given.get("segment", ""))]
    return _line(["holdfast", "incident", "pause"], [*where, *_lasts(given), *_why(given)])


def silence(given: Given) -> list[str]:
    """All that is named; something must be."""
    named = [(f"--{name}", given.get(name, "").strip()) for name in _NAMED]
    if not any(value for _, value in named):
        named = [("--host", "HOST")]
    begins = [("--from", given.get("starts_at", ""))]
    options = [*named, *begins, *_lasts(given), *_why(given)]
    return _line(["holdfast", "silence", "add"], options)


def approve(given: Given) -> list[str]:
    where = [("--domain", given.get("domain", "").strip())]
    return _line(["holdfast", "incident", "approve"], [*where, *_why(given)])


def _lasts(given: Given) -> Iterator[tuple[str, str]]:
    yield "--for", _WORDS.get(given.get("lasts", HOUR), _WORDS[HOUR])


def _why(given: Given) -> Iterator[tuple[str, str]]:
    yield "--reason", given.get("reason", "").strip() or "TEXT"


def _line(words: list[str], options: Sequence[tuple[str, str]]) -> list[str]:
    """What is empty is left out; what would be taken for an option is tied to its own."""
    for name, value in options:
        if value.startswith("-"):
            words.append(f"{name}={value}")
        elif value:
            words += [name, value]
    return words
