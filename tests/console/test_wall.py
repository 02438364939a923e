# SPDX-License-Identifier: Apache-2.0
"""The wall: tiles, filters in the URL, live updates; a member sees only the hosts of own leases."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from falcon import testing
from playwright.sync_api import Browser, Page, expect

from holdfast.api import concurrency
from holdfast.app import service
from holdfast.console.wall import TILES_URL
from holdfast.db.tables import hosts, monitors
from holdfast.db.views import WallStore
from holdfast.hoststatus.status import HostStatus
from holdfast.ports.recovery import StatusChange
from tests.api import views
from tests.api.cases import write_incident
from tests.api.ha import add_host, make_segment
from tests.api.house import basic_config, host_reservation, when
from tests.api.rules import beat_body
from tests.api.views import NO_STORAGE, UP, view_body
from tests.console.browser import check_for_everybody, opened, picture
from tests.console.people import Person
from tests.console.site import Site
from tests.processes import eventually

Build = Callable[..., Site]
#: Nobody but the test says how hosts stand.
QUIET = "[monitors]\npoll = false\n"
#: And nobody does anything about a host that is down.
IDLE = f"{QUIET}[reservation]\nrepair = false\n"
HOUR_S = 3600.0
NAMES = re.compile('class="name" href="/console/hosts/([^"]+)"')
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'


def hold(site: Site, name: str, count: int = 1, user: str = "") -> str:
    """Create an active lease and return its id."""
    wanted = [host_reservation(min=count, max=count)]
    made = site.lease(user, name=name, start_date="now", end_date=when(days=1), reservations=wanted)

    def active() -> bool:
        found = site.call("GET", f"/reservation/v1/leases/{made['id']}", user).json["lease"]
        return bool(found["status"] == "ACTIVE")

    eventually(active)
    return str(made["id"])


def stand(site: Site, name: str, state: str, why: str = "") -> None:
    store = site.core.store
    (old,) = [one for one in store.host_status.watched() if one.name == name]
    new = HostStatus(state, datetime.now(UTC), why)
    store.host_status.change([StatusChange(old.id, old.status, new, say="")], None)


def see(site: Site, *rows: tuple[tuple[str, ...], str, list[str]]) -> None:
    """Report a monitor's view, with a long heartbeat so that it stays fresh during the test."""
    views.see(site.core.store, view_body(*rows, heartbeat_s=300))


def fresh(site: Site, version: str, query: str = "") -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]]
    found = site.call("GET", f"/console/wall/tiles?since={version}{query}").json
    return found


def version_of(text: str) -> str:
    found = re.search(r'data-version="(\w+)"', text)
    assert found
    return found[1]


def test_a_host_that_was_off_before_is_not_shown_as_fenced(build: Build) -> None:
    site = build(QUIET)
    stand(site, "cmp-4", "down", "it died")
    said = "it was not cut: its power reads off already"
    evidence = {"kind": "power_off", "sentence": said, "at": "2027-01-31T12:00:00+00:00"}
    write_incident(site, host="cmp-4", details={"evidence": evidence})
    text = site.call("GET", "/").text
    tiles = dict(re.findall(r'<li id="t-[^"]*-(\d+)" class="tile(.*?)</li>', text, re.DOTALL))
    assert "power off" in tiles["4"]
    assert "fenced" not in tiles["4"]


def test_a_tile_shows_status_networks_holder_and_incident(build: Build) -> None:
    site = build(QUIET)
    lease = hold(site, HOSTILE[:80])
    segment = make_segment(site, name="<b>north</b>")
    add_host(site, segment["uuid"], "cmp-3", on_maintenance=True)
    stand(site, "cmp-4", "down", "somebody <i>says</i> so")
    evidence = {
        "kind": "fenced",
        "sentence": "its power reads off",
        "at": "2027-01-31T12:00:00+00:00",
    }
    incident = write_incident(site, host="cmp-4", details={"evidence": evidence})
    see(site, (UP, "none", ["cmp-1", "cmp-2"]), (NO_STORAGE, "recovery", ["cmp-3"]))
    text = site.call("GET", "/").text
    assert "<script>alert" not in text and "<img src=x" not in text and "<b>north" not in text
    tiles = dict(re.findall(r'<li id="t-[^"]*-(\d+)" class="tile(.*?)</li>', text, re.DOTALL))
    assert len(tiles) == 4
    assert f"/console/leases/{lease}" in tiles["1"] and "&lt;script&gt;" in tiles["1"]
    assert "storage down" in tiles["3"] and "maintenance" in tiles["3"]
    assert "manage up" in tiles["2"] and "free" in tiles["2"]
    assert "down" in tiles["4"] and "fenced" in tiles["4"] and incident in tiles["4"]
    assert "storage unknown" in tiles["4"] and "not reservable" in tiles["4"]
    assert "0 guests" in tiles["2"]
    grouped = site.call("GET", "/?by=segment").text
    assert "&lt;b&gt;north&lt;/b&gt;" in grouped and "no segment" in grouped


