# SPDX-License-Identifier: Apache-2.0
"""Pages of metrics and alarms of hosts and guests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect

from holdfast.alarms.preview import preview
from holdfast.console import alarms as alarm_pages
from holdfast.console import metrics
from holdfast.console.metrics import Mark
from holdfast.db import agents
from holdfast.db.alarms import Wanted
from holdfast.db.tables import agents as agents_table
from holdfast.db.tables import alarms as alarms_table
from tests.api.house import OWN, basic_config
from tests.api.rules import alarm_body, beat_body, furnish_alarm, furnish_rules, report
from tests.console.browser import SCREENS, check_for_everybody, opened, picture
from tests.console.hours import EVIL, GUEST, WORSE, busy, flat, guest, hour, kept, put
from tests.console.people import Person
from tests.console.site import Site

Build = Callable[..., Site]
#: An agent is alive for three heartbeats after it was heard of: for as long as a test takes.
SLOW_S = 300


def ago(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()


def expect_fact(page: Page, text: str) -> None:
    """Expect a term of the alarm details followed by its value."""
    expect(page.locator("#facts")).to_contain_text(text, use_inner_text=True)


def alarm(site: Site, begin: float, event: str = "raised", at: float | None = None) -> None:
    """Report the alarm busy of web-1 as the agent of cmp-1."""
    first = ago(begin)
    site_key = f"{GUEST}/busy/{begin}"
    body = alarm_body(event, ago(begin if at is None else at), first_at=first, key=site_key)
    report(site, body)


@pytest.fixture
def own(build: Build, browser: Browser) -> Iterator[tuple[Site, Page]]:
    """A site without requested metrics and without alarms, and a browser page."""
    site = build()
    with opened(browser, site.url) as page:
        yield site, page


def test_opening_a_host_requests_its_metrics_and_shows_them_as_they_arrive(
    own: tuple[Site, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "FRESH", timedelta(hours=1))  # however slow this machine is
    site, page = own
    furnish_rules(site)
    alarm(site, 29)
    alarm(site, 29, "cleared", 20)
    page.goto("/console/metrics/cmp-2")
    page.locator("#metrics-status", has_text="requested").wait_for()
    assert set(site.core.store.samples.wanted()) == {"cmp-2"}
    page.goto("/console/metrics/cmp-1")
    page.locator("#metrics-status", has_text="requested").wait_for()
    put(site, busy())
    page.get_by_role("heading", name="web-1").wait_for()
    expect(page.locator("#metrics-status")).to_contain_text("live metrics arrive")
    first = page.locator("section.entity", has=page.get_by_role("heading", name="web-1"))
    cpu = first.locator("figure", has_text="CPU").first
    assert cpu.locator("figcaption").inner_text().split("\n") == ["CPU", "20 %"]
    assert cpu.locator(".range").inner_text() == "20 % \N{EN DASH} 99 %"
    shown = first.get_by_role("img", name="CPU of web-1")
    text = shown.locator("desc").text_content() or ""
    assert text.startswith("min 20 %, max 99 %, last 20 %; alarm busy (warning) from ")
    assert shown.locator("rect.band").count() == 1 and shown.locator("line.level").count() == 1
    assert first.get_by_role("img", name="Memory used of web-1").locator("rect").count() == 0
    assert first.locator(".part").all_inner_texts() == ["disk vda", "interface tap0"]
    first.get_by_role("link", name="busy").click()
    page.get_by_role("heading", name="Alarm busy of web-1").wait_for()


def test_tenant_chosen_names_are_escaped(site: Site, page: Page) -> None:
    put(site, busy())
    page.goto("/console/metrics/cmp-1?q=" + EVIL)
    assert page.locator("h3").all_inner_texts()[0].startswith(EVIL)
    assert f"project {WORSE}" in page.locator("h3").inner_text()
    assert page.get_by_role("img", name=f"CPU of {EVIL}").count() == 1
    report(site, alarm_body(name=EVIL, project=WORSE, rule=WORSE, key="evil", summary=EVIL))
    page.goto("/console/alarms")
    page.get_by_role("link", name=WORSE).click()
    expect(page.locator("h1")).to_have_text(f"Alarm {WORSE} of {EVIL}")
    expect_fact(page, f"project {WORSE}")


def test_a_get_changes_nothing_and_without_script_a_button_requests_metrics(
    browser: Browser, site: Site
) -> None:
    paths = ("metrics", "metric-rows", "metrics/cmp-4", "metrics/cmp-4/figures", "alarms", "rules")
    site.settled()  # what other tests began is over
    before = kept(site)
    for path in paths:
        assert Person(site).get(f"/console/{path}").status_code == 200, path
    assert kept(site) == before
    with opened(browser, site.url, java_script_enabled=False) as page:
        page.goto("/console/metrics/cmp-4")
        expect(page.locator("#metrics-status")).to_contain_text("no page requested them")
        page.get_by_role("button", name="Start live metrics").click()
        expect(page.locator("#metrics-status")).to_contain_text("requested")
        put(site, hour(host="cmp-4", simulated=True), "cmp-4")  # the page comes again by itself
        expect(page.locator("main")).to_contain_text("simulated metrics")
        expect(page.locator("figure", has_text="CPU").first).to_contain_text("50 %")
        expect(page.locator('meta[http-equiv="refresh"]')).to_have_count(0)
    for path in ("metrics/nobody", "metrics/x%0d%0ay"):
        assert Person(site).get(f"/console/{path}").status_code == 404


def test_hosts_are_listed_with_their_agents_and_alarms(site: Site, page: Page) -> None:
    rules = {"version": "3-abc", "central": "old"}
    beat = beat_body(rules=rules, firing=2, deaf=EVIL, heartbeat_s=SLOW_S)
    site.call("PUT", f"{OWN}/agents/cmp-3", json=beat)
    report(site, alarm_body(host="cmp-1", key="listed"))
    page.goto("/console/metrics")
    rows = page.locator("#hosts-rows tr").all_inner_texts()
    assert rows[0].startswith("cmp-1") and "alarm" in rows[0]
    third = next(row for row in rows if row.startswith("cmp-3"))
    assert "alive" in third and "2 alarms firing" in third and EVIL in third
    assert "update pending" in third
    page.get_by_label("Host", exact=True).fill("mp-2")
    page.keyboard.press("Enter")
    page.get_by_text("1 host.", exact=True).wait_for()
    expect(page.locator("#hosts-rows th")).to_have_text(["cmp-2"])


def test_the_alarm_list_says_that_it_is_cut_and_the_host_list_counts_all(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = build()
    monkeypatch.setattr(alarm_pages, "MOST", 2)
    report(site, alarm_body(key="oldest", host="cmp-2"))
    (known,) = site.core.store.alarms.list_all(Wanted())
    later = known["fired_at"] + timedelta(hours=1)
    many = [
        {**known, "id": f"many-{n}", "key": f"many-{n}", "host": "cmp-1", "fired_at": later}
        for n in range(1001)
    ]
    with site.core.store.database.write() as conn:
        conn.execute(sa.insert(alarms_table), many)
    person = Person(site)
    listed = person.get("/console/alarms").text
    assert listed.count('<tr id="alarm-') == 2
    assert "The list shows the newest 2 alarms. Filter by host" in listed
    assert "--limit 2" in listed
    only = person.get("/console/alarms?host=cmp-2").text
    assert only.count('<tr id="alarm-') == 1 and "The list shows" not in only
    rows = person.get("/console/metrics").text.split('<tr id="host-')[1:]
    assert "1,001 alarms" in rows[0] and rows[0].startswith("cmp-1")
    assert "1 alarm<" in rows[1] and rows[1].startswith("cmp-2")


def test_an_open_page_shows_loaded_rules_and_missing_heartbeats(site: Site, page: Page) -> None:
    def beat(version: str) -> None:
        rules = {"version": version, "central": version}
        site.call("PUT", f"{OWN}/agents/cmp-4", json=beat_body(rules=rules, heartbeat_s=SLOW_S))

    beat("0-old")
    wanted = next(
        agent["rules"]["wanted"]
        for agent in site.call("GET", f"{OWN}/agents").json["agents"]
        if agent["host"] == "cmp-4"
    )
    page.goto("/console/metrics?q=cmp-4")
    row = page.locator("#hosts-rows tr")
    expect(row).to_contain_text("update pending")
    page.wait_for_selector("#live.on")
    beat(wanted)
    expect(row).not_to_contain_text("update pending")
    expect(row).to_contain_text("alive")
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    with site.core.store.database.write() as conn:
        mine = agents_table.c.host == "cmp-4"
        conn.execute(sa.update(agents_table).where(mine).values(seen_at=long_ago))
    expect(row).to_contain_text("no heartbeat since")


def test_an_alarm_is_answered_by_keyboard(site: Site, page: Page) -> None:
    report(site, alarm_body(rule="answered", key="answered"))
    page.goto("/console/alarms?rule=answered")
    page.get_by_role("link", name="answered").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Acknowledge").focus()
    page.keyboard.press("Enter")
    page.get_by_text("admin acknowledged the alarm: no further notifications").wait_for()
    expect_fact(page, "acknowledged by admin")
    page.locator("select#for").select_option("4h")
    page.get_by_role("button", name="Mute").press("Enter")
    page.get_by_text("alarm muted for 4h").wait_for()
    expect_fact(page, "muted until")
    page.get_by_role("button", name="End the mute").press("Enter")
    page.get_by_text("mute ended").wait_for()
    expect_fact(page, "muted no")
    page.wait_for_selector("#live.on")
    page.locator("select#for").select_option("7 days")
    page.locator("h1").click()
    own = urlsplit(page.url).path.rpartition("/")[2]
    site.call("POST", f"{OWN}/alarms/{own}/mute", json={"duration_s": 60})
    page.get_by_role("button", name="End the mute").wait_for()
    expect(page.locator("select#for")).to_have_value("7d")
    report(site, alarm_body("cleared", ago(0), rule="answered", key="answered", reason=EVIL))
    page.locator("#facts", has_text="resolved").get_by_text(EVIL).wait_for()


def test_the_preview_of_a_simulated_host_is_computed_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[Any] = []

    def counted(text: str, hours: Any) -> Any:
        texts.append(text)
        return preview(text, hours)

    monkeypatch.setattr(metrics, "preview", counted)
    furnish_rules(site)
    put(
        site,
        hour(guest(GUEST, "web-1", flat(0.2, m30=0.99)), host="cmp-3", simulated=True),
        "cmp-3",
    )
    for _ in range(3):
        charts = Person(site).get("/console/metrics/cmp-3/figures").text
        assert "alarm busy (warning) from" in charts
    assert len(texts) == 1
    site.core.store.alarm_rules.remove("base", "ann")
    assert "alarm busy" not in Person(site).get("/console/metrics/cmp-3/figures").text


@pytest.mark.parametrize(("theme", "width"), SCREENS)
def test_pages_are_accessible_on_any_screen(
    browser: Browser, site: Site, theme: Any, width: int
) -> None:
    put(site, busy())
    alarm(site, 25)
    with opened(browser, site.url, color_scheme=theme) as page:
        page.set_viewport_size({"width": width, "height": 800})
        for path in ("metrics", "metrics/cmp-1", "alarms"):
            page.goto(f"/console/{path}")
            check_for_everybody(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            picture(page, f"{path.replace('/', '-')}-{theme}-{width}")
        page.goto(page.locator("#alarms-rows a").first.get_attribute("href") or "")
        check_for_everybody(page)


def test_a_member_sees_alarms_of_the_own_project_and_no_hosts(build: Build, tmp_path: Path) -> None:
    site = build(basic_config(tmp_path))
    alarm_id = furnish_alarm(site)
    member, reader, other = (Person(site, name) for name in ("member", "reader", "other"))
    listed = member.get("/console/metrics").text
    assert "web-1" in listed and 'href="/console/metrics/' not in listed
    assert 'href="/console/rules"' not in listed
    assert "web-1" not in other.get("/console/alarms").text
    place = f"/console/alarms/{alarm_id}"
    assert other.get(place).status_code == 404
    for person in (reader, member, other):
        assert '<button class="main">Acknowledge' not in person.get(place).text
        assert "holdfast alarm end" not in person.get(place).text
        for action, fields in (("ack", {}), ("mute", {"for": "1h"}), ("end", {})):
            assert person.post(f"{place}/{action}", fields).status_code == 403
    operator = Person(site, "admin")
    assert '<button class="main">Acknowledge' in operator.get(place).text
    assert operator.post(f"{place}/mute", {"for": "forever"}).status_code == 400
    assert "holdfast alarm end" in operator.get(place).text
    operator.post(f"{place}/end", {})
    over = operator.get(place).text
    assert "ended by admin" in over and "holdfast alarm end" not in over
    assert "ended by admin" in member.get(place).text
    assert operator.post(f"{place}/ack", {}).status_code == 303
    for path in ("metric-rows", "metrics/cmp-1", "metrics/cmp-1/figures", "rules", "rules/new"):
        assert member.get(f"/console/{path}").status_code == 403, path
    assert member.post("/console/metrics/cmp-1/watch", {}).status_code == 403


# Charts


def test_peaks_stay_and_unknown_values_are_gaps() -> None:
    values = flat(0.2)
    values[100] = 0.9
    values[200:260] = flat(math.nan)[:60]
    drawn = metrics.draw_spark("s", "util_ratio", values, hour())
    assert (drawn.lowest, drawn.highest, drawn.last) == ("20 %", "90 %", "20 %")
    assert drawn.line.count("M") == 2 and f" {60 - 0.9 * 56:.3g}" in drawn.line
    assert len(drawn.line) < 1500
    nothing = metrics.draw_spark("s", "load1", flat(math.nan), hour())
    assert nothing.line == "" and nothing.description.endswith("last unknown")


def test_the_band_of_an_alarm_is_cut_to_the_hour() -> None:
    made = hour()
    begin = datetime.fromtimestamp(made.begin * 10, UTC)
    long_ago = Mark("old", "info", "ok", begin - timedelta(hours=2), begin - timedelta(hours=1))
    since = Mark("hot", "critical", "firing", begin - timedelta(hours=2), None, 0.9)
    drawn = metrics.draw_spark("s", "util_ratio", flat(0.5), made, [long_ago, since])
    (band,) = drawn.bands
    assert (band.x, band.width, band.begins) == (0, metrics.WIDE, False)
    assert "alarm hot (critical) from" in drawn.description and "still open" in drawn.description


def test_many_guests_are_on_several_pages_and_found_by_name() -> None:
    made = hour(*(guest(f"id-{n}", f"web-{n:02}", flat(0.1)) for n in range(30)))
    layout = metrics.lay_out(made, {}, "", 3)
    assert (layout.matches, layout.page, layout.pages) == (30, 3, 3)
    assert [guest.name for guest in layout.guests] == [f"web-{n}" for n in range(24, 30)]
    assert [one.name for one in metrics.lay_out(made, {}, "WEB-07").guests] == ["web-07"]
    assert metrics.lay_out(made, {}, "", 99).page == 3
