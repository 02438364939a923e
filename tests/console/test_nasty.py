# SPDX-License-Identifier: Apache-2.0
"""Hostile URLs and forms: no page answers 500, and every refusal has a reason."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from holdfast.api import login
from holdfast.console.routes import ROUTES
from tests.api.house import basic_config, copy
from tests.console.people import Person
from tests.console.site import Site
from tests.processes import PATIENCE_S

NASTY = (
    "²",
    "9" * 5000,
    "-1",
    "9999-12-31 23:59",
    "0001-01-01T00:00+14:00",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "x\r\nSet-Cookie: holdfast_session=evil",
    "%0d%0aX-Evil:%201",
    "//evil.example/€",
    "\x00",
    "nan",
    "[[]]",
    "a" * 3000,
)
NAMES = (
    *("q", "page", "from", "zoom", "view", "rack", "zone", "text", "by", "group", "state", "since"),
    *("until", "marker", "limit", "id", "status", "kind", "host", "segment", "subject", "actor"),
    *("fail", "lease", "at", "story", "name", "project", "sort", "next", "said", "length", "count"),
    *("start", "end", "earliest", "do", "reason", "hours", "minutes", "version", "scope", "where"),
    *("find", "most", "vcpus", "memory_mb", "disk_gb", "flavor", "before_end", "part", "network"),
    *("deed", "domain", "server", "project_id", "end_after", "start_before", "for", "is", "all"),
    *("theme", "rule", "lasts", "starts_at"),
)
SEED = 20261117
#: A page takes one look at so many names.
TOGETHER = 6


@pytest.fixture(scope="module")
def passwords(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with http_basic."""
    folder = tmp_path_factory.mktemp("passwords")
    with Site(copy(furnished, folder / "state"), basic_config(folder)) as made:
        yield made


def path_of(template: str, given: str) -> str:
    return re.sub(r"{\w+}", requests.utils.quote(given, safe=""), template)


def test_no_url_is_a_500(site: Site) -> None:
    chance = random.Random(SEED)
    before = site.settled()
    pages = [one for one in ROUTES if one.method == "GET" and not one.path.endswith("/live")]
    for route in pages:
        for at in range(0, len(NAMES), TOGETHER):
            asked = {name: chance.choice(NASTY) for name in NAMES[at : at + TOGETHER]}
            path = path_of(route.path, chance.choice(NASTY) if chance.random() < 0.3 else "cmp-1")
            if look(site, path, asked) >= 400:  # maybe refused before the other parameters are read
                for name, given in asked.items():
                    look(site, path, {name: given})
    assert site.dump() == before


def look(site: Site, path: str, asked: dict[str, str]) -> int:
    answer = site.call("GET", path, params=asked)
    assert answer.status_code < 500, (path, asked)
    assert "<script>alert" not in answer.text and "<img src=x" not in answer.text, (path, asked)
    return int(answer.status_code)


def test_no_form_is_a_500_or_injects_a_header(site: Site) -> None:
    chance = random.Random(SEED)
    person = Person(site)
    person.word("/")
    cookies = "; ".join(f"{name}={value}" for name, value in person.http.cookies.items())
    word = login.token(dict(person.http.cookies))
    headers = {"Cookie": cookies, "Content-Type": "application/x-www-form-urlencoded"}
    seen = set()
    for route in (one for one in ROUTES if one.method == "POST"):
        for _ in range(40):
            fields = {name: chance.choice(NASTY) for name in chance.sample(NAMES, 6)}
            path = path_of(route.path, chance.choice(NASTY))
            body = requests.models.RequestEncodingMixin._encode_params(
                {"form_token": word, **fields}
            )
            answer = site.call("POST", path, headers=headers, body=body)
            assert answer.status_code < 500, (path, fields)
            said = "\n".join(f"{name}: {value}" for name, value in answer.headers.items())
            assert "\r" not in said and "evil" not in answer.headers.get("set-cookie", ""), path
            assert said.isascii(), path
            seen.add(answer.status_code)
    assert seen >= {200, 303, 400, 404} and 403 not in seen  # the forms were parsed


@pytest.mark.parametrize("origin", ["http://[", "x", "http://", "file://", "https://evil.example"])
def test_forms_of_other_origins_are_refused(passwords: Site, origin: str) -> None:
    person = Person(passwords, "admin")
    fields = {"theme": "dark", "next": "/", login.FIELD: person.word("/")}
    for route in (one for one in ROUTES if one.method == "POST"):
        answer = person.http.post(
            passwords.url + path_of(route.path, "cmp-1"),
            data=fields, headers={"Origin": origin}, allow_redirects=False,
        )  # fmt: skip
        assert answer.status_code == 403, route
    assert person.post("/console/theme", {"theme": "dark", "next": "/"}, fields[login.FIELD]).ok


def test_invalid_change_ids_get_all_topics(site: Site) -> None:
    person = Person(site)
    process = person.get("/console/changes").json()["at"].partition("-")[0]
    for number in ("²", "9" * 5000, "-1", ""):
        assert person.get(f"/console/changes?since={process}-{number}").json()["topics"] == ["*"]


def test_a_head_takes_no_stream(site: Site) -> None:
    for _ in range(site.conf.console.streams + 1):
        assert site.call("HEAD", "/console/live").status_code == 200
    assert not site.services.feed._slots


def test_a_huge_url_is_refused_early(site: Site) -> None:
    answer = requests.get(f"{site.url}/console/login?x={'a' * 200_000}", timeout=PATIENCE_S)
    assert answer.status_code in (400, 413, 414, 431)


def test_the_public_url_is_an_accepted_origin(site: Site) -> None:
    person = Person(site)
    fields = {"theme": "", "next": "/", login.FIELD: person.word("/")}
    headers = {"Origin": "https://cloud.example"}

    def sent() -> int:
        return person.http.post(
            f"{site.url}/console/theme", data=fields, headers=headers, allow_redirects=False
        ).status_code

    assert sent() == 403
    site.conf.set_override("public_url", "https://cloud.example/", "api")
    try:
        assert sent() == 303
    finally:
        site.conf.clear_override("public_url", "api")


def test_a_link_cannot_forge_a_message(site: Site) -> None:
    assert "you have won" not in site.call("GET", "/?message=you+have+won").text
