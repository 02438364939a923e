# SPDX-License-Identifier: Apache-2.0
"""Incidents and switches as people see them: a real recovery followed in a browser, orders by
button and by key, nothing shown that may not be done."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect

from holdfast.console.incidents import MOST_LINES
from holdfast.db import timeline
from holdfast.db.tables import observations
from holdfast.recovery.timeline import Opened
from tests.api.audits import write_line
from tests.api.cases import write_incident
from tests.api.ha import REPORTS, report_body
from tests.api.house import HOSTS, OWN, basic_config, copy
from tests.console.browser import check_for_everybody, opened, picture
from tests.console.people import Person
from tests.console.site import Site
from tests.processes import eventually

CONFIG = "[recovery]\nbring_back = false\n"
EVIL = "<script>alert(1)</script>"
WORSE = '"><img src=x onerror=alert(1)>'
LIST = "/console/incidents"


@pytest.fixture(scope="module")
def site(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Its recovery runs: all six hosts in a segment, a server on cmp-6."""
    state = copy(furnished, tmp_path_factory.mktemp("site") / "state")
    with Site(state, CONFIG) as made:
        watch_over(made, *(f"cmp-{number}" for number in range(1, 7)))
        yield made


def watch_over(site: Site, *names: str) -> None:
    """They are in a segment: what dies of them is recovered."""
    segments = site.core.store.segments
    fields = {"name": "north", "recovery_method": "auto", "service_type": "COMPUTE"}
    uuid = segments.create(site.services.new_id(), fields).uuid
    cloud = site.manager.recovering.context.cloud
    for name in names:
        host_id = segments.know(cloud.hosts.find(name), "here")
        values = {"type": "KVM", "control_attributes": "SSH"}
        segments.add_host(site.services.new_id(), uuid, host_id, values)


@pytest.fixture(autouse=True)
def unpaused(site: Site) -> Iterator[None]:
    """A test that fails leaves no pause to the others."""
    yield
    for one in site.call("GET", f"{OWN}/pauses").json["pauses"]:
        query = f"segment={one['segment']}" if one["segment"] else ""
        site.call("DELETE", f"{OWN}/pauses", query_string=query)


def report(site: Site, host: str) -> str:
    """The id of the incident that comes of it."""
    site.services.sim().fail_host(host)
    said = site.call("POST", REPORTS, json={"notification": report_body(host, ago_s=2)})
    assert said.status_code == 202, said.text

    def found() -> list[dict[str, Any]]:
        query = f"host={host}&open=true"
        incidents = site.call("GET", f"{OWN}/incidents", query_string=query).json["incidents"]
        return list(incidents)

    return str(eventually(found)[0]["id"])


def held_by(site: Site, lease: str) -> str:
    """The name of the host that a lease got."""
    host = site.core.store.ledger.lease(lease).reservations[0].allocations[0].host_id
    return str(site.call("GET", f"{HOSTS}/{host}").json["host"]["hypervisor_hostname"])


def send(person: Person, path: str, fields: dict[str, str]) -> requests.Response:
    return person.post(path, fields, person.word("/console/audit"))


def same_page(page: Page) -> None:
    """From here on `still_same` tells whether it was loaded anew."""
    page.evaluate("window.loadedOnce = true")


