# SPDX-License-Identifier: Apache-2.0
"""How a page is made: a template, what it shows, and what no page may be without (the policy that
forbids scripts of others, the word for its forms, who looks, where else one can go).

    return page(ask, "lease.html", title="Lease blue", lease=lease)
    return part(ask, "wall_tiles.html", groups=groups)     # of a page, for our script
    return away("/console/leases", said="lease blue is gone")

Templates escape everything; markup is made by `words` alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import jinja2

import holdfast
from holdfast.api import forms
from holdfast.api.ask import Ask, Reply
from holdfast.console import static, words

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
_FOLDER = Path(__file__).parent / "templates"


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
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= words.FILTERS
    made.globals |= {"static": static.address, "version": holdfast.__version__}
    return made


def page(
    ask: Ask, template: str, *, title: str, status: int = 200, here: str = "", **shown: Any
) -> Reply:
    """A whole page. `here` is where it can be looked at again, if that is not where it was asked
    for: what a form was sent to answers no link."""
    cookies = dict(ask.cookies)
    fresh = []
    if not cookies.get(forms.COOKIE):
        cookies[forms.COOKIE] = forms.new_cookie()
        fresh.append(cookie(forms.COOKIE, cookies[forms.COOKIE]))
    if cookies.get(SAID):
        fresh.append(cookie(SAID, "", 0))
    frame = {
        **_common(ask, cookies),
        "title": title,
        "navigation": [one for one in NAVIGATION if ask.caller and ask.may(one.rule)],
        "here": here or ask.here,
        "theme": theme(cookies),
        "said": unquote(cookies.get(SAID, "")),
        # what cannot be done because the database is away is told without it: a form comes back
        "pauses": pauses(ask) if status < 500 else (),
        "leaves": bool(ask.services.login.fields),
        "at": ask.at,
    }
    text = environment().get_template(template).render({**frame, **shown})
    return Reply(text.encode(), status, HEADERS, HTML, cookies=tuple(fresh))


def part(
    ask: Ask, template: str, *, headers: Mapping[str, str] | None = None, **shown: Any
) -> Reply:
    """A piece of a page, which our script puts into its place."""
    text = environment().get_template(template).render({**_common(ask, ask.cookies), **shown})
    return Reply(text.encode(), 200, {**HEADERS, **(headers or {})}, HTML)


def _common(ask: Ask, cookies: Mapping[str, str]) -> dict[str, Any]:
    return {
        "caller": ask.caller,
        "may": ask.may,
        "form_token": forms.token(cookies),
        "form_field": forms.FIELD,
        "simulated": ask.services.sim is not None,
        "now": ask.services.clock.now(),
    }


def pauses(ask: Ask) -> Sequence[Mapping[str, Any]]:
    """Recovery that stands still is said on every page."""
    if not ask.caller or not ask.may("holdfast:pause:list"):
        return ()
    rows = ask.services.store.switches.all_pauses()
    names = ask.services.store.cases.segment_names() if rows else {}
    return [{**row, "where": _where(str(row["scope"]), names)} for row in rows]


def _where(scope: str, names: Mapping[str, str]) -> str:
    _, _, segment = scope.partition(":")
    return f"in segment {names.get(segment, segment)}" if segment else "everywhere"


def away(path: str, said: str = "", cookies: Sequence[str] = ()) -> Reply:
    """After a change: to where it can be seen, with a sentence about it. The sentence is kept by
    a cookie, not by the address: nobody's link can put words into our mouth."""
    kept = [cookie(SAID, quote(said[:_LONGEST_SAID], safe=""), 30)] if said else []
    where = quote(path, safe="/?&=#%+,:;@!$'()*[]~")
    return Reply(b"", 303, {**HEADERS, "Location": where}, HTML, cookies=(*kept, *cookies))


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
