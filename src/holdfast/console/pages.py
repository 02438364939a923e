# SPDX-License-Identifier: Apache-2.0
"""Rendering of pages: templates, common parts, static files, error pages and form errors; login.

Every page carries a content security policy without foreign scripts, the form token, the user
and the navigation.

    return page(request, "lease.html", title="Lease blue", lease=lease)
    return part(request, "wall_tiles.html", groups=groups)     # a piece of a page, for the script
    return away("/console/leases", message="Lease blue is deleted.")

Templates escape everything; only `format` produces markup.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import falcon
import jinja2

import holdfast
from holdfast.api import login
from holdfast.api.login import LoginWanted
from holdfast.api.request import Request, Response
from holdfast.console import format
from holdfast.model.errors import (
    Forbidden,
    HoldfastError,
    InvalidDocument,
    InvalidInput,
    NotFound,
    TooMany,
    Unavailable,
)

# Static files: only our own styles and scripts. The URL contains a hash of the file, so the
# browser caches a file until its contents change.


_FOLDER = Path(__file__).parent / "static"
_KINDS: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def _files() -> Mapping[str, bytes]:
    return {file.name: file.read_bytes() for file in _FOLDER.iterdir() if file.suffix in _KINDS}


@cache
def address(name: str) -> str:
    return f"/console/static/{name}?v={hashlib.sha256(_files()[name]).hexdigest()[:12]}"


def show(request: Request) -> Response:
    name = request.path["name"]
    if name not in _files():
        raise NotFound(f"there is no file {name}")
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'",
    }
    return Response(_files()[name], headers=headers, content_type=_KINDS[Path(name).suffix])


PREFIX: Final = "/console"
THEME, THEMES = "holdfast_theme", ("light", "dark")
#: The cookie with the message for the next page.
MESSAGE: Final = "holdfast_message"
_LONGEST_MESSAGE: Final = 300
_ATTRIBUTES: Final = "Path=/; HttpOnly; SameSite=Lax"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": "Cookie",
}
HTML: Final = "text/html; charset=utf-8"
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Entry:
    """An entry of the navigation at the top of every page."""

    path: str
    name: str
    rule: str
    below: tuple[str, ...] = ()  # further path prefixes that belong to this entry

    def current(self, here: str) -> str:
        """Return the value of `aria-current` for this entry on the page `here`."""
        path = here.partition("?")[0]
        if path == self.path:
            return "page"
        prefixes = (self.path, *self.below) if self.path != "/" else self.below
        return (
            "true"
            if any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)
            else ""
        )


NAVIGATION: Final[Sequence[Entry]] = (
    Entry("/", "Wall", "console:look", (f"{PREFIX}/hosts",)),
    Entry(f"{PREFIX}/calendar", "Calendar", "reservation:lease:list"),
    Entry(f"{PREFIX}/leases", "Leases", "reservation:lease:list"),
    Entry(f"{PREFIX}/incidents", "Incidents", "holdfast:incident:list"),
    Entry(f"{PREFIX}/switches", "Switches", "holdfast:pause:list"),
    Entry(f"{PREFIX}/matrix", "HA matrix", "holdfast:monitor:list"),
    Entry(
        f"{PREFIX}/metrics",
        "Metrics",
        "holdfast:alarm:list",
        (f"{PREFIX}/alarms", f"{PREFIX}/rules"),
    ),
    Entry(f"{PREFIX}/what-if", "What if", "holdfast:repair:plan"),
    Entry(f"{PREFIX}/audit", "Audit", "holdfast:audit:list"),
)


@cache
def environment() -> jinja2.Environment:
    jinja = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    jinja.filters |= format.FILTERS
    jinja.globals |= {"static": address, "version": holdfast.__version__}
    return jinja


def page(
    request: Request, template: str, *, title: str, status: int = 200, here: str = "", **shown: Any
) -> Response:
    """Render a whole page.

    `here` is the URL that shows the page again, if it differs from the requested URL: the
    target of a form does not answer GET.
    """
    cookies = dict(request.cookies)
    new_cookies = []
    if not cookies.get(login.COOKIE):
        cookies[login.COOKIE] = login.new_cookie()
        new_cookies.append(cookie(login.COOKIE, cookies[login.COOKIE]))
    if cookies.get(MESSAGE):
        new_cookies.append(cookie(MESSAGE, "", 0))
    frame = {
        **_common(request, cookies),
        "title": title,
        "navigation": [
            entry for entry in NAVIGATION if request.caller and request.allowed(entry.rule)
        ],
        "here": here or request.url,
        "theme": theme(cookies),
        "message": unquote(cookies.get(MESSAGE, "")),
        # With the database unreachable, the page must not query it: the form comes back.
        "pauses": pauses(request) if status < 500 else (),
        "has_login": bool(request.services.login.fields),
        "at": request.feed_position,
    }
    text = environment().get_template(template).render({**frame, **shown})
    return Response(text.encode(), status, HEADERS, HTML, cookies=tuple(new_cookies))


def part(
    request: Request, template: str, *, headers: Mapping[str, str] | None = None, **shown: Any
) -> Response:
    """Render a piece of a page for the script to insert."""
    text = (
        environment().get_template(template).render({**_common(request, request.cookies), **shown})
    )
    return Response(text.encode(), 200, {**HEADERS, **(headers or {})}, HTML)


def _common(request: Request, cookies: Mapping[str, str]) -> dict[str, Any]:
    return {
        "caller": request.caller,
        "may": request.allowed,
        "form_token": login.token(cookies),
        "form_field": login.FIELD,
        "simulated": request.services.sim is not None,
        "now": request.services.clock.now(),
    }


def pauses(request: Request) -> Sequence[Mapping[str, Any]]:
    """Return the pauses of recovery, which every page shows."""
    if not request.caller or not request.allowed("holdfast:pause:list"):
        return ()
    rows = request.services.store.switches.all_pauses()
    names = request.services.store.incident_queries.segment_names() if rows else {}
    return [{**row, "where": _where(str(row["scope"]), names)} for row in rows]


def _where(scope: str, names: Mapping[str, str]) -> str:
    _, _, segment = scope.partition(":")
    return f"in segment {names.get(segment, segment)}" if segment else "everywhere"


def away(path: str, message: str = "", cookies: Sequence[str] = ()) -> Response:
    """Redirect after a change, with a message for the next page.

    A cookie holds the message, not the URL, so a link from elsewhere cannot forge a message.
    """
    flash = [cookie(MESSAGE, quote(message[:_LONGEST_MESSAGE], safe=""), 30)] if message else []
    url = quote(path, safe="/?&=#%+,:;@!$'()*[]~")
    return Response(b"", 303, {**HEADERS, "Location": url}, HTML, cookies=(*flash, *cookies))


def theme(cookies: Mapping[str, str]) -> str:
    """Return the chosen theme; empty for the theme of the system."""
    chosen = cookies.get(THEME, "")
    return chosen if chosen in THEMES else ""


def cookie(name: str, value: str, lasts_s: int | None = None) -> str:
    """Return a Set-Cookie header for a cookie that only the server reads.

    Without `lasts_s` the cookie ends with the browser session. With HTTPS, `api.app` marks
    every cookie Secure.
    """
    lasts = "" if lasts_s is None else f"; Max-Age={lasts_s}"
    return f"{name}={value}; {_ATTRIBUTES}{lasts}"


def local(path: str) -> str:
    """Return the path if it is a local page, otherwise `/`."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else "/"


