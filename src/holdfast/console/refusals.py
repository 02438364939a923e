# SPDX-License-Identifier: Apache-2.0
"""Errors as people see them: a page that says what and what now; the login page where nobody is
logged in; a short text for our script."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import falcon

from holdfast.api.ask import Ask, Reply
from holdfast.api.login import LoginWanted
from holdfast.console.pages import HEADERS, HTML, PREFIX, environment, theme
from holdfast.model.errors import HoldfastError, Unavailable

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


def again(ask: Ask, draw: Callable[[], Reply], error: HoldfastError) -> Reply:
    """The page of a form that was refused, as `draw` makes it. Where that cannot be, since what it
    shows is away as well, the refusal with what somebody wrote: to be copied. It came with the
    word of our form: no other site can have it shown."""
    try:
        return draw()
    except Unavailable:
        entered = {name: text for name, text in ask.body.items() if text and name != "next"}
        return Reply(_page(ask.cookies, error, entered), error.status, HEADERS, HTML)


def _page(cookies: Mapping[str, str], error: HoldfastError, entered: Mapping[str, str]) -> bytes:
    shown: dict[str, Any] = {"error": error, "title": error.title, "theme": theme(cookies)}
    shown["entered"] = entered
    return environment().get_template("refusal.html").render(shown).encode()
