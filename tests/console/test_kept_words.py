# SPDX-License-Identifier: Apache-2.0
"""Input survives an unavailable database and an ended session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect

from holdfast.db.engine import Database
from holdfast.db.tables import sessions
from holdfast.model.errors import Unavailable
from tests.api.cases import write_incident
from tests.api.house import basic_config
from tests.console.browser import opened
from tests.console.people import Person
from tests.console.site import Site

Build = Callable[..., Site]
RULES = """\
rules:
  - {id: hot, on: guest, field: util_ratio, when: '> 90%', for: 1m, severity: critical}
"""
REASON = 'a "storm" <b>in</b> rack-a'


def away(*_: Any, **__: Any) -> Any:
    raise Unavailable("the database is away, try again")


def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("read", "write", "write_one"):
        monkeypatch.setattr(Database, name, away)


def test_rules_come_back_while_the_database_is_away(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = Person(site)
    word = person.word("/console/rules")
    fields = {"name": "mine", "version": "0", "scope": "all", "text": RULES}
    with monkeypatch.context() as patch:
        take_away(patch)
        answer = person.post("/console/rules/save", fields, word)
    assert answer.status_code == 503 and "the database is away" in answer.text
    assert "{id: hot, on: guest" in answer.text and 'id="text"' in answer.text
    assert 'value="mine"' in answer.text


@pytest.mark.parametrize("whole", [False, True], ids=["write", "read and write"])
@pytest.mark.parametrize("name", ["abort", "confirm-off", "pause", "maintenance"])
def test_a_reason_comes_back_while_the_database_is_away(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str, whole: bool
) -> None:
    """The reason comes back in its form, or alone if the page cannot be rendered."""
    own = write_incident(site, host=f"cmp-{name}-{whole}")
    of_switches = name in ("pause", "maintenance")
    path = f"/console/switches/{name}" if of_switches else f"/console/incidents/{own}/{name}"
    person = Person(site)
    word = person.word("/console/audit")
    with monkeypatch.context() as patch:
        if whole:
            take_away(patch)
        else:
            patch.setattr(Database, "write", away)
            patch.setattr(Database, "write_one", away)
        answer = person.post(path, {"reason": REASON, "kind": "guest"}, word)
    assert answer.status_code == 503, answer.text
    assert "<b>in</b>" not in answer.text and "&lt;b&gt;in&lt;/b&gt; rack-a" in answer.text
    assert ("<form" in answer.text) is not whole


# With script


def log_in(page: Page, user: str) -> None:
    page.goto("/console/login?next=/console/rules/new")
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(user)
    page.keyboard.press("Enter")
    expect(page.locator(".who")).to_contain_text(user)


def write(page: Page, name: str, text: str) -> None:
    page.get_by_role("textbox", name="Name", exact=True).fill(name)
    page.get_by_role("textbox", name="Rules").fill(text)


def end_sessions(site: Site) -> None:
    with site.core.store.database.write() as conn:
        conn.execute(sa.delete(sessions))


@pytest.fixture
def guarded(build: Build, tmp_path: Path) -> Site:
    return build(basic_config(tmp_path))


def give_another_admin(site: Site) -> None:
    """Add the user boss with the password boss."""
    with Path(site.conf.auth.htpasswd_file).open("a") as file:
        file.write(f"boss:{bcrypt.hashpw(b'boss', bcrypt.gensalt(4)).decode()}\n")
    with Path(site.conf.auth.users_file).open("a") as file:
        file.write("boss: {project: ops, roles: [admin]}\n")


def test_rules_are_saved_after_a_new_login_in_another_tab(browser: Browser, guarded: Site) -> None:
    with opened(browser, guarded.url) as page:
        log_in(page, "admin")
        write(page, "mine", RULES)
        end_sessions(guarded)
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#saved")).to_contain_text("Log in in another tab, then save")
        assert page.get_by_role("textbox", name="Rules").input_value() == RULES
        other = page.context.new_page()
        log_in(other, "admin")
        other.close()
        page.get_by_role("button", name="Save").click()
        page.get_by_text("rules mine: version 1 saved; agents load it now").wait_for()
        assert "> 90%" in page.locator("pre.text").inner_text()


def test_a_stream_without_session_is_refused_and_not_redirected(guarded: Site) -> None:
    person = Person(guarded, "admin")
    end_sessions(guarded)
    answer = person.get("/console/live", headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["Content-Type"]) == (
        401,
        "text/plain; charset=utf-8",
    )
    assert person.get("/console/rules").status_code == 303  # a page is led to the login


def test_rules_are_not_saved_under_another_user(browser: Browser, guarded: Site) -> None:
    give_another_admin(guarded)
    with opened(browser, guarded.url) as page:
        log_in(page, "admin")
        write(page, "mine", RULES)
        other = page.context.new_page()
        log_in(other, "boss")
        other.close()
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#saved")).to_contain_text("not saved: ")
        assert page.get_by_role("textbox", name="Rules").input_value() == RULES
    with guarded.core.store.database.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM alarm_rules").scalar() == 0


def test_problems_of_rules_appear_beside_the_form(browser: Browser, site: Site) -> None:
    with opened(browser, site.url) as page:
        page.goto("/console/rules/new")
        write(page, "mine", RULES.replace("critical", "terrible"))
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#saved")).to_contain_text("line 2: ")
        assert "terrible" in page.get_by_role("textbox", name="Rules").input_value()
        page.get_by_role("textbox", name="Rules").fill(RULES)
        page.get_by_role("button", name="Save").click()
        page.get_by_text("rules mine: version 1 saved").wait_for()
