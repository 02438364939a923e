# SPDX-License-Identifier: Apache-2.0
"""How a page is made: a template, what it shows, and what no page may be without (the policy that
forbids scripts of others, the word for its forms, who looks, where else one can go).

    return page(ask, "lease.html", title="Lease blue", lease=lease)
    return part(ask, "wall_tiles.html", groups=groups)     # of a page, for our script
    return away("/console/leases", said="lease blue is gone")

Templates escape everything; markup is made by `words` alone.
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
from holdfast.hostmonitor.matrix import InvalidDocument
from holdfast.model.errors import HoldfastError, NotFound, Unavailable

# Styles and scripts, of our own and nobody else's. Their addresses name what is in them, so that
# a
# browser keeps them for as long as they stay the same.


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
#: What is said on the next page.
SAID: Final = "holdfast_said"
_LONGEST_SAID: Final = 300
_OURS: Final = "Path=/; HttpOnly; SameSite=Lax"
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
_pages_FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Entry:
    """One in the row at the top of every page."""

    path: str
    name: str
    rule: str
    below: tuple[str, ...] = ()  # what else belongs to it, besides what its path begins

    def current(self, here: str) -> str:
        """What `aria-current` says of it on the page `here`."""
        path = here.partition("?")[0]
        if path == self.path:
            return "page"
        ours = (self.path, *self.below) if self.path != "/" else self.below
        return "true" if any(path == one or path.startswith(f"{one}/") for one in ours) else ""


NAVIGATION: Final[Sequence[Entry]] = (
    Entry("/", "Wall", "console:look", (f"{PREFIX}/hosts",)),
    Entry(f"{PREFIX}/calendar", "Calendar", "reservation:lease:list"),
    Entry(f"{PREFIX}/leases", "Leases", "reservation:lease:list"),
    Entry(f"{PREFIX}/incidents", "Incidents", "holdfast:incident:list"),
    Entry(f"{PREFIX}/switches", "Switches", "holdfast:pause:list"),
    Entry(f"{PREFIX}/matrix", "Strategy", "holdfast:monitor:list"),
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
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_pages_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= format.FILTERS
    made.globals |= {"static": address, "version": holdfast.__version__}
    return made


def page(
    request: Request, template: str, *, title: str, status: int = 200, here: str = "", **shown: Any
) -> Response:
    """A whole page. `here` is where it can be looked at again, if that is not where it was asked
    for: what a form was sent to answers no link."""
    cookies = dict(request.cookies)
    fresh = []
    if not cookies.get(login.COOKIE):
        cookies[login.COOKIE] = login.new_cookie()
        fresh.append(cookie(login.COOKIE, cookies[login.COOKIE]))
    if cookies.get(SAID):
        fresh.append(cookie(SAID, "", 0))
    frame = {
        **_common(request, cookies),
        "title": title,
        "navigation": [one for one in NAVIGATION if request.caller and request.allowed(one.rule)],
        "here": here or request.url,
        "theme": theme(cookies),
        "said": unquote(cookies.get(SAID, "")),
        # what cannot be done because the database is away is told without it: a form comes back
        "pauses": pauses(request) if status < 500 else (),
        "leaves": bool(request.services.login.fields),
        "at": request.feed_position,
    }
    text = environment().get_template(template).render({**frame, **shown})
    return Response(text.encode(), status, HEADERS, HTML, cookies=tuple(fresh))


def part(
    request: Request, template: str, *, headers: Mapping[str, str] | None = None, **shown: Any
) -> Response:
    """A piece of a page, which our script puts into its place."""
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
    """Recovery that stands still is said on every page."""
    if not request.caller or not request.allowed("holdfast:pause:list"):
        return ()
    rows = request.services.store.switches.all_pauses()
    names = request.services.store.cases.segment_names() if rows else {}
    return [{**row, "where": _where(str(row["scope"]), names)} for row in rows]


def _where(scope: str, names: Mapping[str, str]) -> str:
    _, _, segment = scope.partition(":")
    return f"in segment {names.get(segment, segment)}" if segment else "everywhere"


def away(path: str, said: str = "", cookies: Sequence[str] = ()) -> Response:
    """After a change: to where it can be seen, with a sentence about it. The sentence is kept by
    a cookie, not by the address: nobody's link can put words into our mouth."""
    kept = [cookie(SAID, quote(said[:_LONGEST_SAID], safe=""), 30)] if said else []
    where = quote(path, safe="/?&=#%+,:;@!$'()*[]~")
    return Response(b"", 303, {**HEADERS, "Location": where}, HTML, cookies=(*kept, *cookies))


def theme(cookies: Mapping[str, str]) -> str:
    """What was chosen; empty: as the system has it."""
    chosen = cookies.get(THEME, "")
    return chosen if chosen in THEMES else ""


def cookie(name: str, value: str, lasts_s: int | None = None) -> str:
    """Set-Cookie of one that only we read; without a time it ends with the browser. Where we are
    called by HTTPS, `api.app` makes every one Secure."""
    lasts = "" if lasts_s is None else f"; Max-Age={lasts_s}"
    return f"{name}={value}; {_OURS}{lasts}"


def local(path: str) -> str:
    """Where to go next, if that is a page of ours; the wall otherwise."""
    good = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if good else "/"


# Errors as people see them: a page that says what and what now; the login page where nobody is
# logged in; a short text for our script.


#: By which our script says that it is asking, not a person.
SCRIPT = "X-Holdfast-Script"
STREAM = "text/event-stream"


def refuse(req: falcon.Request, resp: falcon.Response, error: HoldfastError) -> None:
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
    """A browser that opens a stream of events has no header of ours, and no use for a page."""
    return bool(req.get_header(SCRIPT)) or STREAM in (req.get_header("Accept") or "")


def again(request: Request, draw: Callable[[], Response], error: HoldfastError) -> Response:
    """The page of a form that was refused, as `draw` makes it. Where that cannot be, since what it
    shows is away as well, the refusal with what somebody wrote: to be copied. It came with the
    word of our form: no other site can have it shown."""
    try:
        return draw()
    except Unavailable:
        entered = {name: text for name, text in request.body.items() if text and name != "next"}
        return Response(_page(request.cookies, error, entered), error.status, HEADERS, HTML)


def _page(cookies: Mapping[str, str], error: HoldfastError, entered: Mapping[str, str]) -> bytes:
    shown: dict[str, Any] = {"error": error, "title": error.title, "theme": theme(cookies)}
    shown["entered"] = entered
    return environment().get_template("refusal.html").render(shown).encode()


# What somebody wrote in a form, and what is wrong with it beside the line in which it is.


#: The number of a line (0: the whole text), what is wrong with it, and how it is written there.
Wrong = tuple[int, str, str]


def entered(said: str) -> str:
    """As it was written: forms end lines as the network does."""
    return said.replace("\r\n", "\n")


def by_line(text: str, error: InvalidDocument) -> Sequence[Wrong]:
    lines = text.splitlines()
    return [
        (one.line, one.text, lines[one.line - 1] if 0 < one.line <= len(lines) else "")
        for one in error.problems
    ]
