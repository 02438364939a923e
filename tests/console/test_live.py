# SPDX-License-Identifier: Apache-2.0
"""Change notices for open pages: by an event stream, or by polling if all streams are taken."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from playwright.sync_api import Browser, expect

from holdfast.console.live import KEEPALIVE_S, LASTS_S, NO_ID, REST_S, Feed, most_per_user
from holdfast.model.errors import Unavailable
from holdfast.runtime.clock import SystemClock
from tests.api.house import basic_config
from tests.console.browser import opened
from tests.console.people import Person
from tests.console.site import Site
from tests.processes import PATIENCE_S, eventually
from tests.simclock import SimClock


class World:
    """Marks that a test changes."""

    def __init__(self) -> None:
        self.marks = {"hosts": "0", "leases": "0"}
        self.reads = 0

    def read_marks(self) -> dict[str, str]:
        self.reads += 1
        return dict(self.marks)

    def change(self, topic: str) -> None:
        before = self.reads
        eventually(lambda: self.reads > before)  # the old mark is known
        self.marks[topic] += "!"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def feed(world: World) -> Iterator[Feed]:
    made = Feed(world.read_marks, SystemClock(), streams=1)
    yield made
    made.stop()


def test_a_poll_returns_the_topics_changed_since_an_id(world: World, feed: Feed) -> None:
    at, topics = feed.since("")
    assert topics == []
    world.change("hosts")
    eventually(lambda: feed.since(at)[1] == ["hosts"])
    new, _ = feed.since(at)
    assert feed.since(new) == (new, [])
    world.change("leases")
    eventually(lambda: feed.since(at)[1] == ["hosts", "leases"])


def test_an_invalid_id_gets_all_topics(feed: Feed) -> None:
    at, _ = feed.since("")
    assert len(at) == 16 and feed.since(at) == (at, [])
    hostile = (at[:-1], at + "0", "é" * 16, "\n" * 16, "٣" * 16, "x" * 100_000)
    for known in ("a1b2c3d4-7", "nonsense", NO_ID, *hostile):
        assert feed.since(known) == (at, ["*"])
        assert next(_first_event(feed, known)).endswith(b"data: *\n\n")


def _first_event(feed: Feed, known: str) -> Iterator[bytes]:
    """Yield the first event of a stream, then release its slot."""
    stream = feed.stream(known)
    try:
        next(stream)
        yield next(stream)
    finally:
        stream.close()


def test_every_process_understands_the_ids_of_the_others(world: World, feed: Feed) -> None:
    other = Feed(world.read_marks, SystemClock(), streams=1)
    try:
        at, _ = feed.since("")
        for _ in range(3):
            for one in (feed, other):
                assert one.since(at) == (at, [])
                assert list(_first_event(one, at)) == [
                    f"id: {at}\nevent: change\ndata: \n\n".encode()
                ]
        world.change("leases")
        for one in (feed, other):
            eventually(lambda one=one: one.since(at)[1] == ["leases"])  # type: ignore[misc]
        assert feed.since(at) == other.since(at)
    finally:
        other.stop()


def test_a_stream_sends_changes_at_once_and_releases_its_slot(world: World, feed: Feed) -> None:
    stream = iter(feed.stream(""))
    assert next(stream).startswith(b"retry:")
    assert next(stream).endswith(b"event: change\ndata: \n\n")
    with pytest.raises(Unavailable):
        feed.stream("")
    world.change("leases")
    news = next(event for event in stream if not event.startswith(b": still here"))
    assert news.endswith(b"data: leases\n\n")
    stream.close()  # type: ignore[attr-defined]
    feed.stream("").close()  # type: ignore[attr-defined]
    feed.stream("")


def test_the_next_page_of_a_tab_takes_over_its_slot(feed: Feed) -> None:
    first = feed.stream("", "me", "tab-1")
    second = feed.stream("", "me", "tab-1")
    events = list(first)
    assert len(events) == 3 and events[-1].startswith(b"event: moved")  # and then it ends
    with pytest.raises(Unavailable):
        feed.stream("", "you", "tab-2")
    second.close()  # type: ignore[attr-defined]
    feed.stream("", "you", "tab-2")


def test_streams_end_with_the_process(feed: Feed) -> None:
    stream = feed.stream("")
    feed.stop()
    assert len(list(stream)) == 2
    with pytest.raises(Unavailable):
        feed.stream("")


@pytest.mark.parametrize("how", ["logout", "password"])
def test_a_stream_ends_with_its_session(
    build: Callable[..., Site], tmp_path: Path, how: str
) -> None:
    site = build(basic_config(tmp_path))
    person = Person(site, "reader")
    with person.get("/console/live", stream=True) as stream:
        pieces = stream.iter_content(None)
        assert next(pieces).startswith(b"retry:")
        if how == "logout":
            assert person.post("/console/logout", {}).status_code == 303
        else:
            lines = (tmp_path / "htpasswd").read_text()
            (tmp_path / "htpasswd").write_text(lines.replace("reader:", "reader-2:"))
        most = int(LASTS_S / KEEPALIVE_S / 2)
        assert len(list(itertools.islice(pieces, most))) < most  # the stream ended
    assert not site.services.feed._slots


def test_the_polling_thread_rests_without_listeners(world: World) -> None:
    clock = SimClock()
    feed = Feed(world.read_marks, clock, streams=1)
    at, _ = feed.since("")
    eventually(lambda: not feed._is_polling)
    assert world.reads <= REST_S + 1
    world.marks["hosts"] = "another"  # unread until the next poll of a page
    assert feed.since(at)[1] == ["hosts"]
    feed.stop()


def test_polling_survives_an_unavailable_database() -> None:
    answers: list[object] = [{"hosts": "1"}, Unavailable("away"), ValueError(), {"hosts": "2"}]

    def read_marks() -> dict[str, str]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    feed = Feed(read_marks, SystemClock(), streams=1)
    at, _ = feed.since("")
    eventually(lambda: feed.since(at)[1] == ["hosts"])
    feed.stop()


def test_a_page_from_before_the_first_poll_gets_all_topics() -> None:
    answers: list[object] = [Unavailable("away"), {"hosts": "1"}]

    def read_marks() -> dict[str, str]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    feed = Feed(read_marks, SystemClock(), streams=1)
    assert feed.since("ab" * 4) == (NO_ID, [])
    eventually(lambda: feed.since(NO_ID)[1] == ["*"])
    feed.stop()


def test_a_page_polls_if_all_streams_are_in_use(browser: Browser, site: Site) -> None:
    with opened(browser, site.url) as page:
        page.goto("/console/audit")
        expect(page.locator("#live")).to_have_text("live")
    site.alone()
    taken = []
    try:
        for _ in range(most_per_user(site.conf.console.streams)):
            taken.append(requests.get(f"{site.url}/console/live", stream=True, timeout=PATIENCE_S))
        assert all(one.status_code == 200 for one in taken)
        refused = requests.get(f"{site.url}/console/live", timeout=PATIENCE_S)
        assert refused.status_code == 503
        assert requests.get(f"{site.url}/console/leases", timeout=PATIENCE_S).status_code == 200
        with opened(browser, site.url) as page:
            page.goto("/console/audit")
            expect(page.locator("#live")).to_have_text("live (polling)")
    finally:
        for one in taken:
            one.close()


def test_two_pages_with_the_same_tab_id_both_get_changes(browser: Browser, site: Site) -> None:
    """`Duplicate tab` of a browser copies the session storage."""
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
        eventually(lambda: len(site.services.feed._slots) == 2)


def test_a_hidden_page_releases_its_stream_and_reconnects(browser: Browser, site: Site) -> None:
    hide = "document.dispatchEvent(new Event('visibilitychange'))"
    site.alone()
    with opened(browser, site.url) as page:
        page.goto("/console/audit")
        page.wait_for_selector("#live.on")
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true, writable: true})")
        page.evaluate(hide)
        eventually(lambda: not site.services.feed._slots)
        with page.expect_response("**/console/live?**") as again:
            page.evaluate("document.hidden = false")
            page.evaluate(hide)
        assert again.value.status == 200
        eventually(lambda: len(site.services.feed._slots) == 1)
