# SPDX-License-Identifier: Apache-2.0
"""The page of the HA matrix: the hosts of each row, and the test of an edit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.console.matrix import compare
from holdfast.hostmonitor import matrix
from tests.api import views
from tests.api.house import basic_config
from tests.api.views import BLIND, NETWORKS, NO_STORAGE, UP, view_body
from tests.console.browser import SCREENS, check_for_everybody, opened, picture
from tests.console.people import Person
from tests.console.site import Site

Build = Callable[..., Site]
EVIL = "<script>alert(1)</script>"
ALERT = "networks: [manage, tenant, storage]\nrules:\n  - {when: {storage: down}, do: alert}\n"
BROKEN = (
    "rules:\n  - {when: {stroage: down}, do: recovery}\n  - {when: {storage: dwon}, do: alert}\n"
)


def see(site: Site, *down: str, observer: str = "ctl-1", **more: Any) -> None:
    """Report a monitor's view of cmp-1 to cmp-3, some down, and of cmp-9 with unknown storage."""
    well = [name for name in ("cmp-1", "cmp-2", "cmp-3") if name not in down]
    rows = [(UP, "none", well), (BLIND, "undecided", ["cmp-9"])]
    rows += [(NO_STORAGE, "recovery", list(down))] if down else []
    views.see(site.core.store, view_body(*rows, heartbeat_s=300, **more), observer)


def kept(site: Site) -> list[str]:
    """Return the stored reports of monitors; vote counts change at any time."""
    return [line for line in site.dump() if 'INTO "monitors"' in line]


@pytest.fixture(autouse=True)
def seen(site: Site) -> None:
    see(site, "cmp-3")


def test_the_table_has_the_hosts_of_each_row_and_follows_them(site: Site, page: Page) -> None:
    page.goto("/console/matrix")
    head = page.locator("table.matrix thead th").all_inner_texts()
    assert head == ["manage", "tenant", "storage", "action", "hosts now", "reason"]
    lost = page.locator("#row-up-up-down")
    assert "recovery after 3 s" in lost.inner_text() and "1 host" in lost.inner_text()
    blind = page.locator("#row-up-up-unknown").inner_text()
    assert "undecided" in blind and "cmp-9" in blind and "storage is unknown" in blind
    assert "the default (no file)" in page.locator("#source").inner_text()
    page.get_by_text("live", exact=True).wait_for()
    see(site, "cmp-2", "cmp-3")
    page.locator("#row-up-up-down", has_text="2 hosts").wait_for()
    page.locator("#row-up-up-down").get_by_role("link", name="2 hosts").click()
    expect(page.locator("h1")).to_have_text("2 hosts in this row")
    expect(page.locator(".names-list li")).to_have_text(["cmp-2", "cmp-3"])
    expect(page.locator("main")).to_contain_text("holdfast matrix explain cmp-2")


def test_an_edit_is_tested_by_keyboard_and_downloaded(site: Site, page: Page) -> None:
    page.goto("/console/matrix")
    field = page.get_by_role("textbox", name="HA matrix")
    assert "- {when: {storage: down}, do: recovery, for: 3s}" in field.input_value()
    field.focus()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(ALERT + "otherwise: none\n")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/matrix/try")
    result = page.get_by_role("status").last.inner_text()
    assert result == "4 rows differ; hosts affected now: 1 would raise an alert."
    changed = page.locator("tr.differs.held")
    assert "recovery after 3 s" in changed.inner_text() and "cmp-3" in changed.inner_text()
    assert "alert after 3 s" in changed.inner_text()
    assert "holdfast matrix check matrix.yaml" in page.content()
    with page.expect_download() as waited:
        page.get_by_role("button", name="Download matrix.yaml").click()
    assert waited.value.suggested_filename == "matrix.yaml"
    text = Path(waited.value.path()).read_text()
    assert matrix.parse(text, NETWORKS).rules[0].action == "alert"


def test_problems_have_line_numbers_that_lead_to_the_line(site: Site, page: Page) -> None:
    before = kept(site)
    page.goto("/console/matrix")
    page.get_by_role("textbox", name="HA matrix").fill(BROKEN)
    page.get_by_role("button", name="Test").click()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("line 2: network 'stroage' is unknown")
    expect(alert).to_contain_text("line 3: 'dwon' is no state")
    expect(alert).to_contain_text("{when: {stroage: down}, do: recovery}")
    expect(page.get_by_role("textbox", name="HA matrix")).to_have_value(BROKEN)
    page.wait_for_load_state()  # it is the script that goes to a line
    page.get_by_role("link", name="line 3").first.click()
    marked = "document.activeElement.value.slice(document.activeElement.selectionStart)"
    assert page.evaluate(marked).startswith("  - {when: {storage: dwon}")
    assert kept(site) == before


