# SPDX-License-Identifier: Apache-2.0
"""/console/switches: where recovery is paused, what is left alone in windows of maintenance, what
operators approved; each with who, why and until when."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1 import pauses, silences
from holdfast.console import inside, pages, switch_commands
from holdfast.console.lengths import LENGTHS
from holdfast.console.pages import PREFIX, away, local, page, part
from holdfast.console.refusals import again
from holdfast.console.switch_commands import FOREVER, HOUR
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.model.incident import MATCHERS, WORK

PATH: Final = f"{PREFIX}/switches"
PAUSE, SILENCE, APPROVE = FORMS = ("pause", "silence", "approve")


def show(ask: Ask) -> Reply:
    return _page(ask)


def body(ask: Ask) -> Reply:
    return part(ask, "switches_parts.html", **_switches(ask))


def banner(ask: Ask) -> Reply:
    """That recovery stands still, above every page."""
    return part(ask, "_pauses.html", pauses=pages.pauses(ask))


def _page(ask: Ask, form: str = "", why: str = "", status: int = 200) -> Reply:
    """`form` is the one whose fields were sent: what was entered stays there, and nowhere else."""
    names = ask.services.store.cases.segment_names()
    given = {one: _named(ask.body, names) if one == form else {} for one in FORMS}
    chosen = {one["segment"] for one in given.values() if one.get("segment")}
    return page(
        ask,
        "switches.html",
        title="Switches",
        status=status,
        here=PATH,
        why=why,
        given=given,
        segments=sorted({*names.values(), *chosen}),
        kinds=list(WORK),
        commands={
            PAUSE: switch_commands.pause(given[PAUSE]),
            SILENCE: switch_commands.silence(given[SILENCE]),
            APPROVE: switch_commands.approve(given[APPROVE]),
        },
        lengths=LENGTHS,
        **_switches(ask),
    )


def _named(given: Mapping[str, str], names: Mapping[str, str]) -> Mapping[str, str]:
    """Other pages say a segment by its id; here it is chosen by name. One that is gone stays
    chosen too: instead of it nobody wants everything."""
    segment = given.get("segment", "")
    return {**given, "segment": names.get(segment, segment)}


def _switches(ask: Ask) -> dict[str, Any]:
    may = ask.may
    return {
        "stopped": inside.call(ask, pauses.index)["pauses"],
        "silences": _silences(ask) if may("holdfast:silence:list") else [],
        "approvals": ask.services.store.switches.all_approvals()
        if may("holdfast:incident:approve")
        else [],
    }


def _silences(ask: Ask) -> list[dict[str, Any]]:
    found = inside.call(ask, silences.index)["silences"]
    return [{**one, "what": _what(one)} for one in found]


def _what(silence: Mapping[str, Any]) -> str:
    """host cmp-1 and segment north"""
    said = silence["matcher"] | ({"segment": silence["segment"]} if silence["segment"] else {})
    return " and ".join(f"{name} {said[name]}" for name in MATCHERS if name in said)


def pause(ask: Ask) -> Reply:
    def do() -> str:
        said = f"paused {_where(ask)}"
        inside.call(ask, pauses.pause, body=_paused(ask.body))
        return said

    return _done(ask, PAUSE, do)


def _paused(given: Mapping[str, str]) -> dict[str, Any]:
    lasts = given.get("lasts", "")
    return {
        "reason": given.get("reason", ""),
        "duration_s": None if lasts == FOREVER else _number(lasts or HOUR),
        **({"segment": given["segment"]} if given.get("segment") else {}),
    }


def resume(ask: Ask) -> Reply:
    segment = ask.body.get("segment", "")
    query = {"segment": segment} if segment else {}

    def do() -> str:
        said = f"recovery goes on {_where(ask)}: what waited for it is asked again"
        inside.call(ask, pauses.resume, query=query)
        return said

    return _done(ask, "", do)


def _where(ask: Ask) -> str:
    segment = _named(ask.body, ask.services.store.cases.segment_names())["segment"]
    return f"in segment {segment}" if segment else "everywhere"


def approve(ask: Ask) -> Reply:
    content = {name: ask.body[name] for name in ("reason", "domain") if ask.body.get(name)}

    def do() -> str:
        inside.call(ask, pauses.approve, body=content)
        return "approved"

    return _done(ask, APPROVE, do)


def silence(ask: Ask) -> Reply:
    def do() -> str:
        inside.call(ask, silences.create, body=_silenced(ask.body))
        return "silenced: what dies there meanwhile is noted and left alone"

    return _done(ask, SILENCE, do)


def _silenced(given: Mapping[str, str]) -> dict[str, Any]:
    content: dict[str, Any] = {
        "matcher": {name: given[name].strip() for name in MATCHERS if given.get(name, "").strip()},
        "reason": given.get("reason", ""),
        "duration_s": _number(given.get("lasts") or HOUR),
    }
    if given.get("starts_at"):
        content["starts_at"] = given["starts_at"]
    return content


def unsilence(ask: Ask) -> Reply:
    own = {"silence_id": ask.path["silence_id"]}

    def do() -> str:
        inside.call(ask, silences.delete, path=own)
        return "the silence has ended"

    return _done(ask, "", do)


def _done(ask: Ask, form: str, do: Callable[[], str]) -> Reply:
    """Back to where it was asked for, with the sentence that `do` gives; what was wrong is shown
    with what was entered."""
    try:
        said = do()
    except HoldfastError as error:
        why, status = _plainly(error.message, ask.body), error.status
        return again(ask, lambda: _page(ask, form, why, status), error)
    return away(local(ask.body.get("next", PATH)), said=said)


def _plainly(message: str, given: Mapping[str, str]) -> str:
    if message.startswith("Missing parameter reason") or (
        "reason" in given and not given["reason"].strip()
    ):
        return "say why: it is kept for those who ask later"
    if message.startswith("matcher: "):
        return "say what to leave alone: a host, a segment, a server, a kind, or several of them"
    return message


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidInput("how long: choose one of the lengths")
    return int(text)