def still_same(page: Page) -> bool:
    return bool(page.evaluate("window.loadedOnce === true"))


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_a_host_dies_and_its_page_follows_until_it_is_recovered(
    browser: Browser, site: Site
) -> None:
    site.call("POST", f"{OWN}/pauses", json={"reason": "switch is replaced"})
    own = report(site, "cmp-6")
    with opened(browser, site.url) as page:
        page.goto(LIST)
        check_for_everybody(page)
        row = page.get_by_role("row", name=re.compile("held cmp-6"))
        row.get_by_role("link", name="cmp-6").click()
        page.wait_for_url(f"**{LIST}/{own}")
        expect(page.locator("#incident-head")).to_contain_text("recovery is paused by admin")
        guards = page.locator("#incident-guards")
        expect(guards).to_contain_text("no paused recovery is paused by admin until")
        expect(guards).to_contain_text("yes evidence")
        expect(page.locator("#incident-evidence")).to_contain_text("COMPUTE_HOST")
        expect(page.locator(".phases li").first).to_contain_text("noticed")
        expect(page.locator("#incident-steps")).to_contain_text("under way guards")
        expect(page.locator("#live")).to_have_text("live")
        check_for_everybody(page)
        same_page(page)
        page.locator("#incident-story summary").click()
        site.call("DELETE", f"{OWN}/pauses")
        until_recovered(page)
        head = page.locator("#incident-head")
        expect(head).to_contain_text("8 of 8 steps done")
        server = page.get_by_role("row", name=re.compile("web-1"))
        expect(server).to_contain_text("succeeded")
        expect(server).to_contain_text(re.compile("cmp-6 → cmp-[1-5]"))
        timeline = page.locator("#incident-timeline")
        expect(timeline).to_contain_text("recovered: cmp-6: 1 of 1")
        expect(timeline).to_contain_text("web-1: leaves cmp-6")
        expect(timeline.locator("li").first).to_contain_text("it happened, says a COMPUTE_HOST")
        names = [
            *("noticed", "judged", "proven off", "forced down and repaired", "moved", "verified"),
            "closed",
        ]
        expect(page.locator(".phases b")).to_have_text(names)
        expect(page.locator("svg.bar rect")).to_have_count(len(names))
        story = page.locator("#incident-story")
        expect(story).to_contain_text("All guards allowed the recovery:")
        expect(story).to_contain_text(f"holdfast incident explain {own}")
        assert story.locator("details").get_attribute("open") is not None, "opened, and kept so"
        expect(page.locator("#incident-acts")).to_have_count(0)  # nothing is left to order
        assert still_same(page)
        picture(page, "incident")
        page.emulate_media(color_scheme="dark")
        check_for_everybody(page)
        page.set_viewport_size({"width": 375, "height": 800})
        assert fits(page)
        picture(page, "incident-phone-dark")


def test_paused_aborted_and_tried_again_by_button_and_by_key(browser: Browser, site: Site) -> None:
    site.call("POST", f"{OWN}/pauses", json={"reason": "first", "segment": "north"})
    lease = site.lease(name="tomorrow")["id"]
    own = report(site, held_by(site, lease))
    with opened(browser, site.url) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{LIST}/{own}")
        page.get_by_label("Pause recovery").get_by_label("why").focus()
        page.keyboard.type("a storm")
        page.keyboard.press("Enter")
        expect(page.locator(".banner.said")).to_contain_text("paused everywhere")
        expect(page.locator("body")).to_contain_text("paused everywhere by admin: a storm")
        assert f"/{own}" in page.url
        page.get_by_role("form", name="Resume recovery everywhere").get_by_role("button").click()
        expect(page.locator(".banner.said")).to_contain_text("recovery resumed everywhere")
        page.get_by_role("form", name="Abort").get_by_label("why").fill("a drill")
        page.get_by_role("button", name="Abort").click()
        expect(page.locator("h1")).to_contain_text("aborted")
        expect(page.locator("#incident-head")).to_contain_text("aborted by admin: a drill")
        expect(page.locator("#incident-acts")).to_contain_text(f"holdfast incident retry {own}")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".banner.said")).to_contain_text("it is tried again")
        expect(page.locator("#incident-phases")).to_contain_text("tried before")
        page.goto("/console/switches")
        same_page(page)
        banner = page.locator("#pauses")
        expect(banner).to_contain_text("Recovery is paused in segment north by admin: first")
        site.call("DELETE", f"{OWN}/pauses", query_string="segment=north")
        expect(page.locator("#switches-pauses")).to_contain_text("Recovery is not paused.")
        expect(banner).to_have_text("")
        assert still_same(page)
        page.goto(f"{LIST}/{own}")
        until_recovered(page)
        repaired = page.locator("#incident-repaired").get_by_role("link")
        expect(repaired).to_contain_text("lease tomorrow: reservation")
        expect(repaired).to_have_attribute("href", f"/console/leases/{lease}")


