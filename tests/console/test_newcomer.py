# SPDX-License-Identifier: Apache-2.0
"""A new user starts `holdfast up`, fails a host in the console and sees the repair in a minute."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from holdfast.client.client import Client
from tests.console.browser import check_for_everybody, opened, picture
from tests.e2e.deployment import all_in_one
from tests.processes import eventually

#: What is promised; five times that is the net against collapse.
PROMISE_S = 60
#: In ms: what monitors need to be sure and recovery to be over.
PATIENCE = 5 * PROMISE_S * 1000


def tile(page: Page, name: str) -> Locator:
    """Return the tile of a host."""
    return page.locator(".tile").filter(has=page.get_by_role("link", name=name, exact=True))


@pytest.mark.slow("monitors take seconds to be sure that a host is dead, and that it is back")
@pytest.mark.timeout(900)
def test_a_new_user_fails_a_host_and_sees_the_repair(browser: Browser, tmp_path: Path) -> None:
    with all_in_one(tmp_path) as (_program, client):
        eventually((tmp_path / "state" / "populated").exists)
        began = time.monotonic()
        with opened(browser, client.url) as page:
            victim = break_it(page)
            watch_it(page, victim)
            took = time.monotonic() - began
            lease = page.get_by_role("link", name="lease nightly-tests")
            follow(page, lease.get_attribute("href") or "", victim)
            bring_back(page, client, victim)
        assert took < 5 * PROMISE_S, f"{took:.0f} s from failure to repair"


def break_it(page: Page) -> str:
    page.goto("/")
    expect(page.get_by_role("heading", name="Inject a failure")).to_be_visible()
    check_for_everybody(page)
    button = page.get_by_role("button", name="Cut the power of")
    victim = button.inner_text().removeprefix("Cut the power of ")
    expect(tile(page, victim)).to_contain_text("nightly-tests")
    expect(tile(page, victim)).to_contain_text("up")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#story-steps")).to_contain_text(f"{victim} has no power")
    return victim


def watch_it(page: Page, victim: str) -> None:
    """The page updates itself, without a click or a reload."""
    page.evaluate("window.stayed = true")
    expect(page.get_by_text("All is well again.")).to_be_visible(timeout=PATIENCE)
    for part in ("detected: ", "incident recovered", "repaired: lease nightly-tests has"):
        expect(page.locator("#story-steps")).to_contain_text(part)
    expect(page.locator("#counts")).to_contain_text("1 down")
    expect(page.locator(".tile.edge-bad")).to_contain_text(victim)
    # the wall may update a little after the steps
    expect(tile(page, victim)).to_contain_text("power off")
    expect(tile(page, victim)).not_to_contain_text("nightly-tests")
    assert page.evaluate("window.stayed")
    check_for_everybody(page)
    picture(page, "newcomer")


def follow(page: Page, path: str, victim: str) -> None:
    """The page of the lease shows the replacement."""
    wall = page.url
    page.goto(path)
    expect(page.locator("main")).to_contain_text("Holdfast replaced a failed resource")
    expect(page.locator("#lease-holds")).not_to_contain_text(victim)
    page.goto(wall)
    page.get_by_role("link", name="incident, step by step").click()
    page.wait_for_url("**/console/incidents/*")
    expect(page.locator("main")).to_contain_text("recovered")
    page.goto(wall)


def bring_back(page: Page, client: Client, victim: str) -> None:
    page.get_by_role("button", name=f"Power {victim} on again").click()
    expect(page.locator(".banner.said")).to_contain_text("powered on again")
    expect(page.locator("#story-steps")).to_contain_text(f"{victim} has power again")
    expect(page.locator("#story-steps")).to_contain_text(f"{victim} is back", timeout=PATIENCE)
    expect(page.locator("#counts")).to_contain_text("24 up")
    expect(tile(page, victim)).not_to_contain_text("maintenance")
    (lease,) = [one for one in client.leases.list() if one["name"] == "nightly-tests"]
    assert [reservation["resources_changed"] for reservation in lease["reservations"]] == [True]
