# SPDX-License-Identifier: Apache-2.0
"""The list of leases, the booking form, and the page of a lease with its repairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.console import leases
from holdfast.db.audit import REPAIR
from holdfast.hoststatus.status import DOWN, StatusReport
from tests.api.house import LEASES, basic_config, host_reservation, when
from tests.console.browser import check_for_everybody, opened, picture
from tests.console.people import Person
from tests.console.site import Site

HERE = "/console/leases"
EVIL = '"><img src=x onerror=alert(1)><script>alert(1)</script>'
Build = Callable[..., Site]


def fetch(site: Site, lease_id: str) -> dict[str, Any]:
    later = {"OpenStack-API-Version": "reservation 1.1"}
    lease: dict[str, Any] = site.call("GET", f"{LEASES}/{lease_id}", headers=later).json["lease"]
    return lease


# Booking


def test_a_refusal_names_conflicting_leases_and_offers_other_dates(site: Site, page: Page) -> None:
    dates = {"start_date": when(days=1), "end_date": when(days=2)}
    site.lease(name="first come", reservations=[host_reservation(min=4, max=4)], **dates)
    page.goto(f"{HERE}/new")
    page.get_by_label("Name", exact=True).fill("second")
    page.get_by_label("Start").fill(when(days=1, hours=1))
    page.get_by_label("End (UTC").fill("+3h")
    page.get_by_role("button", name="book", exact=True).click()
    refused = page.get_by_role("alert")
    expect(refused).to_contain_text("Not enough hosts")
    expect(refused.get_by_role("link", name="lease first come")).to_be_visible()
    check_for_everybody(page)
    picture(page, "lease-refused")
    page.get_by_role("button", name="instead").click()
    page.wait_for_url("**/console/leases/*-*-*")
    expect(page.get_by_role("heading", level=1)).to_have_text("Lease second")
    expect(page.get_by_text("Lease second is booked.")).to_be_visible()


def test_the_form_has_fields_by_resource_and_refuses_bad_conditions(site: Site, page: Page) -> None:
    page.goto(f"{HERE}/new")
    expect(page.get_by_label("vCPUs each")).to_be_hidden()
    page.get_by_label("Resource").select_option("slots")
    expect(page.get_by_label("Maximum count")).to_be_hidden()
    page.get_by_label("vCPUs each").fill("2")
    page.get_by_label("Count", exact=True).fill("3")
    page.get_by_label("Start").fill(when(days=30))
    expect(page.locator(".outcome")).to_contain_text("virtual:instance: cmp-")
    expect(page.locator(".outcome")).to_contain_text("slot")
    page.get_by_label("Host condition").fill("cheap")
    expect(page.get_by_role("alert")).to_contain_text("'cheap' is not a condition")
    assert not [one for one in site.call("GET", LEASES).json["leases"] if one["name"] == "unnamed"]


def test_without_script_a_refused_form_keeps_its_input(site: Site) -> None:
    person = Person(site)
    fields = {"name": "odd", "kind": "slots", "where": "cheap", "vcpus": "3", "end": "+5h"}
    for verb in ("check", "book"):
        answer = person.post(HERE, {**fields, "do": verb}, person.word(HERE))
        assert answer.status_code == 400
        assert "is not a condition" in answer.text
        for value in fields.values():
            assert f'value="{value}"' in answer.text, (verb, value)
        assert "holdfast lease create odd" in answer.text


def test_the_command_of_a_new_lease_is_shown_before_it_is_checked(site: Site) -> None:
    text = Person(site).get(f"{HERE}/new?start=now&where=rack%3Drack-a&name=mine").text
    command = "holdfast lease create mine --hosts 1 --where rack=rack-a --start now --end +24h"
    assert command in text


# The page of a lease


def test_a_lease_is_previewed_extended_renamed_ended_and_deleted(site: Site, page: Page) -> None:
    lease = site.lease(name=f"live {EVIL}", start_date="now", end_date=when(hours=4))
    page.goto(f"{HERE}/{lease['id']}")
    expect(page.locator(".chain [aria-current=step]")).to_contain_text("ACTIVE")
    page.evaluate("window.same = true")
    page.get_by_role("button", name="1 h longer").click()
    outcome = page.locator("#change-outcome")
    expect(outcome).to_contain_text("the lease would keep cmp-")
    page.keyboard.press("Escape")
    outcome.get_by_text("CLI command").click()
    expect(outcome.locator("code")).to_contain_text(f"holdfast lease set {lease['id']} --end")
    assert fetch(site, lease["id"])["end_date"] == lease["end_date"]  # a preview changes nothing
    page.get_by_role("heading", level=1).click()
    site.call("PUT", f"{LEASES}/{lease['id']}", json={"name": "by somebody else"})
    expect(page.locator("#lease-facts")).to_contain_text("by somebody else")
    expect(outcome).to_contain_text("the lease would keep cmp-")
    end = page.get_by_label("End (UTC)")
    assert end.input_value() != end.get_attribute("value")
    page.get_by_label("Name", exact=True).fill("renamed")
    page.get_by_role("button", name="change", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Lease renamed")
    assert fetch(site, lease["id"])["end_date"] > lease["end_date"]
    check_for_everybody(page)
    picture(page, "lease")
    page.on("dialog", lambda question: question.accept())
    page.get_by_role("button", name="end now").click()
    expect(page.locator(".chain [aria-current=step]")).to_contain_text("TERMINATED")
    expect(page.locator("#lease-history")).to_contain_text("is TERMINATED")
    page.get_by_role("button", name="delete").click()
    page.wait_for_url("**/console/leases")
    expect(page.locator(".banner.said")).to_contain_text("renamed")
    expect(page.get_by_role("link", name="renamed")).to_have_count(0)


def test_a_refused_change_names_the_conflicting_lease(site: Site) -> None:
    properties = '["==", "$hypervisor_hostname", "cmp-1"]'
    mine = [host_reservation(resource_properties=properties)]
    lease = site.lease(
        name="a", start_date=when(days=50), end_date=when(days=51), reservations=mine
    )
    site.lease(name="b <i>", start_date=when(days=52), end_date=when(days=53), reservations=mine)
    person = Person(site)
    path, word = f"{HERE}/{lease['id']}", person.word(HERE)
    late = when(days=52, hours=1)
    answer = person.post(path, {"end": late, "do": "check"}, word)
    assert answer.status_code == 409
    assert "lease b &lt;i&gt;" in answer.text and "Conflicting leases" in answer.text
    assert late in answer.text  # the input stays
    for end, status in (("soon", 400), (when(days=51, hours=2), 200)):
        answer = person.post(path, {"end": end, "do": "check"}, word)
        assert answer.status_code == status, answer.text
    assert fetch(site, lease["id"])["end_date"] == lease["end_date"]


def test_after_a_host_failure_the_lease_shows_its_repair(build: Build, browser: Browser) -> None:
    site = build()
    lease = site.lease(name="hurt", start_date="now", end_date=when(hours=4))
    with opened(browser, site.url) as page:
        page.goto(f"{HERE}/{lease['id']}")
        expect(page.locator(".chain [aria-current=step]")).to_contain_text("ACTIVE")
        (host,) = (host["name"] for host in fetch(site, lease["id"])["reservations"][0]["hosts"])
        assert site.services.sim is not None
        site.services.sim().fail_host(host)
        report: dict[str, Any] = {
            "verdict": DOWN,
            "at": site.clock.now(),
            "reason": "no power",
            "decisive": True,
        }
        site.manager.watching.hosts.see([StatusReport(host=host, source="test", **report)])
        flags = page.locator("#lease-flags")
        expect(flags).to_contain_text("Holdfast replaced a failed resource")
        expect(flags).to_contain_text(f"got something else for {host}")
        expect(page.locator("#lease-holds dd").first).not_to_have_text(host)
        check_for_everybody(page)
        picture(page, "lease-healed")
        page.get_by_role("button", name="Acknowledge").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_text("Replaced resources acknowledged.")).to_be_visible()
        expect(page.locator("#lease-flags")).to_have_count(0)
        expect(page.locator("#lease-history")).to_contain_text("its owner has seen")
        site.call("DELETE", f"{LEASES}/{lease['id']}")
        expect(page.get_by_text("This lease was deleted")).to_be_visible()


# The list


def test_the_list_is_filtered_sorted_and_paged(site: Site) -> None:
    person = Person(site)
    for number in range(3):
        site.lease(name=f"many-{number}", start_date=when(days=70), end_date=when(days=71 + number))
    assert "many-1" in person.get(f"{HERE}?status=PENDING&sort=name").text
    assert "many-1" not in person.get(f"{HERE}?status=ACTIVE").text
    assert "many-1" not in person.get(f"{HERE}?end_after={when(days=80)}").text
    only = person.get(f"{HERE}?name=many-2&end_after={when(days=60)}").text
    assert "many-2" in only and "many-1" not in only
    assert "holdfast lease list --name many-2" in only
    bad = person.get(f"{HERE}?end_after=soon")
    assert bad.status_code == 400 and "soon is an invalid date" in bad.text


def test_pages_are_accessible_on_any_screen(site: Site, browser: Browser) -> None:
    lease = site.lease(name="x" * 80, start_date=when(days=90), end_date=when(days=91))
    pages = (HERE, f"{HERE}/new", f"{HERE}/{lease['id']}")
    how: dict[str, Any] = {"viewport": {"width": 375, "height": 700}, "color_scheme": "dark"}
    with opened(browser, site.url, **how) as page:
        for path in pages:
            page.goto(path)
            check_for_everybody(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 375, path
        picture(page, "lease-phone-dark")
    with opened(browser, site.url) as page:
        page.goto(HERE)
        check_for_everybody(page)


# Access


def test_members_see_only_own_leases_and_readers_change_nothing(
    build: Build, tmp_path: Path
) -> None:
    site = build(basic_config(tmp_path))
    dates = {"start_date": when(hours=2), "end_date": when(days=1)}
    ours = site.lease("member", name=f"ours {EVIL}", **dates)["id"]
    theirs = site.lease("other", name="theirs", **dates)["id"]
    member, reader, admin = (Person(site, user) for user in ("member", "reader", "admin"))
    listed = member.get(HERE).text
    assert "ours" in listed and "theirs" not in listed and "Project</label>" not in listed
    assert "theirs" not in member.get(f"{HERE}?project_id=red").text
    for path in (HERE, f"{HERE}/{ours}", f"{HERE}/{ours}/state", f"{HERE}/{ours}/dates"):
        text = member.get(path).text
        assert "<img src=x" not in text and "<script>alert" not in text, path
        assert "&lt;script&gt;" in text, path
    for path in ("", "/dates"):
        assert member.get(f"{HERE}/{theirs}{path}").status_code == 404
    assert "was deleted or does not exist" in member.get(f"{HERE}/{theirs}/state").text
    before = site.settled()
    for action in ("", "/end", "/delete", "/acknowledge"):
        fields = {"end": when(days=3), "do": "change"}
        assert member.post(f"{HERE}/{theirs}{action}", fields).status_code == 404, action
        assert reader.post(f"{HERE}/{ours}{action}", fields).status_code == 403, action
        assert member.post(f"{HERE}/{ours}{action}", fields, word="wrong").status_code == 403, (
            action
        )
    assert reader.post(HERE, {"name": "no", "do": "book"}).status_code == 403
    for path in ("", "/new", "/rows", f"/{ours}", f"/{ours}/state", f"/{ours}/dates?end=%2B9h"):
        assert member.get(f"{HERE}{path}").status_code == 200, path
    assert site.dump() == before
    page = reader.get(f"{HERE}/{ours}").text
    assert "ours" in page and ">delete<" not in page and ">change<" not in page
    assert ">delete<" in admin.get(f"{HERE}/{theirs}").text
    refused = member.post(HERE, {"name": "big", "count": "4", **_day(), "do": "book"})
    assert refused.status_code == 409
    assert "another project&#39;s lease" in refused.text and "theirs" not in refused.text


def _day() -> dict[str, str]:
    return {"start": when(hours=3), "end": when(hours=6)}


# Pure functions


LINE = {"at": "2026-11-17 03:00:00", "actor": "holdfast"}


def lease(status: str, **more: Any) -> dict[str, Any]:
    event = {"event_type": "before_end_lease", "status": "UNDONE", "time": "2026-11-18T05:00:00"}
    dates = {"start_date": "2026-11-17T06:00:00", "end_date": "2026-11-18T06:00:00"}
    stamps = {"created_at": "2026-11-17 03:00:00", "updated_at": "2026-11-17 07:00:00"}
    about = {"status": status, "degraded": False, "reservations": [], "events": [event]}
    return {**about, **dates, **stamps, **more}


@pytest.mark.parametrize(
    ("status", "kinds", "words"),
    [
        ("PENDING", [], "PENDING* STARTING ACTIVE TERMINATING TERMINATED"),
        ("ACTIVE", ["ACTIVE"], "PENDING STARTING ACTIVE* TERMINATING TERMINATED"),
        ("TERMINATED", [], "PENDING STARTING ACTIVE TERMINATING TERMINATED*"),
        ("ERROR", ["", "ERROR"], "PENDING STARTING ERROR* TERMINATED"),
        ("DELETING", [], "PENDING DELETING*"),
        ("DELETING", ["DELETING", "ACTIVE"], "PENDING STARTING ACTIVE DELETING*"),
    ],
)
def test_the_chain_has_passed_current_and_next_states(
    status: str, kinds: list[str], words: str
) -> None:
    lines = [{**LINE, "kind": kind, "sentence": f"line of kind {kind}"} for kind in kinds]
    chain = leases.chain(lease(status), lines)
    assert " ".join(f"{step.state}{'*' if step.phase == 'now' else ''}" for step in chain) == words
    assert all(step.at for step in chain)
    if status == "ERROR":
        assert chain[2].text == "line of kind ERROR"
    if status == "PENDING":
        assert chain[3].text == "before-end notification due 2026-11-18 05:00 UTC"


def test_flags_holds_and_differences_are_sentences() -> None:
    one = {"resource_type": "physical:host", "missing_resources": True, "resources_changed": True}
    hosts = [{"name": "cmp-1", "slots": 2}, {"name": "cmp-2", "slots": 1}]
    hurt = lease("ACTIVE", degraded=True, reservations=[{**one, "hosts": hosts}])
    assert len(leases.flags(hurt)) == 2
    assert leases.flags(lease("ACTIVE", degraded=True))
    assert leases.holds(hurt) == "3 slots on 2 hosts"
    assert leases.holds(lease("ACTIVE")) == "nothing"
    other = lease("ACTIVE", reservations=[{**one, "hosts": hosts[1:]}])
    assert leases.differences(hurt, other) == ["the lease would release cmp-1"]
    assert leases.differences(other, other) == ["the lease would keep cmp-2"]
    newest, oldest = ({**LINE, "kind": REPAIR, "sentence": word} for word in ("whole", "missing"))
    booked = {**LINE, "kind": "PENDING", "sentence": "lease a booked"}
    assert leases.repairs([newest, oldest, booked]) == [oldest, newest]
