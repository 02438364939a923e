# SPDX-License-Identifier: Apache-2.0
"""Pages learn that something changed: by a stream while one is free, by asking otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
from playwright.sync_api import Browser, expect

from holdfast.console.live import NOWHERE, REST_S, Feed, most_own
from holdfast.model.errors import Unavailable
from holdfast.runtime.clock import SystemClock
from tests.console.browser import opened
from tests.console.site import Site
from tests.processes import PATIENCE_S, eventually
from tests.simclock import SimClock


class World:
    """Marks that a test changes."""

    def __init__(self) -> None:
        self.marks = {"hosts": "0", "leases": "0"}
        self.looks = 0

    def look(self) -> dict[str, str]:
        self.looks += 1
        return dict(self.marks)

    def change(self, topic: str) -> None:
        seen = self.looks
        eventually(lambda: self.looks > seen)  # the old mark is known
        self.marks[topic] += "!"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def feed(world: World) -> Iterator[Feed]:
    made = Feed(world.look, SystemClock(), streams=1)
    yield made
    made.stop()


def test_who_asks_hears_what_changed_since_he_asked(world: World, feed: Feed) -> None:
    at, topics = feed.since("")
    assert topics == []
    world.change("hosts")
    eventually(lambda: feed.since(at)[1] == ["hosts"])
    new, _ = feed.since(at)
    assert feed.since(new) == (new, [])
    world.change("leases")
    eventually(lambda: feed.since(at)[1] == ["hosts", "leases"])


def test_what_is_no_id_of_ours_is_told_that_all_changed(feed: Feed) -> None:
    at, _ = feed.since("")
    assert len(at) == 16 and feed.since(at) == (at, [])
    hostile = (at[:-1], at + "0", "é" * 16, "\n" * 16, "٣" * 16, "x" * 100_000)
    for known in ("a1b2c3d4-7", "nonsense", NOWHERE, *hostile):
        assert feed.since(known) == (at, ["*"])
        assert next(_told(feed, known)).endswith(b"data: *\n\n")


def _told(feed: Feed, known: str) -> Iterator[bytes]:
    """What a stream says after how to come again; its place is given back."""
    stream = feed.stream(known)
    try:
        next(stream)
        yield next(stream)
    finally:
        stream.close()


def test_whichever_process_answers_knows_where_a_page_is(world: World, feed: Feed) -> None:
    other = Feed(world.look, SystemClock(), streams=1)
    try:
        at, _ = feed.since("")
        for _ in range(3):
            for one in (feed, other):
                assert one.since(at) == (at, [])
                assert list(_told(one, at)) == [f"id: {at}\nevent: change\ndata: \n\n".encode()]
        world.change("leases")
        for one in (feed, other):
            eventually(lambda one=one: one.since(at)[1] == ["leases"])  # type: ignore[misc]
        assert feed.since(at) == other.since(at)
    finally:
        other.stop()


def test_a_stream_tells_at_once_and_gives_its_place_back(world: World, feed: Feed) -> None:
    stream = iter(feed.stream(""))
    assert next(stream).startswith(b"retry:")
    assert next(stream).endswith(b"event: change\ndata: \n\n")
    with pytest.raises(Unavailable):
        feed.stream("")
    world.change("leases")
    news = next(said for said in stream if not said.startswith(b": still here"))
    assert news.endswith(b"data: leases\n\n")
    stream.close()  # type: ignore[attr-defined]
    feed.stream("").close()  # type: ignore[attr-defined]
    feed.stream("")


def test_the_next_page_of_a_tab_takes_the_place_of_the_one_before(feed: Feed) -> None:
    first = feed.stream("", "me", "tab-1")
    second = feed.stream("", "me", "tab-1")
    told = list(first)
    assert len(told) == 3 and told[-1].startswith(b"event: moved")  # and then it ends
    with pytest.raises(Unavailable):
        feed.stream("", "you", "tab-2")
    second.close()  # type: ignore[attr-defined]
    feed.stream("", "you", "tab-2")


def test_streams_end_when_the_program_does(feed: Feed) -> None:
    stream = feed.stream("")
    feed.stop()
    assert len(list(stream)) == 2
    with pytest.raises(Unavailable):
        feed.stream("")


def test_nobody_looks_while_nobody_listens(world: World) -> None:
    clock = SimClock()
    feed = Feed(world.look, clock, streams=1)
    at, _ = feed.since("")
    eventually(lambda: not feed._looking)
    assert world.looks <= REST_S + 1
    world.marks["hosts"] = "another"  # unseen until somebody asks
    assert feed.since(at)[1] == ["hosts"]


def test_a_database_that_is_away_is_no_end_of_it() -> None:
    answers: list[object] = [{"hosts": "1"}, Unavailable("away"), ValueError(), {"hosts": "2"}]

    def look() -> dict[str, str]:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[return-value]

    feed = Feed(look, SystemClock(), streams=1)
    at, _ = feed.since("")
    eventually(lambda: feed.since(at)[1] == ["hosts"])
    feed.stop()


def test_who_came_before_anything_could_be_seen_is_told_that_all_changed() -> None:
    answers: list[object] = [Unavailable("away"), {"hosts": "1"}]

    def look() -> dict[str, str]:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[return-value]

    feed = Feed(look, SystemClock(), streams=1)
    assert feed.since("ab" * 4) == (NOWHERE, [])
    eventually(lambda: feed.since(NOWHERE)[1] == ["*"])
    feed.stop()


def test_a_page_is_told_by_stream_and_one_too_many_asks(browser: Browser, site: Site) -> None:
    with opened(browser, site.url) as page:
        page.goto("/console/audit")
        expect(page.locator("#live")).to_have_text("live")
    site.alone()
    taken = []
    try:
        for _ in range(most_own(site.conf.console.streams)):
            taken.append(requests.get(f"{site.url}/console/live", stream=True, timeout=PATIENCE_S))
        assert all(one.status_code == 200 for one in taken)
        refused = requests.get(f"{site.url}/console/live", timeout=PATIENCE_S)
        assert refused.status_code == 503
        assert requests.get(f"{site.url}/console/leases", timeout=PATIENCE_S).status_code == 200
        with opened(browser, site.url) as page:
            page.goto("/console/audit")
            expect(page.locator("#live")).to_have_text("live, by asking")
    finally:
        for one in taken:
            one.close()


def test_two_pages_that_call_themselves_the_same_tab_are_both_told(
    browser: Browser, site: Site
) -> None:
    """As after `duplicate tab`, which copies what a tab remembers."""
    site.alone()
    with opened(browser, site.url) as page, opened(browser, site.url) as twin:
        page.goto("/console/audit")
        page.wait_for_selector("#live.on")
        name = page.evaluate("sessionStorage.tab")
        twin.add_init_script(f"sessionStorage.tab ||= {name!r}")
        twin.goto("/console/audit")
        twin.wait_for_selector("#live.on")
        eventually(lambda: page.evaluate("sessionStorage.tab") != name)
        expect(page.locator("#live")).to_have_text("live")
        expect(twin.locator("#live")).to_have_text("live")
        eventually(lambda: len(site.services.feed._places) == 2)


def test_a_page_that_nobody_looks_at_gives_its_stream_back_and_catches_up(
    browser: Browser, site: Site
) -> None:
    hide = "document.dispatchEvent(new Event('visibilitychange'))"
    site.alone()
    with opened(browser, site.url) as page:
        page.goto("/console/audit")
        page.wait_for_selector("#live.on")
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true, writable: true})")
        page.evaluate(hide)
        eventually(lambda: not site.services.feed._places)
        with page.expect_response("**/console/live?**") as again:
            page.evaluate("document.hidden = false")
            page.evaluate(hide)
        assert again.value.status == 200
        eventually(lambda: len(site.services.feed._places) == 1)
