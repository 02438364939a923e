# SPDX-License-Identifier: Apache-2.0
"""The audit log: filters, permalinks, export, and the lines of the own project only."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from holdfast.console.audit import subject_page
from holdfast.db import audit
from tests.api.audits import LEASE, furnish_audit, write_line
from tests.api.house import OWN, basic_config, copy
from tests.console.browser import check_for_everybody, opened, picture
from tests.console.people import Person
from tests.console.site import Site

AUDIT = "/console/audit"
EVIL = "<script>alert(1)</script>"
WORSE = '"><img src=x onerror=alert(1)>'
FORMULA = '=HYPERLINK("https://evil.example")'


@pytest.fixture(scope="module")
def site(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("audit")
    with Site(copy(furnished, folder / "state"), basic_config(folder)) as made:
        made.ids = furnish_audit(made)  # type: ignore[attr-defined]
        yield made


def sentences(text: str) -> list[str]:
    return re.findall(r'<span class="said">([^<]*)</span>', text)


def test_the_log_is_filtered_linked_and_followed(browser: Browser, site: Site) -> None:
    # the newest line
    write_line(site, "recovery is paused", subject="recovery", request_id="req-7")
    with opened(browser, site.url) as page:
        page.goto(f"{AUDIT}")
        page.get_by_label("User").fill("admin")
        page.get_by_label("Password").fill("admin")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{AUDIT}")
        lines = page.locator("ol.audit > li")
        expect(lines.first).to_contain_text("recovery is paused")
        expect(lines.first).to_contain_text("by holdfast · req-7")
        check_for_everybody(page)
        picture(page, "audit")
        expect(page.locator("#live")).to_have_text("live")
        page.evaluate("window.loadedOnce = true")
        write_line(site, f"host {EVIL} joined", actor=WORSE)
        expect(lines.first).to_contain_text(f"host {EVIL} joined")
        expect(lines.first).to_contain_text(f"by {WORSE}")
        assert page.evaluate("window.loadedOnce")
        page.get_by_label("text").focus()
        page.keyboard.type("fenced")
        page.keyboard.press("Enter")
        page.wait_for_url("**text=fenced**")
        expect(lines).to_have_count(1)
        expect(page.locator("#audit-foot")).to_contain_text("holdfast audit list --text fenced")
        expect(page.get_by_label("text")).to_have_value("fenced")
        lines.first.locator("a.when").click()
        own = site.ids["fenced"]  # type: ignore[attr-defined]
        page.wait_for_url(f"**{AUDIT}?id={own}#line-{own}")
        chosen = page.locator("li[aria-current=true]")
        expect(chosen).to_contain_text("running: cmp-7 was FENCED")
        page.wait_for_load_state()
        assert lines.count() > 3, "with what was decided around it"
        expect(chosen.get_by_role("link", name="incident:c0ffee")).to_have_attribute(
            "href", "/console/incidents/c0ffee"
        )
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 375, "height": 800})
        check_for_everybody(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        picture(page, "audit-phone-dark")


def test_filters_equal_those_of_the_api_and_pages_continue(site: Site) -> None:
    admin = Person(site, "admin")
    text = admin.get(f"{AUDIT}?subject=incident:&since=2027-01-31T15:00").text
    assert sentences(text) == ["running: cmp-7 was FENCED"]
    assert 'value="2027-01-31T15:00"' in text
    assert sentences(admin.get(f"{AUDIT}?project_id=red&actor=rita").text) == ["lease red booked"]
    assert "No audit line matches the filters." in admin.get(f"{AUDIT}?text=nowhere").text
    assert admin.get(f"{AUDIT}?since=soon").status_code == 400
    for number in range(60):
        write_line(site, f"page {number:02}")
    first = admin.get(f"{AUDIT}?text=page").text
    (older,) = re.findall(r'href="([^"]+)" rel="next"', first)
    second = admin.get(older.replace("&amp;", "&")).text
    found = sentences(first) + sentences(second)
    assert found == [f"page {number:02}" for number in reversed(range(60))]
    assert f'data-refresh="{AUDIT}' not in second, "what is old does not change"


def test_a_member_sees_the_lines_of_its_project_on_the_page_and_in_every_export(
    site: Site,
) -> None:
    member, mine = Person(site, "member"), "lease 100% Blue booked"
    for query in ("", "?project_id=red", f"?subject={LEASE}"):
        assert sentences(member.get(AUDIT + query).text) == [mine], query
        assert sentences(member.get(f"{AUDIT}/lines{query}").text) == [mine]
        exported = member.get(f"{AUDIT}.json{query}").json()["audit"]
        assert [one["sentence"] for one in exported] == [mine]
        assert "red" not in member.get(f"{AUDIT}.csv{query}").text
    assert 'name="project_id"' not in member.get(AUDIT).text
    ids: dict[str, int] = site.ids  # type: ignore[attr-defined]
    assert sentences(member.get(f"{AUDIT}?id={ids['mine']}").text) == [mine]
    for name in ("booked", "fenced"):
        assert member.get(f"{AUDIT}?id={ids[name]}").status_code == 404
    assert member.get(f"{AUDIT}?id=x").status_code == 400
    assert Person(site).get(f"{AUDIT}.json").status_code == 303
    assert Person(site, "other").get(f"{AUDIT}.json").json()["audit"][0]["project_id"] == "red"


def test_an_export_has_all_lines_in_portions(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PORTION", 7)
    write_line(site, f"{FORMULA}, {EVIL}\n{WORSE}", actor="+ann", subject="hosts")
    admin = Person(site, "admin")
    every = site.call("GET", f"{OWN}/audit", "admin", query_string="limit=1000").json["audit"]
    answer = admin.get(f"{AUDIT}.json")
    assert json.loads(answer.content)["audit"] == every
    assert answer.headers["Content-Disposition"] == 'attachment; filename="audit.json"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    table = admin.get(f"{AUDIT}.csv")
    assert table.headers["Content-Type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(table.content.decode(), newline="")))
    assert [int(row["id"]) for row in rows] == [one["id"] for one in every]
    assert rows[0]["sentence"] == f"'{FORMULA}, {EVIL}\n{WORSE}"
    assert rows[0]["actor"] == "'+ann"
    fenced = admin.get(f"{AUDIT}.json?text=fenced").json()["audit"]
    assert [one["sentence"] for one in fenced] == ["running: cmp-7 was FENCED"]
    assert admin.get(f"{AUDIT}.json?text=nowhere").json() == {"audit": []}
    assert admin.get(f"{AUDIT}.csv?until=never").status_code == 400


def test_an_export_begins_where_the_page_does(site: Site) -> None:
    admin = Person(site, "admin")
    ids = [write_line(site, f"export {number:02}") for number in range(60)]

    def exported(page: str) -> list[str]:
        (link,) = re.findall(rf'href="({AUDIT}\.json[^"]*)"', page)
        found = admin.get(unescape(link)).json()["audit"]
        return [one["sentence"] for one in found if one["sentence"].startswith("export")]

    told = [f"export {number:02}" for number in reversed(range(60))]
    first = admin.get(f"{AUDIT}?text=export").text
    assert exported(first) == told
    (older,) = re.findall(r'href="([^"]+)" rel="next"', first)
    second = admin.get(unescape(older)).text
    assert exported(second) == told[50:] == sentences(second)
    assert f"audit export --text export --marker {ids[10]}" in second
    near = admin.get(f"{AUDIT}?id={ids[20]}").text
    assert sentences(near)[0] == exported(near)[0] == "export 30"
    assert exported(near) == told[29:]
    for nonsense in ("x", "-1", "9" * 40):
        assert admin.get(f"{AUDIT}.json?marker={nonsense}").status_code == 400


def test_audit_lines_are_escaped(site: Site) -> None:
    write_line(site, f"{EVIL} {WORSE}", subject=f"host:{WORSE}"[:128], project_id=EVIL, actor=EVIL)
    admin = Person(site, "admin")
    for query in ("", f"?text={EVIL}", f"?actor={EVIL}&subject={WORSE}&project_id={WORSE}"):
        text = admin.get(AUDIT + query).text
        assert "alert(1)" in text
        assert EVIL not in text
        assert WORSE not in text


@pytest.mark.parametrize(
    ("subject", "page"),
    [
        (LEASE, f"/console/leases/{LEASE}"),
        ("incident:c0ffee", "/console/incidents/c0ffee"),
        ("host:cmp-7", "/console/hosts/cmp-7"),
        (f"host:{LEASE}", f"/console/hosts/{LEASE}"),
        ("host:../../evil", "/console/hosts/..%2F..%2Fevil"),
        ("alarm:beef", "/console/alarms/beef"),
        ("recovery:x", "/console/switches"),
        ("maintenance", "/console/switches"),
        ("hosts", ""),
    ],
)
def test_a_subject_leads_to_its_page(subject: str, page: str) -> None:
    assert subject_page(subject) == page
