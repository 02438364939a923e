# SPDX-License-Identifier: Apache-2.0
"""Leases as people see them: the list, the form that books and says why not, one lease with its
life, its flags and what healed it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.console import leases
from holdfast.hoststatus.status import DOWN, StatusReport
from tests.api.house import LEASES, basic_config, host_reservation, when
from tests.console.browser import check_for_everybody, opened, picture
from tests.console.people import Person
from tests.console.site import Site

HERE = "/console/leases"
EVIL = '"><img src=x onerror=alert(1)><script>alert(1)</script>'
Build = Callable[..., Site]


def told(site: Site, lease_id: str) -> dict[str, Any]:
    later = {"OpenStack-API-Version": "reservation 1.1"}
    lease: dict[str, Any] = site.call("GET", f"{LEASES}/{lease_id}", headers=later).json["lease"]
    return lease


# booking


def test_a_refusal_says_who_is_in_the_way_and_its_offer_is_one_click(
    site: Site, page: Page
) -> None:
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


def test_the_form_knows_slots_and_flavors_and_what_it_cannot_mean(site: Site, page: Page) -> None:
    page.goto(f"{HERE}/new")
    expect(page.get_by_label("vCPUs each")).to_be_hidden()
    page.get_by_label("What").select_option("slots")
    expect(page.get_by_label("At most")).to_be_hidden()
    page.get_by_label("vCPUs each").fill("2")
    page.get_by_label("How many").fill("3")
    page.get_by_label("Start").fill(when(days=30))
    expect(page.locator(".outcome")).to_contain_text("virtual:instance: cmp-")
    expect(page.locator(".outcome")).to_contain_text("slot")
    page.get_by_label("Where").fill("cheap")
    expect(page.get_by_role("alert")).to_contain_text("'cheap' is not a condition")
    assert not [one for one in site.call("GET", LEASES).json["leases"] if one["name"] == "unnamed"]


def test_without_script_a_wish_that_is_refused_stays_filled_in(site: Site) -> None:
    person = Person(site)
    wish = {"name": "odd", "kind": "slots", "where": "cheap", "vcpus": "3", "end": "+5h"}
    for verb in ("check", "book"):
        answer = person.post(HERE, {**wish, "do": verb}, person.word(HERE))
        assert answer.status_code == 400
        assert "is not a condition" in answer.text
        for value in wish.values():
            assert f'value="{value}"' in answer.text, (verb, value)
        assert "holdfast lease create odd" in answer.text


def test_the_command_of_a_new_lease_is_shown_before_it_is_checked(site: Site) -> None:
    text = Person(site).get(f"{HERE}/new?start=now&where=rack%3Drack-a&name=mine").text
    said = "holdfast lease create mine --hosts 1 --where rack=rack-a --start now --end +24h"
    assert said in text


# one lease


def test_a_lease_is_previewed_extended_renamed_ended_and_deleted(site: Site, page: Page) -> None:
    lease = site.lease(name=f"live {EVIL}", start_date="now", end_date=when(hours=4))
    page.goto(f"{HERE}/{lease['id']}")
    expect(page.locator(".chain [aria-current=step]")).to_contain_text("ACTIVE")
    page.evaluate("window.same = true")
    page.get_by_role("button", name="1 h longer").click()
    outcome = page.locator("#change-outcome")
    expect(outcome).to_contain_text("it would keep cmp-")
    page.keyboard.press("Escape")
    outcome.get_by_text("same by command").click()
    expect(outcome.locator("code")).to_contain_text(f"holdfast lease set {lease['id']} --end")
    assert told(site, lease["id"])["end_date"] == lease["end_date"]  # a preview changes nothing
    page.get_by_role("heading", level=1).click()
    site.call("PUT", f"{LEASES}/{lease['id']}", json={"name": "by somebody else"})
    expect(page.locator("#lease-facts")).to_contain_text("by somebody else")
    expect(outcome).to_contain_text("it would keep cmp-")
    end = page.get_by_label("End (UTC)")
    assert end.input_value() != end.get_attribute("value")
    page.get_by_label("Name", exact=True).fill("renamed")
    page.get_by_role("button", name="change", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Lease renamed")
    assert told(site, lease["id"])["end_date"] > lease["end_date"]
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


def test_a_change_that_a_neighbour_forbids_names_it(site: Site) -> None:
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
    assert "lease b &lt;i&gt;" in answer.text and "In the way" in answer.text
    assert late in answer.text  # what was filled in stays
    for end, status in (("soon", 400), (when(days=51, hours=2), 200)):
        answer = person.post(path, {"end": end, "do": "check"}, word)
        assert answer.status_code == status, answer.text
    assert told(site, lease["id"])["end_date"] == lease["end_date"]


def test_a_host_fails_and_its_lease_tells_what_healed_it(build: Build, browser: Browser) -> None:
    site = build()
    lease = site.lease(name="hurt", start_date="now", end_date=when(hours=4))
    with opened(browser, site.url) as page:
        page.goto(f"{HERE}/{lease['id']}")
        expect(page.locator(".chain [aria-current=step]")).to_contain_text("ACTIVE")
        (host,) = (one["name"] for one in told(site, lease["id"])["reservations"][0]["hosts"])
        assert site.services.sim is not None
        site.services.sim().fail_host(host)
        seen: dict[str, Any] = {
            "verdict": DOWN,
            "at": site.clock.now(),
            "reason": "no power",
            "decisive": True,
        }
        site.manager.watching.hosts.see([StatusReport(host=host, source="test", **seen)])
        flags = page.locator("#lease-flags")
        expect(flags).to_contain_text("got something else than it had")
        expect(flags).to_contain_text(f"got something else for {host}")
        expect(page.locator("#lease-holds dd").first).not_to_have_text(host)
        check_for_everybody(page)
        picture(page, "lease-healed")
        page.get_by_role("button", name="I have seen it").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_text("It is noted that you have seen it.")).to_be_visible()
        expect(page.locator("#lease-flags")).to_have_count(0)
        expect(page.locator("#lease-history")).to_contain_text("its owner has seen")
        site.call("DELETE", f"{LEASES}/{lease['id']}")
        expect(page.get_by_text("This lease is gone")).to_be_visible()


# the list


def test_the_list_is_narrowed_sorted_and_paged(site: Site) -> None:
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


def test_everybody_can_use_it_dark_light_and_small(site: Site, browser: Browser) -> None:
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


# who sees what


def test_members_know_of_their_own_leases_only_and_readers_change_nothing(
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
    assert "gone" in member.get(f"{HERE}/{theirs}/state").text
    before = site.settled()
    for deed in ("", "/end", "/delete", "/acknowledge"):
        fields = {"end": when(days=3), "do": "change"}
        assert member.post(f"{HERE}/{theirs}{deed}", fields).status_code == 404, deed
        assert reader.post(f"{HERE}/{ours}{deed}", fields).status_code == 403, deed
        assert member.post(f"{HERE}/{ours}{deed}", fields, word="wrong").status_code == 403, deed
    assert reader.post(HERE, {"name": "no", "do": "book"}).status_code == 403
    for path in ("", "/new", "/rows", f"/{ours}", f"/{ours}/state", f"/{ours}/dates?end=%2B9h"):
        assert member.get(f"{HERE}{path}").status_code == 200, path
    assert site.dump() == before
    seen = reader.get(f"{HERE}/{ours}").text
    assert "ours" in seen and ">delete<" not in seen and ">change<" not in seen
    assert ">delete<" in admin.get(f"{HERE}/{theirs}").text
    refused = member.post(HERE, {"name": "big", "count": "4", **_day(), "do": "book"})
    assert refused.status_code == 409
    assert "another project&#39;s lease" in refused.text and "theirs" not in refused.text


def _day() -> dict[str, str]:
    return {"start": when(hours=3), "end": when(hours=6)}


# pure


LINE = {"at": "2026-11-17 03:00:00", "actor": "holdfast"}


def lease(status: str, **more: Any) -> dict[str, Any]:
    event = {"event_type": "before_end_lease", "status": "UNDONE", "time": "2026-11-18T05:00:00"}
    dates = {"start_date": "2026-11-17T06:00:00", "end_date": "2026-11-18T06:00:00"}
    stamps = {"created_at": "2026-11-17 03:00:00", "updated_at": "2026-11-17 07:00:00"}
    about = {"status": status, "degraded": False, "reservations": [], "events": [event]}
    return {**about, **dates, **stamps, **more}


@pytest.mark.parametrize(
    ("status", "history", "words"),
    [
        ("PENDING", [], "PENDING* STARTING ACTIVE TERMINATING TERMINATED"),
        ("ACTIVE", ["lease a is ACTIVE"], "PENDING STARTING ACTIVE* TERMINATING TERMINATED"),
        ("TERMINATED", [], "PENDING STARTING ACTIVE TERMINATING TERMINATED*"),
        ("ERROR", ["lease_start failed: no way"], "PENDING STARTING ERROR* TERMINATED"),
        ("DELETING", [], "PENDING DELETING*"),
        ("DELETING", ["lease a is ACTIVE"], "PENDING STARTING ACTIVE DELETING*"),
    ],
)
def test_the_chain_has_what_was_what_is_and_what_will_be(
    status: str, history: list[str], words: str
) -> None:
    said = [{**LINE, "sentence": sentence} for sentence in history]
    chain = leases.chain(lease(status), said)
    assert " ".join(f"{one.word}{'*' if one.how == 'now' else ''}" for one in chain) == words
    assert all(one.at for one in chain)
    if status == "ERROR":
        assert "no way" in chain[2].said
    if status == "PENDING":
        assert chain[3].said == "its end is announced 2026-11-18 05:00 UTC"


def test_flags_holds_and_differences_are_sentences() -> None:
    one = {"resource_type": "physical:host", "missing_resources": True, "resources_changed": True}
    hosts = [{"name": "cmp-1", "slots": 2}, {"name": "cmp-2", "slots": 1}]
    hurt = lease("ACTIVE", degraded=True, reservations=[{**one, "hosts": hosts}])
    assert len(leases.flags(hurt)) == 2
    assert leases.flags(lease("ACTIVE", degraded=True))
    assert leases.holds(hurt) == "3 slots on 2 hosts"
    assert leases.holds(lease("ACTIVE")) == "nothing"
    other = lease("ACTIVE", reservations=[{**one, "hosts": hosts[1:]}])
    assert leases.differences(hurt, other) == ["cmp-1 would be given up"]
    assert leases.differences(other, other) == ["it would keep cmp-2"]
    lines = [{**LINE, "sentence": f"lease a: reservation r {what}"} for what in ("is whole again",)]
    assert leases.healed([*lines, {**LINE, "sentence": "lease a booked"}]) == lines