def test_what_was_chosen_for_a_pause_stays_chosen_while_the_page_follows(
    browser: Browser, site: Site
) -> None:
    (north,) = site.core.store.incident_queries.segment_names()
    own = write_incident(site, host="cmp-2", segment=north)
    with opened(browser, site.url) as page:
        page.goto(f"{LIST}/{own}")
        expect(page.locator("#live")).to_have_text("live")
        form = page.get_by_role("form", name="Pause recovery")
        form.get_by_label("where").select_option("segment north")
        page.locator("#pause-lasts").select_option("1 day")
        form.get_by_label("why").fill("a storm")
        page.locator("h1").click()
        # it is not offered any more; that is no reason to pause everywhere instead
        site.call("POST", f"{OWN}/pauses", json={"reason": "somebody else", "segment": "north"})
        expect(page.get_by_role("form", name="Resume recovery in north")).to_be_visible()
        assert page.locator("#pause-where").evaluate("one => one.value") == north
        assert page.locator("#pause-lasts").evaluate("one => one.value") == "86400"
        assert form.get_by_label("why").input_value() == "a storm"
    send(Person(site), f"{LIST}/{own}/abort", {"reason": "over"})


def test_an_incident_page_works_without_script(browser: Browser, site: Site) -> None:
    own = write_incident(site, host="cmp-2")
    with opened(browser, site.url, java_script_enabled=False) as page:
        page.goto(f"{LIST}/{own}")
        head = page.locator("#incident-head")
        expect(head).to_contain_text("nothing proves that it is off")
        page.get_by_role("form", name="Abort").get_by_label("why").fill("no script")
        page.get_by_role("button", name="Abort").click()
        expect(head).to_contain_text("aborted by admin: no script")


def test_an_order_that_comes_too_late_is_refused_on_the_page_with_what_was_typed(
    site: Site,
) -> None:
    person = Person(site)
    over = write_incident(site, host="cmp-3", status="recovered")
    late = send(person, f"{LIST}/{over}/abort", {"reason": f"too late {EVIL}"})
    assert late.status_code == 409
    assert f"incident {over} is recovered already" in late.text
    held = write_incident(site, host="cmp-3")
    empty = send(person, f"{LIST}/{held}/abort", {"reason": ""})
    assert (empty.status_code, "reason: required" in empty.text) == (400, True)
    assert site.call("GET", f"{OWN}/incidents/{held}").json["incident"]["status"] == "held"
    on = send(person, f"{LIST}/{held}/confirm-off", {"reason": "plug pulled"})
    assert (on.status_code, "the fence of cmp-3 reads on" in on.text) == (409, True)
    site.services.sim().fail_host("cmp-3")
    done = send(person, f"{LIST}/{held}/confirm-off", {"reason": "plug pulled"})
    site.services.sim().recover_host("cmp-3")
    assert (done.status_code, done.headers["Location"].split("?")[0]) == (303, f"{LIST}/{held}")
    assert "said that cmp-3 is off: plug pulled." in person.get(f"{LIST}/{held}").text
    yes = send(person, f"{LIST}/{held}/approve", {"reason": "it is so"})
    assert (yes.status_code, "approved" in yes.headers["Set-Cookie"]) == (303, True)
    assert send(person, f"{LIST}/{held}/abort", {"reason": "over"}).status_code == 303
    assert person.get(f"{LIST}/nowhere").status_code == 404


def shown(site: Site, own: str) -> dict[str, Any]:
    found: dict[str, Any] = site.call("GET", f"{OWN}/incidents/{own}").json["incident"]
    return found


def until_held_for_many(site: Site, own: str) -> None:
    eventually(lambda: "to be sure" in shown(site, own)["sentence"])


def until_recovered(page: Page) -> None:
    expect(page.locator("h1")).to_contain_text("recovered")


