# SPDX-License-Identifier: Apache-2.0
"""Login, sessions, logout, and protection of forms against other sites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from playwright.sync_api import Browser, expect

from holdfast.api import auth, login
from holdfast.console.pages import NAVIGATION
from holdfast.console.routes import ROUTES
from tests.api.house import basic_config
from tests.console.browser import check_for_everybody, opened
from tests.console.people import Person
from tests.console.site import Site
from tests.processes import PATIENCE_S

Build = Callable[..., Site]


@pytest.fixture
def guarded(build: Build, tmp_path: Path) -> Site:
    return build(basic_config(tmp_path))


def test_a_login_returns_to_the_requested_page(browser: Browser, guarded: Site) -> None:
    with opened(browser, guarded.url) as page:
        page.goto("/console/leases?status=ACTIVE")
        assert "/console/login?next=/console/leases" in page.url
        check_for_everybody(page)
        expect(page.get_by_label("User")).to_be_focused()
        page.keyboard.type("member")
        page.keyboard.press("Tab")
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("wrong user or password")
        expect(page.get_by_label("User")).to_have_value("member")
        page.get_by_label("Password").fill("member")
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/leases?status=ACTIVE")
        expect(page.locator(".who")).to_have_text("member · blue")
        page.get_by_role("button", name="log out").click()
        page.wait_for_url("**/console/login")
        page.goto("/console/leases")
        assert "/console/login" in page.url


def test_the_database_holds_only_the_hash_of_a_session(guarded: Site) -> None:
    alice = Person(guarded, "member")
    cookie = alice.http.cookies[login.SESSION]
    assert alice.get("/").status_code == 200
    assert cookie not in "\n".join(guarded.dump())
    said = alice.enter("member", "member").headers["Set-Cookie"]
    for part in ("HttpOnly", "SameSite=Lax", "Path=/"):
        assert part in said
    assert "Secure" not in said  # a browser would not send it over plain HTTP


def test_a_session_ends_with_logout_new_password_or_removed_user(
    guarded: Site, tmp_path: Path
) -> None:
    first, second, third = (Person(guarded, "member") for _ in range(3))
    stolen = dict(first.http.cookies)
    assert first.post("/console/logout", {}).status_code == 303
    assert requests.get(guarded.url, cookies=stolen, allow_redirects=False).status_code == 303
    assert second.get("/").status_code == 200
    file = Path(guarded.conf.auth.htpasswd_file)
    lines = file.read_text().splitlines()
    others = [line for line in lines if not line.startswith("member:")]
    reader = next(line for line in lines if line.startswith("reader:"))
    file.write_text("\n".join([*others, reader.replace("reader:", "member:")]) + "\n")
    assert second.get("/").status_code == 303
    file.write_text("\n".join(lines) + "\n")
    assert third.get("/").status_code == 200
    file.write_text("\n".join(others) + "\n")
    assert third.get("/").status_code == 303


def test_an_invalid_user_name_is_a_wrong_user(guarded: Site) -> None:
    stranger = Person(guarded)
    for user in ("nobody", "", "x" * 300, "a:b", "member\x00"):
        answer = stranger.enter(user, "member")
        assert answer.status_code in (400, 401), user
        assert login.SESSION not in answer.cookies


def test_repeated_wrong_passwords_are_throttled(
    guarded: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "FIRST_S", auth.LONGEST_S)  # however slow the machine is
    stranger = Person(guarded)
    said = [stranger.enter("member", f"guess-{number}") for number in range(7)]
    assert [one.status_code for one in said] == [401] * 5 + [429] * 2
    assert "too many wrong passwords: try again in" in said[-1].text
    assert login.SESSION not in said[-1].cookies
    # the API shares the count, also for the right password
    asked = f"{guarded.url}/reservation/v1/leases"
    answer = requests.get(asked, auth=("member", "member"), timeout=PATIENCE_S)
    assert (answer.status_code, answer.json()["error_code"]) == (429, 429)
    assert 0 < int(answer.headers["Retry-After"]) <= auth.LONGEST_S
    assert requests.get(asked, auth=("reader", "reader"), timeout=PATIENCE_S).status_code == 200


def test_a_new_login_ends_the_session_that_this_browser_had(guarded: Site) -> None:
    person = Person(guarded, "member")
    old = dict(person.http.cookies)
    assert person.enter("reader", "reader").status_code == 303
    assert requests.get(guarded.url, cookies=old, allow_redirects=False).status_code == 303
    assert person.get("/").status_code == 200


def test_the_redirect_after_login_stays_on_local_pages(guarded: Site) -> None:
    for there in ("https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:x"):
        person = Person(guarded)
        fields = {"user": "member", "password": "member", "next": there}
        assert person.post("/console/login", fields).headers["Location"] == "/"


def test_a_form_without_its_token_is_refused(guarded: Site, site: Site) -> None:
    """Post every form without a token, with another token, and from another site."""
    for there, person in ((guarded, Person(guarded, "admin")), (site, Person(site))):
        person.word("/")
        other = Person(there).word("/console/login" if there is guarded else "/")
        before = there.settled()
        for route in (one for one in ROUTES if one.method == "POST"):
            path = route.path.replace("{", "").replace("}", "")
            for word in ("", other, "0" * 64):
                answer = person.post(path, {"next": "/"}, word)
                assert answer.status_code == 403, (path, answer.status_code)
            headers = {"Origin": "https://evil.example"}
            fields = {login.FIELD: person.word("/")}
            for name, value in (*headers.items(), ("Sec-Fetch-Site", "cross-site")):
                strange = person.http.post(
                    there.url + path, data=fields, headers={name: value}, allow_redirects=False
                )
                assert strange.status_code == 403, (path, name)
            answer = person.http.post(there.url + path, json={}, allow_redirects=False)
            assert answer.status_code in (400, 403), path
        assert there.dump() == before


def test_every_page_has_a_strict_content_security_policy(site: Site) -> None:
    for path in ("/", "/console/login", "/console/nothing-here", "/console/leases"):
        answer = requests.get(site.url + path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        for forbidden in ("<style", " style=", " onclick=", "<script>", "javascript:"):
            assert forbidden not in answer.text, (path, forbidden)


def test_a_theme_is_kept_and_an_unknown_theme_is_refused(browser: Browser, site: Site) -> None:
    with opened(browser, site.url) as page:
        page.goto("/console/leases")
        page.get_by_label("Theme").select_option("dark")
        page.wait_for_selector("html[data-theme=dark]")
        assert "/console/leases" in page.url
        page.goto("/")
        assert page.locator("html").get_attribute("data-theme") == "dark"
        page.goto("/console/nothing-is-here")
        assert page.locator("h1").inner_text().startswith("404")
        assert page.locator("html").get_attribute("data-theme") == "dark"
    person = Person(site)
    word = person.word("/")
    for theme, status in (("x", 400), ("dark", 303), ("", 303)):
        answer = person.post("/console/theme", {"theme": theme, "next": "/"}, word)
        assert answer.status_code == status, (theme, answer.text)
        assert ("holdfast_theme" in answer.headers.get("set-cookie", "")) == (status == 303)
    assert (
        person.post("/console/theme", {"theme": "dark"}, Person(site).word("/")).status_code == 403
    )


@pytest.mark.parametrize(
    ("path", "name", "current"),
    [
        ("/?q=cmp", "Wall", "page"),
        ("/console/hosts/cmp-1", "Wall", "true"),
        ("/console/rules/new", "Metrics", "true"),
        ("/console/leases/new?from=1", "Leases", "true"),
    ],
)
def test_the_navigation_marks_the_current_entry(path: str, name: str, current: str) -> None:
    marked = {entry.name: entry.current(path) for entry in NAVIGATION if entry.current(path)}
    assert marked == {name: current}