def add_window(site: Site, matcher: dict[str, str], **more: object) -> None:
    body = {"matcher": matcher, "reason": "new memory", "duration_s": 3600, **more}
    made = site.call("POST", "/holdfast/v1/maintenance-windows", json=body)
    assert made.status_code == 201, made.text


def test_what_a_maintenance_window_leaves_alone_is_on_maintenance(build: Build) -> None:
    site = build(QUIET)
    segment = make_segment(site, name="north")
    for name in ("cmp-2", "cmp-3", "cmp-4"):
        add_host(site, segment["uuid"], name)

    def names() -> list[str]:
        return re.findall(NAMES, site.call("GET", "/?is=maintenance").text)

    add_window(site, {"host": "cmp-3", "kind": "guest"})
    add_window(site, {"host": "cmp-4"}, starts_at=when(hours=1))
    assert names() == []
    add_window(site, {"host": "CMP-3"})
    assert names() == ["cmp-3"]
    assert "maintenance window until" in site.call("GET", "/").text
    assert "maintenance window until" in site.call("GET", "/console/hosts/cmp-3").text
    add_window(site, {"segment": "north", "kind": "host"})
    assert names() == ["cmp-2", "cmp-3", "cmp-4"]


def test_the_url_filters_and_groups_hosts(build: Build) -> None:
    site = build(QUIET)
    hold(site, "blue-run", 2)
    stand(site, "cmp-4", "suspect")

    def names(query: str) -> list[str]:
        return re.findall(
            'class="name" href="/console/hosts/([^"]+)"', site.call("GET", query).text
        )

    assert names("/?state=suspect") == ["cmp-4"]
    assert names("/?state=suspect&state=up&q=CMP-4") == ["cmp-4"]
    assert names("/?is=reserved") == ["cmp-1", "cmp-2"]
    assert names("/?q=blue-run") == ["cmp-1", "cmp-2"]
    assert names("/?is=free") == ["cmp-3", "cmp-4"]
    assert names("/?group=rack-a") and not names("/?group=rack-z")
    assert names("/?by=nonsense&state=nonsense") == [f"cmp-{n}" for n in range(1, 5)]
    assert "None of 4 hosts matches the filters" in site.call("GET", "/?q=nobody").text


def test_only_pieces_that_changed_are_sent(build: Build) -> None:
    site = build(QUIET)
    version = version_of(site.call("GET", "/").text)
    assert fresh(site, version) == {"version": version, "lists": {}, "pieces": {}}
    stand(site, "cmp-2", "down", "somebody says so")
    changed = fresh(site, version)
    tiles = [name for name in changed["pieces"] if name.startswith("t-")]
    assert len(tiles) == 1 and tiles[0].endswith("-2") and not changed["lists"]
    assert "counts" in changed["pieces"]
    everything = fresh(site, "of another process")
    assert len([name for name in everything["pieces"] if name.startswith("t-")]) == 4
    only_bad = fresh(site, version_of(site.call("GET", "/?state=down").text), "&state=down")
    assert not only_bad["pieces"]


