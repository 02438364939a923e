# SPDX-License-Identifier: Apache-2.0
"""Users by plain HTTP: cookies, forms and their answers, without a browser."""

from __future__ import annotations

import re

import requests

from holdfast.api.login import FIELD
from tests.console.site import Site
from tests.processes import PATIENCE_S


class Person:
    """An HTTP session with cookies; does not follow redirects."""

    def __init__(self, site: Site, user: str = "", password: str = "") -> None:
        self.site = site
        self.http = requests.Session()
        if user:
            entered = self.enter(user, password or user)
            assert entered.status_code == 303, entered.text

    def get(self, path: str, **how: object) -> requests.Response:
        return self.http.get(self.site.url + path, allow_redirects=False, timeout=PATIENCE_S, **how)  # type: ignore[arg-type]

    def word(self, path: str = "/console/login") -> str:
        """Return the form token of a page."""
        match = re.search('name="form-token" content="([0-9a-f]+)"', self.get(path).text)
        assert match, path
        return match[1]

    def post(self, path: str, fields: dict[str, str], word: str | None = None) -> requests.Response:
        """Post a form with its token."""
        form = {FIELD: self.word() if word is None else word, **fields}
        return self.http.post(
            self.site.url + path, data=form, allow_redirects=False, timeout=PATIENCE_S
        )

    def enter(self, user: str, password: str) -> requests.Response:
        return self.post("/console/login", {"user": user, "password": password, "next": "/"})
