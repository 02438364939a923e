# SPDX-License-Identifier: Apache-2.0
"""What people send from pages, and the proof that it was one of our pages that sent it.

Each browser has a cookie of its own, which no script and no other site can read. Every form of ours
carries a word made of it and of the session: whoever has not seen the page cannot know it. Nothing
that a page sends is taken without it (`read`, the only way in).

    forms.token(cookies)          # for the page
    forms.read(req, limit)        # {"name": ["blue"]}; Forbidden if the word is not there
"""

import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import falcon

from holdfast.api import body
from holdfast.api.auth import refuse_other_sites
from holdfast.model.errors import Forbidden, InvalidInput

#: The field that carries the word, and the header by which a script does.
FIELD, HEADER = "form_token", "X-Form-Token"
COOKIE, SESSION = "holdfast_form", "holdfast_session"
_MOST_FIELDS = 5_000


def new_cookie() -> str:
    return secrets.token_urlsafe(24)


def token(cookies: Mapping[str, str]) -> str:
    """Of a browser and of whoever is logged in there."""
    said = f"form\n{cookies.get(SESSION, '')}".encode(errors="replace")
    return hmac.new(cookies.get(COOKIE, "").encode(errors="replace"), said, "sha256").hexdigest()


def read(req: falcon.Request, limit: int, public_url: str = "") -> dict[str, list[str]]:
    """The fields, each with all its values, without the word itself. `public_url` is what we are
    called where a proxy calls us something else."""
    if (req.content_type or "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise InvalidInput("pages send forms: Content-Type application/x-www-form-urlencoded")
    data = body.data(req, limit)
    try:
        found = parse_qs(
            data.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError as error:
        raise InvalidInput(f"this form cannot be read: {error}") from None
    for name, values in found.items():
        body.check_text(name, "form")
        for value in values:
            body.check_text(value, name)
    given = found.pop(FIELD, [""])[-1] or req.get_header(HEADER) or ""
    _check(req, given, public_url)
    return found


def _check(req: falcon.Request, given: str, public_url: str) -> None:
    refuse_other_sites(req)
    origin = req.get_header("Origin")
    ours = (req.netloc.lower(), _place(public_url))
    if origin not in (None, "null") and _place(origin or "") not in ours:
        raise Forbidden("another site's page cannot change anything here")
    cookies = req.cookies
    if not cookies.get(COOKIE) or not hmac.compare_digest(token(cookies).encode(), given.encode()):
        raise Forbidden("this form is too old: open the page again, then send it once more")


def _place(url: str) -> str:
    """Host and port of an address; of what is none, something that nobody is called."""
    try:
        return urlsplit(url).netloc.lower() or "?"
    except ValueError:
        return "?"
