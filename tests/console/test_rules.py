# SPDX-License-Identifier: Apache-2.0
"""The editor of alarm rules: preview while the user types, save, versions and rollback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.api.rules import BUSY, furnish_rules
from tests.console.browser import SCREENS, check_for_everybody, opened, picture
from tests.console.hours import EVIL, busy, kept, put
from tests.console.people import Person
from tests.console.site import Site

HOT = """\
rules:
  - {id: hot, on: guest, field: util_ratio, when: '> 90%', for: 1m, severity: critical}
"""


@pytest.fixture(autouse=True)
def rules(site: Site) -> Iterator[None]:
    put(site, busy())
    furnish_rules(site)
    yield
    with site.core.store.database.write() as conn:
        conn.exec_driver_sql("DELETE FROM alarm_rules")


class Writer(Person):
    def post(self, path: str, fields: dict[str, str], word: str | None = None) -> Any:
        return super().post(path, fields, word or self.word("/console/rules"))


def test_the_preview_follows_the_typing_and_the_rules_are_saved(site: Site, page: Page) -> None:
    page.goto("/console/rules")
    page.get_by_role("link", name="New rules").click()
    page.wait_for_url("**/console/rules/new")  # with its script, which hears what is typed
    page.get_by_role("textbox", name="Name", exact=True).fill("mine")
    text = page.get_by_role("textbox", name="Rules")
    text.fill(HOT)
    story = page.locator(".story", has_text="hot")
    story.wait_for()
    text_shown = story.inner_text()
    assert "guest web-1 on cmp-1 · project blue" in text_shown
    assert "critical · fired 1 time" in text_shown
    steps = [text.split(" UTC ")[1] for text in story.locator(".changes li").all_inner_texts()]
    assert [step.replace("\n", " ") for step in steps] == [
        "ok → ○pending at 99 %",
        "pending → ■firing at 99 %",
        "firing → ●ok at 20 %",
    ]
    drawn = story.get_by_role("img", name="CPU of web-1")
    assert drawn.locator("rect.band").count() == 2 and drawn.locator("line.level").count() == 1
    text.fill(HOT.replace("critical", "terrible") + "  - {id: x}\n")
    page.locator("#preview .problems").wait_for()
    for line in ("line 2: ", "line 3: "):
        expect(page.locator("#preview")).to_contain_text(line)
    page.get_by_role("link", name="line 3").first.click()
    assert page.evaluate("document.activeElement.selectionStart") == len(HOT)
    text.fill(HOT.replace("> 90%", "> 99.9%"))
    page.locator("#preview", has_text="Rules that raise no alarm: hot").wait_for()
    page.get_by_role("button", name="Save").press("Enter")
    page.get_by_text("rules mine: version 1 saved; agents load it now").wait_for()
    expect(page.locator("pre.text")).to_contain_text("99.9%")


def test_rules_are_rolled_back_and_deleted(site: Site, page: Page) -> None:
    page.goto("/console/rules/of/base")
    text = page.locator("pre.text")
    expect(text).to_contain_text("90%")
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.locator("dl.facts")).to_contain_text("old version")
    expect(text).to_contain_text("95%")
    page.get_by_role("button", name="Roll back to 1").press("Enter")
    page.get_by_text("version 1 restored as version 3").wait_for()
    expect(text).to_contain_text("95%")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    page.get_by_text("rules base deleted").wait_for()
    page.goto("/console/rules/of/base")
    page.get_by_role("button", name="Roll back to 3").click()
    page.get_by_text("as version 5").wait_for()


def test_an_open_document_follows_another_user(site: Site, page: Page) -> None:
    page.goto("/console/rules/of/base")
    page.wait_for_selector("#live.on")
    furnish_rules(site)
    page.get_by_role("button", name="Roll back to 3").wait_for()
    expect(page.locator("dl.facts")).to_contain_text("version 4", use_inner_text=True)


def test_without_script_a_button_shows_the_preview(browser: Browser, site: Site) -> None:
    with opened(browser, site.url, java_script_enabled=False) as page:
        page.goto("/console/rules/of/base/edit")
        page.get_by_role("textbox", name="Rules").fill(BUSY.replace("95", "70"))
        page.get_by_role("button", name="Preview").click()
        expect(page.locator("#preview")).to_contain_text(
            "1 alarm would have fired in the last hour on 1 host"
        )
        expect(page.get_by_role("textbox", name="Rules")).to_have_value(re.compile("70%"))
        page.get_by_role("textbox", name="Rules").fill(EVIL)
        page.get_by_role("button", name="Preview").click()
        expect(page.locator("#preview .note.bad")).to_have_count(1)
        expect(page.get_by_role("textbox", name="Rules")).to_have_value(EVIL)


def test_a_refused_document_comes_back_with_the_reason(site: Site) -> None:
    one = Writer(site)
    site.settled()  # what other tests began is over
    before = kept(site)
    bad = one.post("/console/rules/save", {"name": "base", "version": "2", "text": f"{EVIL}: 1"})
    assert bad.status_code == 400 and EVIL not in bad.text and "line 1" in bad.text
    late = one.post("/console/rules/save", {"name": "base", "version": "1", "text": HOT})
    assert late.status_code == 409 and "rules base are at version 2, not 1" in late.text
    odd = one.post("/console/rules/save", {"name": EVIL, "version": "0", "text": HOT})
    assert odd.status_code == 400 and EVIL not in odd.text
    where = {"name": "mine", "version": "0", "text": HOT, "scope": "everywhere"}
    assert one.post("/console/rules/save", where).status_code == 400
    assert kept(site) == before
    assert one.get("/console/rules/of/nothing").status_code == 404
    assert one.get("/console/rules/of/base?version=9").status_code == 404


def test_a_preview_keeps_to_the_scope_of_the_rules(site: Site) -> None:
    one = Writer(site)

    def seen(scope: str, text: str = HOT, host: str = "") -> str:
        fields = {"name": "mine", "scope": scope, "text": text, "part": "1", "host": host}
        answer = one.post("/console/rules/preview", fields)
        assert answer.status_code == 200 and "<html" not in answer.text
        return str(answer.text)

    assert "mine.hot" in seen("project:blue") and "web-1" in seen("project:blue")
    assert "web-1" not in seen("project:red")
    assert "web-1" in seen("host:cmp-1") and "web-1" not in seen("host:cmp-2")
    assert "cmp-2" in site.core.store.samples.wanted()  # the preview requested its metrics
    assert "cmp-3" in seen("project:blue", host="CMP-3")
    assert "cmp-nobo" not in seen("project:blue", host="cmp-nobo")
    assert "cmp-nobo" not in site.core.store.samples.wanted()
    kept = HOT.replace("util_ratio", "cpu_time_ns").replace(
        "'> 90%'", "'> 1', measure: rate, over: 1m"
    )
    assert "Rule hot has no preview: Holdfast does not keep cpu_time_ns" in seen("all", kept)
    assert "scope: &#39;nowhere&#39; is none" in seen("nowhere")


@pytest.mark.parametrize(("theme", "width"), SCREENS)
def test_pages_are_accessible_on_any_screen(
    browser: Browser, site: Site, theme: Any, width: int
) -> None:
    with opened(browser, site.url, color_scheme=theme) as page:
        page.set_viewport_size({"width": width, "height": 800})
        for path in ("rules", "rules/of/base", "rules/of/base/edit"):
            page.goto(f"/console/{path}")
            if path.endswith("edit"):
                page.locator(".story").first.wait_for()
            check_for_everybody(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            picture(page, f"{path.replace('/', '-')}-{theme}-{width}")