@pytest.mark.parametrize(("path", "text"), [("try", ALERT), ("try", BROKEN), ("file", BROKEN)])
def test_a_theme_change_on_the_test_page_returns_to_the_matrix(
    site: Site, path: str, text: str
) -> None:
    person = Person(site)
    shown = person.post(f"/console/matrix/{path}", {"text": text}, person.word("/console/audit"))
    assert '<input type="hidden" name="next" value="/console/matrix">' in shown.text


def test_rows_that_an_edited_matrix_leaves_out_are_named(site: Site) -> None:
    person = Person(site)
    word = person.word("/console/audit")
    shown = person.post("/console/matrix/try", {"text": ALERT}, word)
    assert "3 rows are left out and count as none" in shown.text
    shown = person.post("/console/matrix/try", {"text": ALERT + "otherwise: none\n"}, word)
    assert "left out" not in shown.text


@pytest.mark.parametrize(("theme", "width"), SCREENS)
def test_pages_are_accessible_on_any_screen(
    browser: Browser, site: Site, theme: Any, width: int
) -> None:
    with opened(browser, site.url, color_scheme=theme) as page:
        page.set_viewport_size({"width": width, "height": 800})
        page.goto("/console/matrix")
        check_for_everybody(page)
        picture(page, f"matrix-{theme}-{width}")
        page.get_by_role("textbox", name="HA matrix").fill(ALERT + "otherwise: none\n")
        page.get_by_role("button", name="Test").click()
        page.locator("h1", has_text="Test result").wait_for()
        check_for_everybody(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        picture(page, f"matrix-tried-{theme}-{width}")


def test_the_matrix_is_shown_and_tested_without_script(browser: Browser, site: Site) -> None:
    with opened(browser, site.url, java_script_enabled=False) as page:
        page.goto("/console/matrix")
        page.get_by_role("textbox", name="HA matrix").fill(
            "for: 0\nrules: []\notherwise: recovery\n"
        )
        page.get_by_role("button", name="Test").click()
        expect(page.locator(".note")).to_contain_text("1 would wait a different time")


def test_names_of_hosts_and_monitors_are_escaped(site: Site, page: Page) -> None:
    ha_matrix = {**matrix.default(NETWORKS).to_plain(), "source": f"/etc/{EVIL}"}
    other = matrix.parse("rules: []\notherwise: none\n", NETWORKS, EVIL).to_plain()
    see(site, EVIL, ha_matrix=ha_matrix)
    see(site, observer=f"z{EVIL}", ha_matrix=other)
    page.goto("/console/matrix")
    text = page.locator("main").inner_text()
    assert f"/etc/{EVIL}" in text and f"z{EVIL}: {EVIL}" in text
    assert EVIL in page.locator("#row-up-up-down").inner_text()
    someone = Person(site)
    answer = someone.post(
        "/console/matrix/try", {"text": f"{EVIL}: 1"}, someone.word("/console/matrix")
    )
    assert answer.status_code == 400 and EVIL not in answer.text
    with site.core.store.database.write() as conn:
        conn.exec_driver_sql("DELETE FROM monitors")


def test_only_administrators_see_the_matrix_and_it_may_be_missing(
    build: Build, tmp_path: Path
) -> None:
    site = build(basic_config(tmp_path))
    member, admin = Person(site, "member"), Person(site, "admin")
    for path in ("", "/table", "/row?storage=up"):
        assert member.get(f"/console/matrix{path}").status_code == 403
    assert member.post("/console/matrix/try", {"text": ""}).status_code == 403
    assert member.post("/console/matrix/file", {"text": ""}).status_code == 403
    assert "No host monitor reports" in admin.get("/console/matrix").text
    assert admin.post("/console/matrix/try", {"text": ALERT}).status_code == 409
    assert admin.get("/console/matrix/row").status_code == 404
    see(site)
    assert admin.get("/console/matrix/row?manage=up&tenant=up&storage=so").status_code == 404
    empty = admin.get("/console/matrix/row?manage=down&tenant=up&storage=up")
    assert "No host is in this row now" in empty.text
    bad = admin.post("/console/matrix/file", {"text": BROKEN})
    assert bad.status_code == 400 and "Content-Disposition" not in bad.headers


def test_an_equal_matrix_differs_in_no_row() -> None:
    now = matrix.default(NETWORKS)
    shown = {"rows": [{"health": dict(zip(NETWORKS, NO_STORAGE, strict=True)), "hosts": ["a"]}]}
    trial = compare(now, now, {**shown, "undecided": [], "blind": []})
    assert trial.sentence == "Every row has the same action as in the HA matrix in force."
    slow = matrix.parse(
        "for: 1m\nrules:\n  - {when: {storage: down}, do: recovery}\notherwise: none\n", NETWORKS
    )
    trial = compare(now, slow, {**shown, "undecided": [], "blind": []})
    assert trial.sentence == ("1 row differs; hosts affected now: 1 would wait a different time.")
