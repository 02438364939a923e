# SPDX-License-Identifier: Apache-2.0
"""What a person can order about an incident now, and by which command; values in, values out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.model.incident import ABORTED, FAILED, HELD, HOST, LIVING, WORK

MASS_FAILURE: Final = "mass_failure"


@dataclass(frozen=True)
class Order:
    """A form with a button: where it goes, what it says, the command that does the same."""

    name: str
    label: str
    what: str
    command: Sequence[str]
    kind: str = ""
    needs_reason: bool = True
    confirm: str = ""
    hidden: Mapping[str, str] = field(default_factory=dict)  # what is sent along


def possible(
    case: Mapping[str, Any], may: Callable[[str], bool], domain: str = ""
) -> Sequence[Order]:
    """In this state, for who may; the order in which people think of them. `domain` is the rack or
    zone of its host; empty: nobody knows it."""
    rules = {name: f"holdfast:incident:{name}" for name in _ALL}
    return [one for one in _possible(case, domain) if may(rules[one.name])]


def waits_for_approval(case: Mapping[str, Any]) -> bool:
    """Whether it is held, and because so much seems to have failed."""
    return bool(case["status"] == HELD and _says_no(case) == MASS_FAILURE)


_ALL: Final = ("retry", "approve", "confirm-off", "abort")


def _possible(case: Mapping[str, Any], domain: str) -> Iterator[Order]:
    own, details = case["id"], case["details"]
    tried = case["status"] in (FAILED, ABORTED) and case["kind"] in WORK
    left = any(one["status"] == FAILED for one in case.get("servers", ()))
    if tried and (left or not details.get("back_at")):
        said = "The guards are asked again, and that the host is off must be proven anew."
        if details.get("back_at"):
            said = "The host is in use again: servers that did not leave it start there."
        yield Order("retry", "Try again", said, _command("retry", own), "main", needs_reason=False)
    if waits_for_approval(case):
        yield _approval(domain)
    if case["status"] in LIVING and case["kind"] == HOST and _lacks_proof(details):
        said = (
            "Its servers are started elsewhere on your word: if it is not off, they run twice and"
            " destroy their disks. Look at the machine, or pull the plug, before you say it."
        )
        command = _command("confirm-off", own, "--reason", "TEXT")
        sure = f"Is {case['host']} off, seen with your own eyes?"
        yield Order("confirm-off", f"{case['host']} is off", said, command, "bad", confirm=sure)
    if case["status"] in LIVING:
        said = "Nothing more is begun for it; servers that are on their way arrive."
        command = _command("abort", own, "--reason", "TEXT")
        sure = "Begin nothing more for this incident?"
        yield Order("abort", "Abort", said, command, "bad", confirm=sure)


def _approval(domain: str) -> Order:
    """It takes the guard against mass failures away, so it says where."""
    where = f"in {domain}" if domain else "everywhere"
    said = f"So much did fail {where}: what is held for that {where} goes on, for an hour."
    if not domain:
        said += " It counts for every rack, because nobody knows which one this host is in."
    command = _command("approve", *(("--domain", domain) if domain else ()), "--reason", "TEXT")
    sure = f"Let recovery go on {where}, however many hosts are down there, for an hour?"
    label = f"Approve: so much did fail {where}"
    hidden = {"domain": domain}
    return Order("approve", label, said, command, "bad", confirm=sure, hidden=hidden)


def _command(*words: str) -> Sequence[str]:
    return ("holdfast", "incident", *words)


def _says_no(case: Mapping[str, Any]) -> str:
    """The first guard that does; it decides."""
    return next((one["guard"] for one in case["verdicts"] if not one["passed"]), "")


def _lacks_proof(details: Mapping[str, Any]) -> bool:
    return not details.get("evidence") and not details.get("confirmed_off")
