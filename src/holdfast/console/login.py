# SPDX-License-Identifier: Apache-2.0
"""Logging in and out, and the theme that somebody likes."""

from holdfast.api import login
from holdfast.api.login import LoginWanted
from holdfast.api.request import Request, Response
from holdfast.console.pages import PREFIX, THEME, THEMES, away, cookie, local, page
from holdfast.model.errors import Forbidden, InvalidInput, TooMany, Unavailable

_YEAR_S = 365 * 86_400
#: field -> label, kind, autocomplete
_FIELDS = {
    "user": ("User", "text", "username"),
    "password": ("Password", "password", "current-password"),
    "project": ("Project", "text", "organization"),
    "domain": ("Domain (if not Default)", "text", "off"),
    "project_domain": ("Domain of the project (if another)", "text", "off"),
}


def show(ask: Request) -> Response:
    if not ask.services.login.fields:
        return away("/")
    return _page(ask, ask.query.get("next", "/"), "")


def enter(ask: Request) -> Response:
    then = ask.body.get("next", "/")
    try:
        entered = ask.services.login.enter(ask.body, ask.address)
    except (LoginWanted, Forbidden, TooMany, Unavailable) as error:
        return _page(ask, then, error.message, error.status)
    _leave(ask)  # what was open in this browser before is over
    session = cookie(login.SESSION, entered.cookie, entered.lasts_s)
    # a new word for forms with every session: the old page of somebody else is worth nothing
    return away(local(then), cookies=(session, cookie(login.COOKIE, login.new_cookie())))


def leave(ask: Request) -> Response:
    _leave(ask)
    return away(f"{PREFIX}/login", cookies=(cookie(login.SESSION, "", 0),))


def _leave(ask: Request) -> None:
    if known := ask.cookies.get(login.SESSION, ""):
        ask.services.login.leave(known)


def theme(ask: Request) -> Response:
    chosen = ask.body.get("theme", "")
    if chosen not in ("", *THEMES):
        raise InvalidInput(f"there is no theme {chosen[:40]!r}: {', '.join(THEMES)}")
    kept = cookie(THEME, chosen, _YEAR_S if chosen else 0)
    return away(local(ask.body.get("next", "/")), cookies=(kept,))


def _page(ask: Request, then: str, why: str, status: int = 200) -> Response:
    fields = [(name, *_FIELDS[name]) for name in ask.services.login.fields]
    return page(
        ask,
        "login.html",
        title="Log in",
        status=status,
        fields=fields,
        then=local(then),
        why=why,
        given={} if ask.body is None else ask.body,
    )