def test_what_is_approved_on_an_incidents_page_is_its_rack_and_no_other(
    browser: Browser, build: Callable[..., Site]
) -> None:
    house = build(CONFIG)
    others = [f"{rack}-{number}" for rack in "bc" for number in range(1, 6)]
    for name in others:
        house.services.sim().add_host(name, zone="az-1", rack=f"rack-{name[0]}")
    watch_over(house, *(f"cmp-{number}" for number in range(1, 7)), *others)
    house.call("POST", f"{OWN}/pauses", json={"reason": "until all have died"})
    here = [report(house, f"cmp-{number}") for number in range(1, 5)]
    there = [report(house, f"b-{number}") for number in range(1, 5)]
    house.call("DELETE", f"{OWN}/pauses")
    for one in (*here, *there):
        until_held_for_many(house, one)
    with opened(browser, house.url) as page:
        asked: list[str] = []
        page.on("dialog", lambda one: (asked.append(one.message), one.accept()))
        page.goto(f"{LIST}/{here[0]}")
        form = page.get_by_role("form", name="Approve: so much did fail in rack-a")
        command = "holdfast recovery approve --domain rack-a --reason TEXT"
        expect(form.locator("code")).to_have_text(command)
        expect(page.locator("#incident-head")).to_contain_text("approve --domain rack-a --reason")
        form.get_by_label("why").fill("no power in rack-a")
        form.get_by_role("button").click()
        expect(page.locator(".banner.said")).to_contain_text("approved in rack-a for an hour")
        assert asked == [
            "Let recovery go on in rack-a, however many hosts are down there, for an hour?"
        ]
        until_recovered(page)
    assert house.core.store.ledger.approved("repair") == {"rack-a"}
    for one in there:
        asked_again = shown(house, one)
        assert asked_again["status"] == "held", asked_again["sentence"]
        assert "4 of 5 hosts in rack-b are down" in asked_again["sentence"]


def test_an_approval_of_a_rack_that_the_host_has_left_is_asked_for_again(site: Site) -> None:
    own = write_incident(site, host="cmp-3")
    before = site.core.store.ledger.approved("repair")
    late = send(Person(site), f"{LIST}/{own}/approve", {"reason": "it is so", "domain": "rack-z"})
    assert (late.status_code, "its host is in rack-a now" in late.text) == (409, True)
    assert site.core.store.ledger.approved("repair") == before
    send(Person(site), f"{LIST}/{own}/abort", {"reason": "over"})


def test_in_a_storm_the_page_has_the_beginning_and_all_of_its_own_host(site: Site) -> None:
    own = write_incident(site, host="far-2")
    at = site.core.store.database.now()
    write_line(site, "far-2 is failed: no network sees it", at=at)
    for number in range(250):
        write_line(site, f"far-2{number} is failed", at=at)
    for number in range(MOST_LINES):
        write_line(site, f"far-2 was looked at {number} times", at=at)
    text = Person(site).get(f"{LIST}/{own}").text
    assert "far-2 is failed: no network sees it" in text
    assert "far-20 is failed" not in text
    assert f"far-2 was looked at {MOST_LINES - 2} times" in text
    assert f"far-2 was looked at {MOST_LINES - 1} times" not in text
    assert 'href="/console/audit?text=far-2">more is said of far-2' in text
    send(Person(site), f"{LIST}/{own}/abort", {"reason": "over"})


