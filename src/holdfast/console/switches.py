# SPDX-License-Identifier: Apache-2.0
"""/console/switches: pauses of recovery, maintenance windows and approvals of mass failures.

Each entry shows author, reason and end.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.api.holdfast_v1 import switches
from holdfast.api.request import Request, Response
from holdfast.console import api_calls, pages
from holdfast.console.format import LENGTHS
from holdfast.console.pages import PREFIX, again, away, local, page, part, whole_number
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.model.incident import MATCHERS, WORK

# The commands equal to the forms, as filled in; static/commands.js updates them when the user
# changes a field. Pure.
#
# >>> pause_command({"segment": "north", "lasts": "forever"})
# ['holdfast', 'recovery', 'pause', '--segment', 'north', '--for', 'forever', '--reason', 'TEXT']


Given = Mapping[str, str]
FOREVER: Final = "forever"
#: The preselected duration in seconds.
HOUR: Final = "3600"
_DURATIONS: Final[Mapping[str, str]] = {seconds: word for seconds, word, _ in LENGTHS} | {
    FOREVER: FOREVER
}
#: In the order of the form.
_NAMED: Final = ("host", "segment", "kind", "server")


def pause_command(fields: Given) -> list[str]:
    where = [("--segment", fields.get("segment", ""))]
    return _line(["holdfast", "recovery", "pause"], [*where, *_lasts(fields), *_why(fields)])


def maintenance_command(fields: Given) -> list[str]:
    """Return the command for a maintenance window.

    A window must match something, so without a matcher the command shows a placeholder host.
    """
    named = [(f"--{name}", fields.get(name, "").strip()) for name in _NAMED]
    if not any(value for _, value in named):
        named = [("--host", "HOST")]
    begins = [("--from", fields.get("starts_at", ""))]
    options = [*named, *begins, *_lasts(fields), *_why(fields)]
    return _line(["holdfast", "maintenance", "add"], options)


def approve_command(fields: Given) -> list[str]:
    where = [("--domain", fields.get("domain", "").strip())]
    return _line(["holdfast", "recovery", "approve"], [*where, *_why(fields)])


def _lasts(fields: Given) -> Iterator[tuple[str, str]]:
    yield "--for", _DURATIONS.get(fields.get("lasts", HOUR), _DURATIONS[HOUR])


def _why(fields: Given) -> Iterator[tuple[str, str]]:
    yield "--reason", fields.get("reason", "").strip() or "TEXT"


def _line(words: list[str], options: Sequence[tuple[str, str]]) -> list[str]:
    """Append the options that have values.

    A value with a leading dash is joined to its option by `=`, so the parser does not take it
    for an option.
    """
    for name, value in options:
        if value.startswith("-"):
            words.append(f"{name}={value}")
        elif value:
            words += [name, value]
    return words


PATH: Final = f"{PREFIX}/switches"
PAUSE, MAINTENANCE, APPROVE = FORMS = ("pause", "maintenance", "approve")


def show(request: Request) -> Response:
    return _page(request)


def body(request: Request) -> Response:
    return part(request, "switches_parts.html", **_switches(request))


def banner(request: Request) -> Response:
    """Render the notice of paused recovery, which every page shows at the top."""
    return part(request, "_pauses.html", pauses=pages.pauses(request))


def _page(request: Request, form: str = "", why: str = "", status: int = 200) -> Response:
    """Render the page. `form` is the submitted form: only this form keeps the entered values."""
    names = request.services.store.incident_queries.segment_names()
    entered = {name: _named(request.body, names) if name == form else {} for name in FORMS}
    chosen = {fields["segment"] for fields in entered.values() if fields.get("segment")}
    return page(
        request,
        "switches.html",
        title="Switches",
        status=status,
        here=PATH,
        why=why,
        given=entered,
        segments=sorted({*names.values(), *chosen}),
        kinds=list(WORK),
        commands={
            PAUSE: pause_command(entered[PAUSE]),
            MAINTENANCE: maintenance_command(entered[MAINTENANCE]),
            APPROVE: approve_command(entered[APPROVE]),
        },
        lengths=LENGTHS,
        **_switches(request),
    )


def _named(fields: Mapping[str, str], names: Mapping[str, str]) -> Mapping[str, str]:
    """Replace a segment id, as other pages send it, by the segment's name.

    A deleted segment stays selected, so that the action does not apply everywhere instead.
    """
    segment = fields.get("segment", "")
    return {**fields, "segment": names.get(segment, segment)}


def _switches(request: Request) -> dict[str, Any]:
    may = request.allowed
    return {
        "active_pauses": api_calls.call(request, switches.list_pauses)["pauses"],
        "windows": _windows(request) if may("holdfast:maintenance:list") else [],
        "approvals": request.services.store.switches.all_approvals()
        if may("holdfast:incident:approve")
        else [],
    }


def _windows(request: Request) -> list[dict[str, Any]]:
    windows = api_calls.call(request, switches.list_windows)["maintenance_windows"]
    return [{**window, "scope": _what(window)} for window in windows]


def _what(window: Mapping[str, Any]) -> str:
    """Describe the matcher of a maintenance window: host cmp-1 and segment north"""
    matcher = window["matcher"] | ({"segment": window["segment"]} if window["segment"] else {})
    return " and ".join(f"{name} {matcher[name]}" for name in MATCHERS if name in matcher)


def pause(request: Request) -> Response:
    def do() -> str:
        message = f"recovery paused {_where(request)}"
        api_calls.call(request, switches.pause, body=_paused(request.body))
        return message

    return _done(request, PAUSE, do)


def _paused(fields: Mapping[str, str]) -> dict[str, Any]:
    lasts = fields.get("lasts", "")
    return {
        "reason": reason(fields),
        "duration_s": None if lasts == FOREVER else _seconds(lasts or HOUR),
        **({"segment": fields["segment"]} if fields.get("segment") else {}),
    }


def resume(request: Request) -> Response:
    segment = request.body.get("segment", "")
    query = {"segment": segment} if segment else {}

    def do() -> str:
        message = f"recovery resumed {_where(request)}: held incidents are evaluated again"
        api_calls.call(request, switches.resume, query=query)
        return message

    return _done(request, "", do)


def _where(request: Request) -> str:
    segment = _named(request.body, request.services.store.incident_queries.segment_names())[
        "segment"
    ]
    return f"in segment {segment}" if segment else "everywhere"


def approve(request: Request) -> Response:
    domain = request.body.get("domain")

    def do() -> str:
        content = {"reason": reason(request.body)} | ({"domain": domain} if domain else {})
        api_calls.call(request, switches.approve, body=content)
        return "mass failure approved for 1 hour"

    return _done(request, APPROVE, do)


def maintenance(request: Request) -> Response:
    def do() -> str:
        api_calls.call(request, switches.create_window, body=_new_window(request.body))
        return "maintenance window added: Holdfast records failures there and does not recover them"

    return _done(request, MAINTENANCE, do)


def _new_window(fields: Mapping[str, str]) -> dict[str, Any]:
    matcher = {name: fields[name].strip() for name in MATCHERS if fields.get(name, "").strip()}
    if not matcher:
        raise InvalidInput(
            "scope: name a host, a segment, a server, an incident kind, or several of them"
        )
    content: dict[str, Any] = {
        "matcher": matcher,
        "reason": reason(fields),
        "duration_s": _seconds(fields.get("lasts") or HOUR),
    }
    if fields.get("starts_at"):
        content["starts_at"] = fields["starts_at"]
    return content


def end_window(request: Request) -> Response:
    own = {"window_id": request.path["window_id"]}

    def do() -> str:
        api_calls.call(request, switches.delete_window, path=own)
        return "maintenance window ended"

    return _done(request, "", do)


def _done(request: Request, form: str, do: Callable[[], str]) -> Response:
    """Run `do` and redirect with the returned sentence.

    On an error the page comes back with the error and the entered values.
    """
    try:
        message = do()
    except HoldfastError as error:
        why, status = error.message, error.status
        return again(request, lambda: _page(request, form, why, status), error)
    return away(local(request.body.get("next", PATH)), message=message)


def reason(fields: Given) -> str:
    """Return the entered reason of an action. Raises InvalidInput if the field is blank."""
    entered = fields.get("reason", "").strip()
    if not entered:
        raise InvalidInput("reason: required; the audit log keeps it")
    return entered


def _seconds(text: str) -> int:
    seconds = whole_number(text, 9)
    if seconds is None:
        raise InvalidInput("duration: choose one from the list")
    return seconds