# Errors: a page with the error and the next step, a redirect to the login page without a
# session, or a short text for the script.


#: The header that marks a request of the script.
SCRIPT = "X-Holdfast-Script"
STREAM = "text/event-stream"


def refuse(req: falcon.Request, resp: falcon.Response, error: HoldfastError) -> None:
    """Write an error as a page, a redirect to the login page, or plain text for the script."""
    resp.set_headers(dict(HEADERS))
    resp.content_type = HTML
    if _is_script(req):
        resp.status = falcon.code_to_http_status(error.status)
        resp.content_type = "text/plain; charset=utf-8"
        resp.data = error.message.encode()
    elif isinstance(error, LoginWanted) and req.method in ("GET", "HEAD"):
        resp.status = falcon.HTTP_303
        resp.set_header("Location", f"{PREFIX}/login?next={quote(req.relative_uri)}")
        resp.data = b""
    else:
        resp.status = falcon.code_to_http_status(error.status)
        resp.data = _page(req.cookies, error, {})


def _is_script(req: falcon.Request) -> bool:
    """Return whether the script sent the request.

    An event stream request cannot carry our header, and cannot show a page either.
    """
    return bool(req.get_header(SCRIPT)) or STREAM in (req.get_header("Accept") or "")


def again(request: Request, draw: Callable[[], Response], error: HoldfastError) -> Response:
    """Render the page of a refused form with `draw`.

    If the page's own data is unavailable too, render the error with the entered text, so the
    user can copy the text. The request carried the form token, so no other site can trigger
    this page.
    """
    try:
        return draw()
    except Unavailable:
        entered = {name: text for name, text in request.body.items() if text and name != "next"}
        return Response(_page(request.cookies, error, entered), error.status, HEADERS, HTML)