def test_what_an_agent_saw_is_where_the_timeline_begins(site: Site) -> None:
    server = "4f2c0000-0000-4000-8000-000000000001"
    own = write_incident(site, host="cmp-3", kind="guest", subject=f"server:{server}")
    store = site.core.store
    row = {
        "id": str(uuid.uuid4()),
        "key": "1",
        "observer": "agent@cmp-3",
        "subject": f"server:{server}",
        "kind": "guest",
        "state": "failed",
        "since": store.database.now() - timedelta(seconds=40),
        "observed_at": store.database.now(),
        "created_at": store.database.now(),
        "evidence": {"event": "LIFECYCLE", "detail": EVIL},
        "incident_id": own,
    }
    with store.database.write() as conn:
        conn.execute(sa.insert(observations).values(**row))
        timeline.write(conn, store.database.now(conn), own, Opened("it died"))
    text = Person(site).get(f"{LIST}/{own}").text
    told = text[text.index('<ol class="timeline">') :]
    assert told.index("guest failed, says agent@cmp-3: LIFECYCLE") < told.index("opened: ")
    assert EVIL not in text
    send(Person(site), f"{LIST}/{own}/abort", {"reason": "over"})


def test_foreign_markup_on_an_incident_page_is_text(site: Site) -> None:
    network = {"health": "down", "since": EVIL, "confirmed_by": [WORSE]}
    vote = {"observer": EVIL, "vote": "for", "why": WORSE, "since": EVIL, "at": EVIL}
    vote["evidence"] = {"networks": {WORSE: network}, "rule": EVIL, "ha_matrix": WORSE}
    own = write_incident(
        site,
        host=EVIL,
        sentence=WORSE,
        cause=EVIL,
        details={"seen": [vote]},
        subject=f"host:{EVIL}",
    )
    write_line(site, f"{EVIL} failed {WORSE}")
    person = Person(site)
    for path in (LIST, f"{LIST}/{own}", f"{LIST}?host={EVIL}", f"{LIST}/{own}/body"):
        text = person.get(path).text
        assert "alert(1)" in text, path
        assert EVIL not in text
        assert WORSE not in text
    send(person, f"{LIST}/{own}/abort", {"reason": "x"})


def test_the_list_has_the_open_ones_first_and_goes_on_page_by_page(site: Site) -> None:
    person = Person(site)
    now = site.core.store.database.now()
    held = write_incident(site, host="cmp-2", opened_at=now.replace(year=2020))
    guest = write_incident(site, host="cmp-1", kind="guest", subject="server:x", status="failed")
    for _ in range(55):
        write_incident(site, host="cmp-3", status="ignored", opened_at=now.replace(year=2019))
    text = person.get(LIST).text
    assert text.index(held) < text.index(guest)
    (older,) = re.findall(r'href="([^"]+)" rel="next"', text)
    second = person.get(older.replace("&amp;", "&")).text
    assert held not in second
    assert 'rel="next"' not in second
    ids = [set(re.findall(rf'href="{LIST}/([0-9a-f-]{{36}})', one)) for one in (text, second)]
    assert not ids[0] & ids[1]
    every = site.call("GET", f"{OWN}/incidents", query_string="limit=1000").json["incidents"]
    assert ids[0] | ids[1] == {one["id"] for one in every}
    only = person.get(f"{LIST}?kind=guest&status=failed").text
    assert guest in only
    assert held not in only
    assert "holdfast incident list --status failed --kind guest" in only
    assert held in person.get(f"{LIST}?status=held&host=cmp-2").text
    assert person.get(f"{LIST}?status=burning").status_code == 400
    send(person, f"{LIST}/{held}/abort", {"reason": "x"})


def test_looking_changes_nothing(build: Callable[..., Site]) -> None:
    site = build(CONFIG)  # where no host is down: those are looked at again and again
    own = write_incident(site, host="cmp-3", status="failed")
    person = Person(site)
    person.get(LIST)  # wakes who looks for changes
    before = site.settled()
    for path in (LIST, f"{LIST}/{own}", "/console/switches", "/console/audit"):
        for method in ("GET", "HEAD"):
            assert person.http.request(method, site.url + path).status_code == 200
    for name in ("retry", "abort", "confirm-off", "approve"):
        assert person.get(f"{LIST}/{own}/{name}").status_code in (404, 405)
    assert site.dump() == before