def test_viewers_with_all_rights_share_one_snapshot(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = build(basic_config(tmp_path) + IDLE)  # a host that is kept back is another state
    monkeypatch.setattr(concurrency, "LASTS_S", HOUR_S)  # however slow this machine is
    snapshots = []
    snapshot = WallStore.snapshot
    monkeypatch.setattr(
        WallStore, "snapshot", lambda *args: (snapshots.append(1), snapshot(*args))[1]
    )

    one, other = Person(site, "admin"), Person(site, "admin")

    def pieces(person: Person, query: str = "") -> str:
        return str(person.get(f"{TILES_URL}?since={query}").json()["pieces"])

    before = pieces(one)
    assert pieces(other) == before and "cmp-2" in before
    assert "cmp-2" not in pieces(other, "&q=cmp-1")  # another filter, the same snapshot
    assert len(snapshots) == 1
    stand(site, "cmp-2", "down", "somebody says so")
    assert pieces(one) != before  # at once, not after a second
    pieces(other)
    assert len(snapshots) == 2
    site.clock.ahead_s += HOUR_S  # a cached rendering expires
    pieces(one)
    assert len(snapshots) == 3


def test_a_shared_rendering_is_not_shown_to_users_with_fewer_rights(
    build: Build, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text('"holdfast:host:list": "role:manager or role:admin"\n')
    site = build(f"{basic_config(tmp_path)}{QUIET}[oslo_policy]\npolicy_file = {policy}\n")
    hold(site, "ours", user="member")
    hold(site, "theirs", user="other")

    people = {user: Person(site, user) for user in ("admin", "manager", "member")}

    def pieces(user: str) -> str:
        return str(people[user].get(f"{TILES_URL}?since=").json()["pieces"])

    for _ in range(2):  # in any order
        assert "ours" in pieces("admin") and "theirs" in pieces("admin")
        lists = pieces("manager")  # all hosts without holders
        assert "cmp-4" in lists and "theirs" not in lists and "reserved" in lists
        own = pieces("member")
        assert "ours" in own and "theirs" not in own and "cmp-4" not in own
        site.clock.ahead_s += concurrency.LASTS_S
        assert pieces("manager") == lists and "theirs" in pieces("admin")


def test_a_large_wall_shows_group_lines_and_tiles_of_bad_hosts(build: Build) -> None:
    site = build(QUIET)
    many_hosts(site, 450)
    text = site.call("GET", "/").text
    assert "454</b> hosts" in text
    assert re.findall(NAMES, text) == ["big-007"]
    assert text.count('class="grouphead"') == 11  # ten racks and the rack of the template
    assert "show all 45 hosts" in text and "show 45 hosts" in text
    opened_one = site.call("GET", "/?group=big-r7").text
    assert len(re.findall(NAMES, opened_one)) == 45
    assert 'href="/?state=down&amp;group=big-r7"' in text
    assert re.findall(NAMES, site.call("GET", "/?state=down&group=big-r7").text) == ["big-007"]


def many_hosts(site: Site, count: int) -> None:
    now = datetime.now(UTC)
    rows = [
        {
            "uuid": f"00000000-0000-4000-8000-{number:012d}",
            "name": (name := f"big-{number:03d}"),
            "hypervisor_hostname": name,
            "service_host": name,
            "cpu_info": "{}",
            "rack": f"big-r{number % 10}",
            "state": "down" if number == 7 else "up",
            "enrolled": True,
            "reservable": True,
            "touched_at": now,
            "created_at": now,
        }
        for number in range(count)
    ]
    with site.core.store.database.write() as conn:
        conn.execute(sa.insert(hosts), rows)


def test_a_member_sees_the_hosts_of_their_own_reservations_and_nothing_else(
    build: Build, tmp_path: Path
) -> None:
    site = build(basic_config(tmp_path) + QUIET)
    hold(site, "ours", user="member")
    hold(site, "theirs", user="other")
    member, other, admin = (Person(site, name) for name in ("member", "other", "admin"))
    text = member.get("/").text
    assert "Your hosts" in text and "ours" in text and "cmp-1" in text
    for hidden in ("theirs", "cmp-2", "rack-a", "Inject a failure", "/console/hosts/"):
        assert hidden not in text
    assert "cmp-2" in other.get("/").text and "cmp-1" not in other.get("/").text
    pieces = member.get("/console/wall/tiles?since=").json()["pieces"]
    assert "theirs" not in str(pieces) and "ours" in str(pieces)
    assert member.get("/console/hosts/cmp-1").status_code == 403
    refused = member.get("/console/what-if")
    assert refused.status_code == 403 and 'href="/console/login"' in refused.text
    broken = member.post("/console/sim", {"host": "cmp-1", "deed": "fail"})
    assert broken.status_code == 403
    assert "theirs" in admin.get("/").text and "Inject a failure" in admin.get("/").text


def tile(page: Page, name: str) -> str:
    found = page.locator(".tile").filter(has=page.get_by_role("link", name=name, exact=True))
    return found.inner_text()


def test_the_wall_updates_itself_and_takes_arrow_keys(browser: Browser, build: Build) -> None:
    site = build(QUIET)
    with opened(browser, site.url) as page:
        page.goto("/")
        expect(page.locator("#live")).to_contain_text("live")
        page.evaluate("window.stayed = true")
        page.get_by_role("link", name="cmp-1", exact=True).focus()
        hold(site, "fresh-run")
        expect(page.locator(".tile").first).to_contain_text("fresh-run")
        assert page.evaluate("document.activeElement.textContent") == "cmp-1"
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent") == "cmp-2"
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("document.activeElement.textContent") == "cmp-1"
        segment = make_segment(site, name="north")
        add_host(site, segment["uuid"], "cmp-4")
        add_window(site, {"host": "cmp-4"})
        expect(page.locator(".tile").last).to_contain_text("maintenance")
        stand(site, "cmp-3", "down", "somebody says so")
        expect(page.locator("#counts")).to_contain_text("1 down")
        assert "down" in tile(page, "cmp-3") and page.evaluate("window.stayed")
        page.get_by_role("link", name="1 down").first.click()
        page.wait_for_url("**/?state=down")
        expect(page.locator(".tile")).to_have_count(1)
        stand(site, "cmp-2", "down")
        expect(page.locator(".tile")).to_have_count(2)
        stand(site, "cmp-3", "up")
        expect(page.locator(".tile")).to_have_count(1)
        page.keyboard.press("/")
        page.keyboard.type("fresh-run")
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/leases/*")


def test_an_update_from_another_process_changes_only_differing_tiles(
    browser: Browser, build: Build
) -> None:
    site = build(IDLE)
    add_host(site, make_segment(site, name="north")["uuid"], "cmp-4")
    add_window(site, {"host": "cmp-4"})
    with opened(browser, site.url) as page:
        version = re.compile("since=[^&]*")
        page.route(
            f"**{TILES_URL}?**",
            lambda route: route.continue_(url=version.sub("since=elsewhere", route.request.url)),
        )
        page.goto("/")
        page.wait_for_selector("#live.on")
        page.evaluate("window.known = [...document.querySelectorAll('.tile')]")
        gone = "window.known.map(one => !one.isConnected)"
        stand(site, "cmp-2", "down", "somebody says so")
        expect(page.locator(".tile.fresh")).to_have_count(1)
        assert page.evaluate(gone) == [False, True, False, False]
        page.evaluate("window.known = [...document.querySelectorAll('.tile')]")
        stand(site, "cmp-3", "down", "somebody says so")
        expect(page.locator(".tile.fresh")).to_have_count(2)
        assert page.evaluate(gone) == [False, False, True, False]
        assert "maintenance" in tile(page, "cmp-4")


def test_an_open_wall_shows_that_monitors_stopped_reporting(browser: Browser, build: Build) -> None:
    site = build(f"{IDLE}[hostmonitor]\nnetworks = manage,tenant,storage\n")
    see(site, (UP, "none", [f"cmp-{number}" for number in range(1, 5)]))
    with opened(browser, site.url) as page:
        page.goto("/")
        page.wait_for_selector("#live.on")
        expect(page.locator(".dot.good")).to_have_count(12)
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        with site.core.store.database.write() as conn:
            conn.execute(sa.update(monitors).values(seen_at=long_ago))
        expect(page.locator(".dot.idle")).to_have_count(12)


def test_the_wall_is_accessible_on_any_screen(browser: Browser, build: Build) -> None:
    site = build(QUIET)
    hold(site, "a-lease-with-quite-a-long-name-that-has-no-place-to-break-in-it-at-all-ever")
    stand(site, "cmp-2", "returning")
    stand(site, "cmp-3", "down", "somebody says so")
    stand(site, "cmp-4", "suspect")
    write_incident(site, host="cmp-3")
    for scheme in ("light", "dark"):
        with opened(browser, site.url, color_scheme=scheme) as page:
            page.goto("/")
            check_for_everybody(page)
            picture(page, f"wall-{scheme}")
    with opened(browser, site.url, viewport={"width": 375, "height": 800}) as page:
        for path in ("/", "/?by=segment", "/console/hosts/cmp-3", "/console/what-if?rack=rack-a"):
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 375, path
        picture(page, "what-if-phone")
    with opened(browser, site.url, java_script_enabled=False) as page:
        page.goto("/")
        expect(page.locator(".tile")).to_have_count(4)
        page.get_by_role("button", name="Cut the power of").click()
        expect(page.locator("#story-steps")).to_contain_text("cmp-1 has no power")


def test_a_user_who_may_list_hosts_does_not_see_holders(build: Build, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text('"holdfast:host:list": "role:member"\n')
    site = build(f"{basic_config(tmp_path)}{QUIET}[oslo_policy]\npolicy_file = {policy}\n")
    hold(site, "secret-plan", user="other")
    for path in ("/", "/?q=secret", "/console/hosts/cmp-1"):
        text = Person(site, "member").get(path).text
        assert "secret-plan" not in text and "Break" not in text
    assert "reserved" in Person(site, "member").get("/").text


def test_on_a_real_cloud_agents_report_the_guest_count(site: Site) -> None:
    site.call("PUT", "/holdfast/v1/agents/cmp-2", json=beat_body(guests=7))
    site.call("PUT", "/holdfast/v1/agents/cmp-3", json=beat_body())  # of an older version
    app = service.application(site.core, replace(site.services, sim=None))
    headers = {"Host": "127.0.0.1:8780"}
    said = testing.TestClient(app).simulate_get("/", headers=headers, remote_addr="127.0.0.1").text
    assert re.findall(r"(\d+) guests", said) == ["7"]
