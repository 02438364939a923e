# SPDX-License-Identifier: Apache-2.0
"""Login, logout and the choice of a theme."""

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
    "domain": ("User domain (if not Default)", "text", "off"),
    "project_domain": ("Project domain (if different)", "text", "off"),
}


def show(request: Request) -> Response:
    if not request.services.login.fields:
        return away("/")
    return _page(request, request.query.get("next", "/"), "")


def enter(request: Request) -> Response:
    then = request.body.get("next", "/")
    try:
        entered = request.services.login.enter(request.body, request.address)
    except (LoginWanted, Forbidden, TooMany, Unavailable) as error:
        return _page(request, then, error.message, error.status)
    _leave(request)  # end the session that was open in this browser before
    session = cookie(login.SESSION, entered.cookie, entered.lasts_s)
    # Every session gets a new form token, so an old page of another user cannot submit forms.
    return away(local(then), cookies=(session, cookie(login.COOKIE, login.new_cookie())))


def leave(request: Request) -> Response:
    _leave(request)
    return away(f"{PREFIX}/login", cookies=(cookie(login.SESSION, "", 0),))


def _leave(request: Request) -> None:
    if known := request.cookies.get(login.SESSION, ""):
        request.services.login.leave(known)


def theme(request: Request) -> Response:
    chosen = request.body.get("theme", "")
    if chosen not in ("", *THEMES):
        raise InvalidInput(f"there is no theme {chosen[:40]!r}: {', '.join(THEMES)}")
    kept = cookie(THEME, chosen, _YEAR_S if chosen else 0)
    return away(local(request.body.get("next", "/")), cookies=(kept,))


def _page(request: Request, then: str, why: str, status: int = 200) -> Response:
    fields = [(name, *_FIELDS[name]) for name in request.services.login.fields]
    return page(
        request,
        "login.html",
        title="Log in",
        status=status,
        fields=fields,
        then=local(then),
        why=why,
        given={} if request.body is None else request.body,
    )