def test_a_member_neither_sees_an_incident_nor_acts(
    build: Callable[..., Site], tmp_path: Path
) -> None:
    house = build(basic_config(tmp_path) + CONFIG)
    own = write_incident(house)
    member = Person(house, "member")
    paths = (LIST, f"{LIST}/list", f"{LIST}/{own}", f"{LIST}/{own}/body", "/console/switches")
    for path in paths:
        assert member.get(path).status_code == 403, path
    orders: list[tuple[str, dict[str, str]]] = [
        (f"{LIST}/{own}/{name}", {"reason": "x"})
        for name in ("retry", "abort", "confirm-off", "approve")
    ]
    orders += [(f"/console/switches/{name}", {"reason": "x"}) for name in ("pause", "maintenance")]
    for path, fields in orders:
        assert send(member, path, fields).status_code == 403, path
    assert LIST not in member.get("/console/audit").text
    admin = Person(house, "admin")
    assert own in admin.get(LIST).text
    assert 'action="/console/switches/pause"' in admin.get(f"{LIST}/{own}").text


# switches


def test_switches_are_set_and_ended_with_author_reason_and_end(
    browser: Browser, site: Site
) -> None:
    with opened(browser, site.url) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto("/console/switches")
        form = page.get_by_role("form", name="Add a maintenance window")
        form.get_by_label("host").fill("cmp-99")
        form.get_by_label("reason").fill("new memory")
        form.get_by_role("button").click()
        alert = page.get_by_role("main").get_by_role("alert")
        expect(alert).to_contain_text("cmp-99 is in no segment")
        expect(form.get_by_label("reason")).to_have_value("new memory")
        form.get_by_label("host").fill("cmp-2")
        form.get_by_label("duration").select_option("4 hours")
        form.get_by_role("button").click()
        row = page.locator("#switches-maintenance tbody tr")
        expect(row).to_contain_text("host cmp-2")
        expect(row).to_contain_text("new memory")
        form = page.get_by_role("form", name="Approve a mass failure")
        form.get_by_label("rack or zone").fill("rack-a")
        form.get_by_label("reason").fill("no power until noon")
        form.get_by_role("button").click()
        expect(page.locator("#switches-approvals")).to_contain_text("rack-a")
        pause = page.get_by_role("form", name="Pause recovery")
        pause.get_by_label("scope").select_option("segment north")
        pause.get_by_label("duration").select_option("until resumed")
        pause.get_by_label("reason").fill(EVIL)
        pause.get_by_role("button").click()
        expect(page.locator("#switches-pauses tbody tr")).to_contain_text("segment north")
        expect(page.locator("#switches-pauses tbody tr")).to_contain_text("resumed")
        for scheme, width in (("light", 1280), ("dark", 375)):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.set_viewport_size({"width": width, "height": 800})
            check_for_everybody(page)
            assert fits(page)
        picture(page, "switches-phone-dark")
        page.get_by_role("button", name="end window").click()
        expect(page.locator("#switches-maintenance")).to_contain_text("No maintenance window.")
        page.locator("#switches-pauses").get_by_role("button").click()
        expect(page.locator("#switches-pauses")).to_contain_text("Recovery is not paused.")


@pytest.mark.parametrize(
    ("path", "fields", "status", "said"),
    [
        ("pause", {"reason": " "}, 400, "reason: required"),
        ("pause", {"reason": "x", "segment": "nowhere"}, 404, "nowhere"),
        ("pause", {"reason": "x", "lasts": "long"}, 400, "duration: choose one"),
        ("resume", {}, 404, "not paused everywhere"),
        ("approve", {"reason": "x", "domain": EVIL}, 404, "no host is in"),
        ("maintenance", {"reason": "x"}, 400, "scope: name a host"),
        ("maintenance", {"reason": "x", "kind": "host", "starts_at": "soon"}, 400, "starts_at"),
        ("maintenance/nowhere/end", {}, 404, "no maintenance window nowhere"),
    ],
)
def test_an_invalid_switch_is_refused_with_the_reason(
    site: Site, path: str, fields: dict[str, Any], status: int, said: str
) -> None:
    answer = send(Person(site), f"/console/switches/{path}", fields)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert EVIL not in answer.text
