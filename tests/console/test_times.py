# SPDX-License-Identifier: Apache-2.0
"""Times are UTC, and tooltips show the local time: in text, in bars and in charts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from holdfast.console.format import timed
from tests.api.ha import add_host, make_segment
from tests.api.house import copy
from tests.console.browser import opened
from tests.console.site import Site
from tests.console.test_wall import QUIET, add_window
from tests.console.tour import furnish, walked
from tests.processes import eventually

#: A zone with a half-hour offset, so that no UTC time equals a local time.
THERE = {"timezone_id": "Asia/Kolkata", "locale": "en-GB"}
AHEAD = timedelta(hours=5, minutes=30)
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d")
#: Parts of a page that are no prose: charts, commands, input.
BESIDE = re.compile(r"<(svg|code|textarea|pre|script|time)\b.*?</\1>|<[^>]*>", re.DOTALL)

#: The explanation at the end of an incident page, as `holdfast incident explain` prints it.
EXPLANATION = '<section id="incident-story"'


@pytest.fixture(scope="module")
def site(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    state = copy(furnished, tmp_path_factory.mktemp("times") / "state")
    with Site(state, QUIET) as made:
        furnish(made)
        yield made


def local(at: datetime) -> str:
    there = at + AHEAD
    return f"{there:%d/%m/%Y}, {there.hour}:{there:%M}"


def pointed(page: Page, at: Locator) -> str:
    """Return the tooltip."""
    at.scroll_into_view_if_needed()
    at.hover(force=True)
    return str(at.evaluate("one => one.closest('svg').querySelector('title').textContent"))


def test_the_tooltip_of_a_calendar_bar_has_the_local_time(browser: Browser, site: Site) -> None:
    with opened(browser, site.url, **THERE) as page:
        page.goto("/console/calendar")
        bar = page.locator("a[data-lease]").first
        start, end = (
            datetime.fromtimestamp(int(bar.get_attribute(name) or 0) / 1000, UTC)
            for name in ("data-from", "data-to")
        )
        assert f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC" in (
            bar.get_attribute("aria-label") or ""
        )

        def is_shown() -> bool:  # again if a refresh replaced the element
            tooltip = pointed(page, bar.locator("rect.bar"))
            return all(part in tooltip for part in (local(start), local(end), "GMT+5:30"))

        eventually(is_shown)
        page.mouse.move(1, 1)
        expect(bar.locator("title")).not_to_contain_text("GMT+5:30")
        page.goto("/console/calendar?view=racks")
        level = page.locator("rect.level").first

        def is_on_level() -> bool:
            level.hover(force=True)
            return "GMT+5:30" in (level.locator("xpath=..").locator("title").text_content() or "")

        eventually(is_on_level)
        page.get_by_text("as a table").click()
        first = page.locator("#as-table time").first
        at = datetime.fromisoformat(first.get_attribute("datetime") or "")
        expect(first).to_have_attribute("title", re.compile(re.escape(local(at))))


def test_a_time_in_a_sentence_has_a_local_tooltip(browser: Browser, site: Site) -> None:
    with opened(browser, site.url, **THERE) as page:
        page.goto("/console/search?q=r")
        hit = page.locator(".hits li", has_text="lease").first
        expect(hit.locator("time")).to_have_count(2)
        for one in hit.locator("time").all():
            at = datetime.fromisoformat(one.get_attribute("datetime") or "")
            assert f"{at:%Y-%m-%d %H:%M}" in one.inner_text()
            expect(one).to_have_attribute("title", re.compile(re.escape(local(at))))


def test_the_tooltip_of_a_badge_has_utc_and_local_time(browser: Browser, site: Site) -> None:
    add_host(site, make_segment(site, name="resting")["uuid"], "cmp-4")
    add_window(site, {"host": "cmp-4"})
    with opened(browser, site.url, **THERE) as page:
        page.goto("/")
        badge = page.locator(".badge.warn[title]", has_text="maintenance").first
        wanted = re.compile(r"^maintenance window until .*GMT\+5:30", re.DOTALL)
        expect(badge).to_have_attribute("title", wanted)
        title = badge.get_attribute("title") or ""
        (until,) = TIME.findall(title)
        assert local(datetime.fromisoformat(until)) in title


def test_every_time_in_text_has_a_local_tooltip(site: Site) -> None:
    bare = []
    for path, text in walked(site):
        prose = BESIDE.sub(" ", text.partition(EXPLANATION)[0])
        bare += [(path, prose[max(0, m.start() - 60) : m.end()]) for m in TIME.finditer(prose)]
    assert not bare, "\n".join(map(str, bare))


def test_only_times_marked_as_utc_match() -> None:
    assert timed("from 2026-11-17 03:20 to 2026-11-18 03:20:05 UTC") == (
        'from <time datetime="2026-11-17T03:20:00+00:00">2026-11-17 03:20</time> to'
        ' <time datetime="2026-11-18T03:20:05+00:00">2026-11-18 03:20:05 UTC</time>'
    )
    assert timed("<b> until 2026-11-17 03:20 UTC") == (
        '&lt;b&gt; until <time datetime="2026-11-17T03:20:00+00:00">2026-11-17 03:20 UTC</time>'
    )
    assert timed("until 2026-11-17 03:20:05.25+00:00").startswith("until <time datetime=")
    for text in ("2026-11-17 03:20", "9999-99-99 99:99 UTC", "2026-11-17 UTC", ""):
        assert timed(text) == text