def _page(cookies: Mapping[str, str], error: HoldfastError, entered: Mapping[str, str]) -> bytes:
    shown: dict[str, Any] = {"error": error, "title": error.title, "theme": theme(cookies)}
    shown["entered"] = entered
    return environment().get_template("refusal.html").render(shown).encode()


def project_scope(request: Request) -> str | None:
    """Return the project whose data the caller sees; None for an administrator, who sees all."""
    return None if request.caller.is_admin else request.caller.project_id


# The text that a user entered in a form or URL, and its errors by line.


#: The line number (0: the whole text), the error, and the text of the line.
LineError = tuple[int, str, str]


def entered(text: str) -> str:
    """Return the entered text with `\\n` line ends, because browsers send CRLF."""
    return text.replace("\r\n", "\n")


def whole_number(text: str, digits: int) -> int | None:
    """Return a whole number of at most `digits` digits; None for any other text."""
    is_number = text.isascii() and text.isdigit() and len(text) <= digits
    return int(text) if is_number else None


def by_line(text: str, error: InvalidDocument) -> Sequence[LineError]:
    """Return the errors of a document with their lines."""
    lines = text.splitlines()
    return [
        (
            problem.line,
            problem.text,
            lines[problem.line - 1] if 0 < problem.line <= len(lines) else "",
        )
        for problem in error.problems
    ]


# Login, logout and the choice of a theme


_YEAR_S = 365 * 86_400
#: field -> label, kind, autocomplete
_LOGIN_FIELDS = {
    "user": ("User", "text", "username"),
    "password": ("Password", "password", "current-password"),
    "project": ("Project", "text", "organization"),
    "domain": ("User domain (if not Default)", "text", "off"),
    "project_domain": ("Project domain (if different)", "text", "off"),
}


def show_login(request: Request) -> Response:
    if not request.services.login.fields:
        return away("/")
    return _login_page(request, request.query.get("next", "/"), "")


def log_in(request: Request) -> Response:
    then = request.body.get("next", "/")
    try:
        entered = request.services.login.enter(request.body, request.address)
    except (LoginWanted, Forbidden, TooMany, Unavailable) as error:
        return _login_page(request, then, error.message, error.status)
    _end_session(request)  # end the session that was open in this browser before
    session = cookie(login.SESSION, entered.cookie, entered.lasts_s)
    # Every session gets a new form token, so an old page of another user cannot submit forms.
    return away(local(then), cookies=(session, cookie(login.COOKIE, login.new_cookie())))


def log_out(request: Request) -> Response:
    _end_session(request)
    return away(f"{PREFIX}/login", cookies=(cookie(login.SESSION, "", 0),))


def _end_session(request: Request) -> None:
    if session := request.cookies.get(login.SESSION, ""):
        request.services.login.leave(session)


def choose_theme(request: Request) -> Response:
    chosen = request.body.get("theme", "")
    if chosen not in ("", *THEMES):
        raise InvalidInput(f"there is no theme {chosen[:40]!r}: {', '.join(THEMES)}")
    cookies = (cookie(THEME, chosen, _YEAR_S if chosen else 0),)
    return away(local(request.body.get("next", "/")), cookies=cookies)


def _login_page(request: Request, then: str, why: str, status: int = 200) -> Response:
    fields = [(name, *_LOGIN_FIELDS[name]) for name in request.services.login.fields]
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
