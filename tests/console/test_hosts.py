# SPDX-License-Identifier: Apache-2.0
"""The host page, the search and the what-if page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from holdfast.api.holdfast_v1 import what_if
from tests.api.cases import write_incident
from tests.api.house import basic_config
from tests.api.rules import furnish_alarm
from tests.api.views import NO_STORAGE
from tests.console.browser import check_for_everybody, opened, picture
from tests.console.people import Person
from tests.console.site import Site
from tests.console.test_wall import HOSTILE, IDLE, QUIET, hold, see, stand

Build = Callable[..., Site]


def test_the_host_page_shows_status_reservations_and_incidents(build: Build) -> None:
    site = build(IDLE)  # without repair, which would move the lease
    lease = hold(site, HOSTILE[:80])
    site.lease(name="next-week")
    see(site, (NO_STORAGE, "recovery", ["cmp-1"]))
    incident = write_incident(site, host="cmp-1", sentence="<i>nobody</i> can fence it")
    alarm = furnish_alarm(site)
    stand(site, "cmp-1", "down", "ctl-1 says down")
    for path in ("/console/hosts/cmp-1", "/console/hosts/CMP-1/body"):
        text = site.call("GET", path).text
        assert "<script>alert" not in text and "<i>nobody" not in text
        parts = ("ctl-1 says down", lease, incident, f"/console/alarms/{alarm}", "next-week")
        for part in (*parts, "storage", "ctl-1: down", "power off", "cut the storage network"):
            assert part in text, part
    assert site.call("GET", "/console/hosts/nobody").status_code == 404
    assert "no host has the name" in site.call("GET", "/console/hosts/%3Cb%3E").text


def test_faults_are_injected_and_removed_on_the_host_page(browser: Browser, build: Build) -> None:
    site = build(QUIET)
    with opened(browser, site.url) as page:
        page.goto("/console/hosts/cmp-2")
        page.get_by_role("button", name="cut the tenant network").click()
        expect(page.locator(".banner.said")).to_contain_text("cut off on the network tenant")
        page.get_by_role("button", name="power off").click()
        expect(page.locator("#faults")).to_contain_text("power is off; networks cut: tenant")
        stand(site, "cmp-2", "down", "so it is")
        expect(page.locator("#status")).to_contain_text("so it is")
        page.get_by_role("button", name="power on and reconnect").press("Enter")
        expect(page.locator("#faults")).to_contain_text("power is on")
        (host,) = [host for host in site.services.sim().world()["hosts"] if host["name"] == "cmp-2"]
        assert host["powered"] and not host["cut"]
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            check_for_everybody(page)
        picture(page, "host")


def test_an_exact_match_opens_and_other_matches_are_listed(build: Build) -> None:
    site = build(QUIET)
    lease = site.lease(name=HOSTILE[:60])["id"]
    site.lease(name="cmp-1 burn-in")
    incident = write_incident(site, host="cmp-3")

    def to(query: str) -> str:
        return site.call("GET", "/console/search", params={"q": query}).headers.get("location", "")

    assert to("cmp-4") == "/console/hosts/cmp-4"
    assert (
        to("CMP-1") == "/console/hosts/cmp-1"
    )  # an exact host name wins over a lease name that contains it
    assert to("burn-in").startswith("/console/leases/")
    assert to(lease) == to(lease[:8]) == to("<script>") == f"/console/leases/{lease}"
    assert to(incident) == f"/console/incidents/{incident}"
    assert to("") == to("cmp") == to("%") == to("nobody") == ""
    listed = site.call("GET", "/console/search?q=c").text
    assert "<script>alert" not in listed and "&lt;script&gt;" in listed
    assert len(re.findall('<span class="faint kind">', listed)) == 7
    assert "that you may see matches" in site.call("GET", "/console/search?q=%25").text


def test_arrow_keys_move_through_search_hits(browser: Browser, build: Build) -> None:
    site = build(QUIET)
    with opened(browser, site.url) as page:
        page.goto("/console/what-if")
        page.keyboard.press("/")
        page.keyboard.type("cmp")
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/search?q=cmp")
        check_for_everybody(page)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/hosts/cmp-2")


def test_a_member_finds_only_own_leases(build: Build, tmp_path: Path) -> None:
    site = build(basic_config(tmp_path) + QUIET)
    site.lease("other", name="secret-plan")
    mine = site.lease("member", name="our-plan")["id"]
    member = Person(site, "member")
    assert member.get("/console/search?q=plan").headers["location"] == f"/console/leases/{mine}"
    for query in ("secret", "cmp-1"):
        assert "that you may see matches" in member.get(f"/console/search?q={query}").text


def test_what_if_shows_the_effects_and_changes_nothing(browser: Browser, build: Build) -> None:
    site = build(QUIET)
    hold(site, HOSTILE[:80])
    before, world = site.settled(), site.services.sim().world() | {"time": ""}
    with opened(browser, site.url) as page:
        page.goto("/")
        page.goto("/console/hosts/cmp-1")
        page.get_by_role("link", name="what if it fails").click()
        result = page.locator("#result")
        expect(result).to_contain_text("If cmp-1 dies")
        expect(result).to_contain_text("1 reservation moves")
        expect(result).to_contain_text("3 hosts left to reserve, 2 of them free now")
        page.get_by_label("rack-a").check()
        page.get_by_role("button", name="Show the plan").press("Enter")
        expect(result).to_contain_text("1 breaks: it misses something")
        expect(result).to_contain_text("4 → 0")
        expect(result).to_contain_text("held until an operator approves")
        assert "rack=rack-a" in page.url
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            check_for_everybody(page)
        picture(page, "what-if")
    assert site.dump() == before
    assert site.services.sim().world() | {"time": ""} == world
    text = site.call("GET", "/console/what-if?fail=%3Cb%3Enobody").text
    assert "There is no host &lt;b&gt;nobody" in text


def test_what_if_names_hosts_that_the_planner_ignores(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = build(QUIET)
    monkeypatch.setattr(what_if, "MOST_FAILED", 3)
    text = site.call("GET", "/console/what-if?rack=rack-a&fail=cmp-1").text
    assert "The planner plans for 3 hosts at once: 1 host, from cmp-4 to cmp-4, is treated" in text
    assert "treated as healthy" not in site.call("GET", "/console/what-if?fail=cmp-1").text
