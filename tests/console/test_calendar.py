# SPDX-License-Identifier: Apache-2.0
"""The calendar: reservations over time, and booking by mouse, by keyboard or without script."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Error, FloatRect, Locator, Page, Route, expect

from holdfast.console import calendar
from holdfast.console.calendar import (
    ZOOMS,
    Around,
    Bar,
    Row,
    Scale,
    host_condition,
    host_rows,
    in_lanes,
    pool_rows,
)
from holdfast.console.leases import LeaseForm
from holdfast.console.pages import environment
from holdfast.db.tables import hosts as hosts_table
from holdfast.model.errors import InvalidInput
from tests.api.house import HOSTS, LEASES, OWN, basic_config, host_reservation, when
from tests.console.browser import check_for_everybody, opened, picture
from tests.console.people import Person
from tests.console.site import Site
from tests.processes import eventually

CALENDAR = "/console/calendar"
EVIL = '"><img src=x onerror=alert(1)><script>alert(1)</script>'
NOW = datetime(2026, 11, 17, 3, 20, 5, tzinfo=UTC)


@pytest.fixture(autouse=True)
def cleared(site: Site) -> Iterator[None]:
    """Delete all leases after each test."""
    yield

    def free() -> bool:
        left = site.call("GET", LEASES).json["leases"]
        for one in left:
            site.call("DELETE", f"{LEASES}/{one['id']}")
        return not left

    eventually(free)


def on(host: str, **fields: Any) -> dict[str, Any]:
    """A lease of exactly this host."""
    properties = f'["==", "$hypervisor_hostname", "{host}"]'
    return {"reservations": [host_reservation(resource_properties=properties)], **fields}


def lane(page: Page, host: str) -> Locator:
    return page.locator(f'.lane[data-name="{host}"]')


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=5)
    page.mouse.up()


def middle(found: Locator, part: float = 0.5) -> tuple[float, float]:
    def look() -> FloatRect | None:
        try:
            found.scroll_into_view_if_needed()
        except Error:  # it was drawn anew just then
            return None
        return found.bounding_box()

    box = eventually(look)
    assert box is not None
    return box["x"] + box["width"] * part, box["y"] + box["height"] / 2


def hosts_of(site: Site, name: str) -> tuple[dict[str, Any], list[str]]:
    shown = site.call("GET", LEASES, headers={"OpenStack-API-Version": "reservation 1.1"}).json
    (lease,) = [lease for lease in shown["leases"] if lease["name"] == name]
    return lease, [
        host["name"] for reservation in lease["reservations"] for host in reservation["hosts"]
    ]


def leads_to(text: str, rel: str) -> dict[str, list[str]]:
    """Return the query of the link to earlier or later times."""
    (found,) = re.findall(f'href="([^"]+)" rel="{rel}"', text)
    return parse_qs(urlsplit(unescape(found)).query)


# In a browser


def test_a_free_time_span_is_dragged_previewed_and_booked(site: Site, page: Page) -> None:
    page.goto(CALENDAR)
    page.evaluate("window.same = true")
    row = lane(page, "cmp-2")
    drag(page, middle(row, 0.5), middle(row, 0.6))
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("The lease fits.")).to_be_visible()
    expect(dialog.locator(".outcome")).to_contain_text("physical:host: cmp-2")
    assert dialog.get_by_label("Host condition").input_value() == "hypervisor_hostname=cmp-2"
    expect(dialog.locator(".outcome code")).to_contain_text("--where hypervisor_hostname=cmp-2")
    check_for_everybody(page)
    dialog.get_by_label("Name", exact=True).fill(f"drag {EVIL}")
    picture(page, "calendar-book")
    dialog.get_by_role("button", name="book", exact=True).click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#calendar-message")).to_contain_text("is booked")
    expect(row.get_by_role("link")).to_contain_text("drag")
    lease, hosts = hosts_of(site, f"drag {EVIL}")
    assert (hosts, lease["status"]) == (["cmp-2"], "PENDING")
    start, end = (datetime.fromisoformat(lease[name]) for name in ("start_date", "end_date"))
    assert end - start == timedelta(hours=17)
    assert page.evaluate("window.same") is True


def test_a_booking_that_takes_long_is_not_overtaken_by_a_dry_run(site: Site, page: Page) -> None:
    """What was typed just before is checked a little later: then it is booked already."""

    def hold(route: Route) -> None:
        if "do=book" in (route.request.post_data or ""):
            time.sleep(1.5)
        route.continue_()

    page.goto(CALENDAR)
    row = lane(page, "cmp-3")
    drag(page, middle(row, 0.7), middle(row, 0.75))
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("The lease fits.")).to_be_visible()
    page.route("**/console/leases**", hold)
    dialog.get_by_label("Name", exact=True).fill("slow")
    dialog.get_by_role("button", name="book", exact=True).click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#calendar-message")).to_contain_text("slow is booked")
    assert hosts_of(site, "slow")[1] == ["cmp-3"]


def test_a_time_is_selected_and_booked_by_keyboard(site: Site, page: Page) -> None:
    page.goto(CALENDAR)
    lane(page, "cmp-1").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator("#cursor-text")).to_contain_text("cmp-3: ")
    expect(page.locator("#cursor-text")).to_contain_text("2 h")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The lease fits.")).to_be_visible()
    page.keyboard.type("by-keys")
    page.keyboard.press("Enter")  # checks, and books nothing
    expect(page.locator(".outcome code")).to_contain_text("lease create by-keys")
    page.get_by_role("button", name="book", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert hosts_of(site, "by-keys")[1] == ["cmp-3"]
    bar = lane(page, "cmp-3").get_by_role("link")
    expect(bar).to_have_count(1)
    bar.focus()
    page.keyboard.press("+")
    page.keyboard.press("Enter")
    expect(page.get_by_text("The lease fits.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_lease_is_extended_by_dragging_up_to_its_neighbour(site: Site, page: Page) -> None:
    mine = site.lease(**on("cmp-4", name="mine", start_date=when(days=1), end_date=when(days=2)))
    site.lease(**on("cmp-4", name="neighbour", start_date=when(days=4), end_date=when(days=5)))
    page.goto(CALENDAR)
    row = lane(page, "cmp-4")
    grip = row.locator(f'a[data-lease="{mine["id"]}"] .grip')
    dialog = page.get_by_role("dialog")
    drag(page, middle(grip), middle(row, 0.8))
    expect(dialog.get_by_role("alert")).to_contain_text("Refused.")
    expect(dialog.get_by_role("alert")).to_contain_text("lease neighbour")
    picture(page, "calendar-refused")
    page.keyboard.press("Escape")
    drag(page, middle(grip), middle(row, 0.45))
    expect(dialog.locator(".outcome")).to_contain_text("the lease would keep cmp-4")
    dialog.get_by_role("button", name="change", exact=True).click()
    expect(dialog).to_be_hidden()
    ended = hosts_of(site, "mine")[0]["end_date"]
    assert ended > mine["end_date"]
    shown = datetime.fromisoformat(ended).replace(tzinfo=UTC).timestamp() * 1000
    expect(row.locator(f'a[data-lease="{mine["id"]}"]')).to_have_attribute(
        "data-to", str(int(shown))
    )


def test_a_drag_ends_when_its_row_disappears(build: Callable[..., Site], browser: Browser) -> None:
    site = build()
    with opened(browser, site.url) as page:
        page.goto(CALENDAR)
        expect(page.locator("#live")).to_have_text("live")
        row, cursor = lane(page, "cmp-2"), page.locator("#cursor")
        page.mouse.move(*middle(row, 0.6))
        page.mouse.down()
        page.mouse.move(*middle(row, 0.7))
        expect(cursor).to_be_visible()
        gone = site.call("DELETE", f"{HOSTS}/{site.core.store.ledger.host('cmp-2').id}")
        assert gone.status_code == 204, gone.text
        expect(row).to_have_count(0)
        expect(cursor).to_be_hidden()
        page.mouse.move(*middle(lane(page, "cmp-3"), 0.8))
        page.mouse.up()
        expect(cursor).to_be_hidden()
        expect(page.get_by_role("dialog")).to_be_hidden()


def test_a_drag_that_ends_outside_does_not_swallow_the_next_click(site: Site, page: Page) -> None:
    days = {"start_date": when(days=1), "end_date": when(days=2)}
    lease = site.lease(**on("cmp-3", name="pulled", **days))
    page.goto(CALENDAR)
    row = lane(page, "cmp-3")
    bar = row.locator(f'a[data-lease="{lease["id"]}"]')
    page.mouse.move(*middle(bar.locator(".grip")))
    page.mouse.down()
    page.mouse.move(*middle(row, 0.8))
    page.evaluate("dispatchEvent(new PointerEvent('pointerup', {clientX: 9999}))")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    bar.focus()
    page.keyboard.press("Enter")  # the drag caused no click: this one opens the lease
    page.wait_for_url(f"**/console/leases/{lease['id']}")
    page.mouse.up()


def test_a_slot_is_found_and_booked_or_refused_with_the_reason(site: Site, page: Page) -> None:
    page.goto(CALENDAR)
    page.get_by_text("Find a slot").click()
    find = page.locator("#find")
    find.get_by_label("Count").fill("9")
    find.get_by_role("button", name="Find").click()
    expect(find.get_by_role("alert")).to_contain_text("Not enough hosts")
    find.get_by_label("Count").fill("2")
    find.get_by_label("Duration").fill("3h")
    find.get_by_role("button", name="Find").click()
    expect(find.locator(".fits")).to_contain_text("2 hosts")
    page.wait_for_load_state()  # without its script, a link to book leads to another page
    assert "count=2" in page.url and "length=3h" in page.url
    check_for_everybody(page)
    find.get_by_role("link", name="book this").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("The lease fits.")).to_be_visible()
    dialog.get_by_label("Name", exact=True).fill("found")
    dialog.get_by_role("button", name="book", exact=True).click()
    expect(page.locator("#calendar-message")).to_contain_text("Lease found is booked.")
    lease, hosts = hosts_of(site, "found")
    assert len(hosts) == 2
    start, end = (datetime.fromisoformat(lease[name]) for name in ("start_date", "end_date"))
    assert timedelta(hours=3) <= end - start <= timedelta(hours=3, minutes=1)


def test_the_calendar_updates_itself_and_is_accessible(
    site: Site, browser: Browser, page: Page
) -> None:
    page.goto(f"{CALENDAR}?zoom=month")
    expect(page.locator("#live")).to_have_text("live")
    later = {"start_date": when(days=9), "end_date": when(days=12)}
    lease = site.lease(**on("cmp-1", name="news", **later))
    expect(lane(page, "cmp-1").get_by_role("link", name="news")).to_be_visible()
    expect(page.locator("#count")).to_have_text("1 to 4 of 4 rows")
    check_for_everybody(page)
    site.call("DELETE", f"{LEASES}/{lease['id']}")
    expect(lane(page, "cmp-1").get_by_role("link", name="news")).to_have_count(0)
    page.emulate_media(color_scheme="dark")
    picture(page, "calendar-dark")
    for view in ("hosts", "racks", "leases"):
        page.goto(f"{CALENDAR}?view={view}")
        check_for_everybody(page)
        if view == "leases":  # a time for a new one is chosen here
            row = lane(page, "new lease")
            drag(page, middle(row, 0.8), middle(row, 0.9))
            expect(page.get_by_text("The lease fits.")).to_be_visible()
    small = {"viewport": {"width": 375, "height": 700}}
    with opened(browser, site.url, **small) as phone:
        for path in (CALENDAR, f"{CALENDAR}?view=racks&find=1"):
            phone.goto(path)
            assert phone.evaluate("document.documentElement.scrollWidth") <= 375, path
        picture(phone, "calendar-phone")


def test_a_host_is_booked_without_script(site: Site, browser: Browser) -> None:
    with opened(browser, site.url, java_script_enabled=False) as page:
        page.goto(CALENDAR)
        page.locator("#row-1").get_by_role("link", name="book cmp-1").click()
        expect(page.get_by_label("Host condition")).to_have_value("hypervisor_hostname=cmp-1")
        page.get_by_label("Name", exact=True).fill("plain")
        page.get_by_label("Start").fill(when(days=20))
        page.get_by_label("End (UTC").fill("+2h")
        page.get_by_role("button", name="check").click()
        expect(page.locator(".outcome")).to_contain_text("The lease fits.")
        page.get_by_role("button", name="book", exact=True).click()
        expect(page.locator(".banner.said")).to_have_text("Lease plain is booked.")
    assert hosts_of(site, "plain")[1] == ["cmp-1"]


# By plain HTTP


def test_the_url_holds_the_whole_view(site: Site) -> None:
    person = Person(site)
    for zoom in ZOOMS:
        shown = person.get(f"{CALENDAR}?zoom={zoom}&from=2030-01-01T00:00&rack=rack-a&text=CMP-2")
        assert shown.status_code == 200
        assert "cmp-2" in shown.text and "cmp-3" not in shown.text
        begin, length = datetime(2030, 1, 1), ZOOMS[zoom].length
        for rel, to in (("prev", begin - length), ("next", begin + length)):
            kept = {"zoom": [zoom], "rack": ["rack-a"], "text": ["CMP-2"]}
            assert leads_to(shown.text, rel) == {"from": [f"{to:%Y-%m-%dT%H:%M}"], **kept}
    assert "No enrolled host" in person.get(f"{CALENDAR}?rack=moon").text
    for bad in ("zoom=era", "from=soon", "page=0", "page=x", "view=moon"):
        assert person.get(f"{CALENDAR}?{bad}").status_code == 400, bad
    pools = person.get(f"{CALENDAR}?view=racks").text
    assert "4 hosts" in pools and "of 4 free" in pools
    before = site.settled()
    person.get(f"{CALENDAR}?find=1&count=2")
    person.get(f"{CALENDAR}/board")
    assert site.dump() == before


def test_maintenance_is_hatched_and_health_is_marked(site: Site) -> None:
    segments = site.core.store.segments
    segment = site.services.new_id()
    values = {"name": "north", "recovery_method": "auto", "service_type": "compute"}
    segments.create(segment, values)
    for name, marked in (("cmp-2", True), ("cmp-3", False)):
        about = {"type": "KVM", "control_attributes": "", "on_maintenance": marked}
        segments.add_host(
            site.services.new_id(), segment, site.core.store.ledger.host(name).id, about
        )
    window = {"matcher": {"host": "cmp-3"}, "reason": "new <b>fans</b>"}
    until = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    made = site.call("POST", f"{OWN}/maintenance-windows", json={**window, "expires_at": until})
    assert made.status_code == 201, made.text
    text = Person(site).get(CALENDAR).text
    rows = {name: part.partition("</svg>\n")[0] for name, part in _parts(text)}
    assert "on maintenance since" in rows["row-2"] and 'fill="url(#hatch)"' in rows["row-2"]
    assert "maintenance until" in rows["row-3"] and "new &lt;b&gt;fans" in rows["row-3"]
    assert "url(#hatch)" not in rows["row-1"]
    assert 'class="health up"' in rows["row-1"]


def _parts(text: str) -> list[tuple[str, str]]:
    found = text.split('<div class="line" id="')[1:]
    return [(part.partition('"')[0], part) for part in found]


def test_a_host_that_cannot_be_reserved_is_not_offered(build: Callable[..., Site]) -> None:
    site = build("[monitors]\npoll = false\n")
    with site.core.store.database.engine.begin() as conn:
        failed = hosts_table.c.name == "cmp-3"
        conn.execute(sa.update(hosts_table).where(failed).values(reservable=False))
    person = Person(site)
    rows = dict(_parts(person.get(CALENDAR).text))
    assert "not reservable" in rows["row-3"] and "not reservable" not in rows["row-2"]
    assert "data-where" in rows["row-2"] and "book cmp-2" in rows["row-2"]
    assert "data-where" not in rows["row-3"] and "book cmp-3" not in rows["row-3"]
    table = person.get(CALENDAR).text.partition('id="as-table"')[2]
    held = dict(re.findall(r'<th scope="row">(cmp-\d).*?<td>(\w+)</td>', table, re.DOTALL))
    assert held == {"cmp-1": "free", "cmp-2": "free", "cmp-3": "none", "cmp-4": "free"}
    pools = person.get(f"{CALENDAR}?view=racks").text
    assert "3 hosts, 1 not reservable" in pools and "3 of 3 free" in pools


def test_an_invalid_search_is_refused_on_the_calendar(site: Site) -> None:
    query = {"find": "1", "kind": "slots", "where": "cheap", "count": "7"}
    answer = Person(site).get(CALENDAR, params=query)
    assert answer.status_code == 200
    assert "is not a condition" in answer.text and 'id="board"' in answer.text
    assert 'name="where" size="26" value="cheap"' in answer.text  # the input stays
    assert "resource_properties=cheap" in answer.text  # and the command has it


def test_members_see_their_own_leases_and_no_hosts(
    build: Callable[..., Site], tmp_path: Path
) -> None:
    site = build(basic_config(tmp_path))
    dates = {"start_date": when(hours=2), "end_date": when(days=1)}
    site.lease("member", name=f"ours {EVIL}", **dates)
    site.lease("other", name="theirs", **dates)
    member, reader, admin = (Person(site, user) for user in ("member", "reader", "admin"))
    text = member.get(CALENDAR).text
    assert "ours" in text and "theirs" not in text
    assert "cmp-" not in text and "<img src=x" not in text and "<script>alert" not in text
    assert "data-movable" in text
    for view in ("hosts", "racks", "zones"):
        assert member.get(f"{CALENDAR}?view={view}").status_code == 400
    text = reader.get(CALENDAR).text
    assert "ours" in text and "data-movable" not in text and "new lease" not in text
    assert "data-books" not in text
    shown = admin.get(CALENDAR).text
    assert "ours" in shown and "theirs" in shown and "cmp-4" in shown and "<img src=x" not in shown
    found = member.get(f"{CALENDAR}?find=1&count=4&length=3h&earliest=%2B3h").text
    (first, *_) = re.findall(r'<time datetime="([^"]+)">[^<]*</time> to .*: 4 hosts', found)
    assert datetime.fromisoformat(first) >= datetime.now(UTC) + timedelta(hours=23)
    fields = {"name": "all", "count": "4", "start": "+3h", "end": "+3h", "do": "check"}
    refused = member.post("/console/leases", fields)
    assert refused.status_code == 409
    assert "another project" in refused.text and "lease ours" in refused.text
    assert "theirs" not in found + refused.text


# Pure functions


@pytest.mark.parametrize("zoom", ZOOMS)
def test_a_scale_begins_on_a_grid_line_and_places_times_in_percent(zoom: str) -> None:
    scale = Scale.of(zoom, None, NOW)
    assert scale.start <= NOW < scale.end
    assert 0 <= scale.place(NOW) <= 40
    assert (scale.place(scale.start), scale.place(scale.end)) == (0, 100)
    assert scale.place(scale.end + timedelta(days=900)) == 100
    ticks = scale.ticks()
    assert 4 <= sum(bool(tick.label) for tick in ticks) <= 13
    assert [tick.x for tick in ticks] == sorted(tick.x for tick in ticks)
    assert scale.later == scale.end


class Facts:
    """A row of the store."""

    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)


def test_incidents_are_drawn_independent_of_the_current_status() -> None:
    def drawn(state_since: datetime, scale: Scale) -> Row:
        host = Facts(
            id=1, service_host="cmp-1", hypervisor_hostname="cmp-1", name="cmp-1", state="up",
            state_since=state_since, rack="", zone="", segment="", reservable=True,
            on_maintenance=False, marked_at=None,
        )  # fmt: skip
        around = Around(incidents=[over, still], now=NOW)
        (row,) = host_rows([host], [], around, scale, True)
        return row

    hour, day = timedelta(hours=1), timedelta(days=1)
    about = {"subject": "host:cmp-1", "sentence": "it died"}
    over = Facts(**about, status="recovered", opened_at=NOW - 3 * day, closed_at=NOW - 2 * day)
    still = Facts(**about, status="open", opened_at=NOW - hour, closed_at=None)
    past = Scale.of("week", NOW - 8 * day, NOW)
    row = drawn(NOW - hour / 2, past)  # the status began after the shown span
    assert not row.health and [span.title[:18] for span in row.incidents] == ["incident recovered"]
    text = environment().get_template("calendar_rows.html").render(
        {"rows": [row], "view": Facts(kind="hosts", number=1), "may_book": False,
         "total": 1, "first": 1, "last": 1}
    )  # fmt: skip
    assert "incident recovered" in text.partition("as a table")[2]
    row = drawn(NOW - 2 * day, Scale.of("week", NOW - 4 * day, NOW))
    assert (len(row.health), len(row.incidents)) == (1, 2)
    row = drawn(NOW - 2 * day, Scale.of("week", NOW + day, NOW))  # the future has neither
    assert not row.health and not row.incidents


def test_overlapping_bars_have_lanes_up_to_a_limit() -> None:
    def bar(first: int, last: int) -> Bar:
        start, end = (NOW + timedelta(hours=hour) for hour in (first, last))
        return Bar("id", "name", "project", "ACTIVE", start, end, 0.0, 1.0)

    drawn, hidden = in_lanes([bar(0, 4), bar(1, 2), bar(2, 3), bar(4, 5)])
    assert ([one.lane for one in drawn], hidden) == ([0, 1, 1, 0], 0)
    drawn, hidden = in_lanes([bar(0, 9)] * 8)
    assert ([one.lane for one in drawn], hidden) == ([0, 1, 2, 3, 4], 3)


def test_dense_leases_are_drawn_as_blocks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calendar, "CROWDED", 1)
    dates = [{"start_date": when(days=100 + n), "end_date": when(days=101 + n)} for n in range(3)]
    for number, span in enumerate(dates):
        site.lease(**on("cmp-1", name=f"crowd-{number}", **span))
    start = f"{datetime.now(UTC) + timedelta(days=99):%Y-%m-%dT%H:%M}"
    text = Person(site).get(f"{CALENDAR}?zoom=year&from={start}").text
    rows = dict(_parts(text))
    assert "3 leases, " in rows["row-1"] and "crowd-1" not in rows["row-1"]
    assert "zoom=month" in rows["row-1"] and "text=cmp-1" in rows["row-1"]
    assert 'class="block"' not in rows["row-2"]


def test_a_pool_row_shows_free_hosts_over_time() -> None:
    class Hosted:
        def __init__(self, **facts: Any) -> None:
            self.__dict__.update(facts)

    scale = Scale.of("week", datetime(2026, 11, 16, tzinfo=UTC), NOW)
    pools = [
        Hosted(pool="a", state="up", reservable=True, hosts=3),
        Hosted(pool="a", state="up", reservable=False, hosts=4),
        Hosted(pool="a", state="down", reservable=True, hosts=2),
        Hosted(pool="b c", state="down", reservable=False, hosts=1),
    ]
    begin, end, day = scale.start, scale.end, timedelta(days=1)
    whole = [
        Hosted(pool="a", held_from=begin + day, held_until=begin + 2 * day, hosts=3),
        Hosted(pool="a", held_from=begin + 2 * day, held_until=begin + 3 * day, hosts=1),
        Hosted(pool="a", held_from=begin - day, held_until=begin + day, hosts=1),
    ]
    slots = [
        Hosted(pool="a", host_id=2, held_from=begin + 5 * day, held_until=end + day),
        Hosted(pool="a", host_id=2, held_from=begin + 4 * day, held_until=begin + 6 * day),
    ]
    first, second = pool_rows(pools, whole, slots, "racks", scale)
    free = [(level.free, (level.start - scale.start) / day) for level in first.levels]
    assert free == [(2, 0), (0, 1), (2, 2), (3, 3), (2, 4)]
    assert first.sub == "3 hosts, 2 failed, 4 not reservable"
    assert [level.free for level in second.levels] == [0]
    assert (second.sub, second.link) == ("0 hosts, 1 failed", f"{CALENDAR}?rack=b+c")


def test_the_form_makes_equal_request_and_command() -> None:
    form = LeaseForm.of(
        {"name": "a b", "count": "2", "where": "vcpus>=8 and rack in a,b", "end": "+2h"}
    )
    body = form.body(NOW, dry_run=True)
    assert body["reservations"][0]["resource_properties"] == (
        '["and", [">=", "$vcpus", "8"], ["in", "$rack", "a", "b"]]'
    )
    assert (body["start_date"], body["end_date"]) == ("now", "2026-11-17 05:20:05")
    assert form.command() == [
        "holdfast", "lease", "create", "a b", "--hosts", "2", "--where", "vcpus>=8",
        "--where", "rack in a,b", "--start", "now", "--end", "+2h",
    ]  # fmt: skip
    slots = LeaseForm.of(
        {"kind": "slots", "name": "s", "count": "3", "where": host_condition('x" y')}
    )
    assert slots.reservation()["resource_properties"] == '["==", "$hypervisor_hostname", "x\\" y"]'
    flavor = LeaseForm.of({"kind": "flavor", "flavor": "m1", "name": "f"})
    assert flavor.reservation()["flavor_id"] == "m1"
    for bad in ({"count": "x"}, {"kind": "moon"}, {"where": "cheap"}, {"start": "soon"}, {}):
        with pytest.raises(InvalidInput):
            LeaseForm.of({"name": "n" if bad else "", **bad}).body(NOW, dry_run=False)
