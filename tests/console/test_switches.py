# SPDX-License-Identifier: Apache-2.0
"""Refused forms keep their input, and the command of a form follows its fields."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.cmd.client import HoldfastApp
from holdfast.console import switches
from tests.api.audits import write_line
from tests.api.cases import write_incident
from tests.api.ha import make_segment
from tests.api.house import OWN, copy
from tests.api.rules import furnish_alarm
from tests.console.browser import opened
from tests.console.people import Person
from tests.console.site import Site

SWITCHES, INCIDENTS = "/console/switches", "/console/incidents"


@pytest.fixture(scope="module")
def site(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """With two segments."""
    with Site(copy(furnished, tmp_path_factory.mktemp("site") / "state")) as made:
        for name in ("north", "south"):
            make_segment(made, name)
        yield made


def form(text: str, action: str) -> str:
    """Return the form with this action."""
    found = re.search(rf'<form [^>]*action="{re.escape(action)}".*?</form>', text, re.DOTALL)
    assert found, action
    return found[0]


def reason(text: str, action: str) -> str:
    found = re.search(r'name="reason"[^>]* value="([^"]*)"', form(text, action))
    assert found, action
    return html.unescape(found[1])


def chosen(text: str, select: str) -> str:
    """Return the selected option of a select element, or its first."""
    (inner,) = re.findall(rf'<select id="{select}"[^>]*>(.*?)</select>', text, re.DOTALL)
    options = re.findall(
        r'<option(?: value="([^"]*)")?(?: data-word="\w+")?( selected)?>([^<]*)', inner
    )
    picked = [option for option in options if option[1]] or options[:1]
    return html.unescape(picked[0][0] or picked[0][2])


def word(person: Person) -> str:
    return person.word("/console/audit")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("approve", {"domain": "rack-z"}),
        ("pause", {"segment": "north", "lasts": "long"}),
        ("maintenance", {"host": "cmp-99", "lasts": "86400"}),
    ],
)
def test_a_refused_form_keeps_its_input_and_other_forms_stay_empty(
    site: Site, name: str, fields: dict[str, str]
) -> None:
    person = Person(site)
    entered = {"reason": 'a "storm"', **fields}
    answer = person.post(f"{SWITCHES}/{name}", entered, word(person))
    assert answer.status_code in (400, 404), answer.text
    for one in ("pause", "maintenance", "approve"):
        typed = reason(answer.text, f"{SWITCHES}/{one}")
        assert typed == ('a "storm"' if one == name else ""), one
    if name != "pause":
        assert chosen(answer.text, "pause-segment") == "everywhere"
    if name != "maintenance":
        assert chosen(answer.text, "maintenance-segment") == "any"


@pytest.mark.parametrize("gone", [False, True])
def test_a_refused_pause_keeps_its_segment(site: Site, gone: bool) -> None:
    (south,) = [one for one, name in _segments(site) if name == "south"]
    segment = "5e600000-0000-4000-8000-000000000001" if gone else south
    person = Person(site)
    fields = {"segment": segment, "lasts": "14400", "reason": " ", "next": f"{INCIDENTS}/7"}
    answer = person.post(f"{SWITCHES}/pause", fields, word(person))
    assert answer.status_code == 400
    assert chosen(answer.text, "pause-segment") == (segment if gone else "south")
    assert chosen(answer.text, "pause-lasts") == "14400"
    assert f'name="next" value="{INCIDENTS}/7"' in form(answer.text, f"{SWITCHES}/pause")
    assert site.call("GET", f"{OWN}/pauses").json["pauses"] == []


def _segments(site: Site) -> list[tuple[str, str]]:
    return list(site.core.store.incident_queries.segment_names().items())


def test_the_message_of_a_pause_names_the_segment(site: Site) -> None:
    (north,) = [one for one, name in _segments(site) if name == "north"]
    person = Person(site)
    fields = {"segment": north, "lasts": "900", "reason": "power test"}
    done = person.post(f"{SWITCHES}/pause", fields, word(person))
    assert done.status_code == 303
    assert "paused in segment north" in person.get(SWITCHES).text
    person.post(f"{SWITCHES}/resume", {"segment": north}, word(person))
    assert "recovery resumed in segment north" in person.get(SWITCHES).text


def test_a_refused_incident_action_keeps_its_reason(site: Site) -> None:
    own = write_incident(site, host="cmp-2")
    person = Person(site)
    fields = {"reason": "x" * 1001}
    answer = person.post(f"{INCIDENTS}/{own}/abort", fields, word(person))
    assert answer.status_code == 400
    assert reason(answer.text, f"{INCIDENTS}/{own}/abort") == "x" * 1001
    assert reason(answer.text, f"{INCIDENTS}/{own}/confirm-off") == ""


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (f"{SWITCHES}/pause", {"reason": ""}),
        (f"{SWITCHES}/maintenance/nowhere/end", {}),
        ("/console/rules/preview", {"name": "cpu", "text": "nonsense"}),
        ("/console/rules/save", {"name": "", "text": "nonsense"}),
        ("/console/leases", {"do": "check"}),
    ],
)
def test_a_theme_change_after_a_refused_form_shows_a_page(
    site: Site, path: str, fields: dict[str, str]
) -> None:
    person = Person(site)
    answer = person.post(path, fields, word(person))
    found = re.search(r'name="next" value="([^"]*)"', form(answer.text, "/console/theme"))
    assert found
    chosen_theme = {"theme": "dark", "next": html.unescape(found[1])}
    there = person.post("/console/theme", chosen_theme, word(person))
    assert there.status_code == 303
    assert person.get(there.headers["Location"]).status_code == 200, there.headers["Location"]


def test_a_theme_change_after_a_refused_action_shows_the_incident(site: Site) -> None:
    own = write_incident(site, host="cmp-4")
    person = Person(site)
    answer = person.post(f"{INCIDENTS}/{own}/abort", {"reason": ""}, word(person))
    assert f'name="next" value="{INCIDENTS}/{own}"' in form(answer.text, "/console/theme")


# the command of a form


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (switches.pause_command({}), "recovery pause --for 1h --reason TEXT"),
        (
            switches.pause_command({"segment": "my segment", "lasts": "forever", "reason": "-x"}),
            "recovery pause --segment 'my segment' --for forever --reason=-x",
        ),
        (switches.pause_command({"lasts": "nonsense"}), "recovery pause --for 1h --reason TEXT"),
        (switches.maintenance_command({}), "maintenance add --host HOST --for 1h --reason TEXT"),
        (
            switches.maintenance_command(
                {"kind": "guest", "starts_at": "2027-01-31T18:00", "lasts": "604800"}
            ),
            "maintenance add --kind guest --from 2027-01-31T18:00 --for 7d --reason TEXT",
        ),
        (switches.approve_command({}), "recovery approve --reason TEXT"),
        (
            switches.approve_command({"domain": "rack-a", "reason": "it's so"}),
            """recovery approve --domain rack-a --reason 'it'"'"'s so'""",
        ),
    ],
)
def test_the_command_of_a_form_has_its_fields_and_parses(line: list[str], wanted: str) -> None:
    assert shlex.join(line) == f"holdfast {wanted}"
    understood(shlex.join(line))


def understood(line: str) -> None:
    """Parse the line with the real client."""
    app = HoldfastApp()
    factory, name, rest = app.command_manager.find_command(shlex.split(line)[1:])
    factory(app, None, name).get_parser(name).parse_args(rest)


def test_a_refused_form_shows_the_command_for_its_input(site: Site) -> None:
    person = Person(site)
    fields = {"segment": "north", "lasts": "forever", "reason": " "}
    answer = person.post(f"{SWITCHES}/pause", fields, word(person))
    shown = "holdfast recovery pause --segment north --for forever --reason TEXT</code>"
    assert shown in form(answer.text, f"{SWITCHES}/pause")


def command(page: Page, name: str) -> str:
    line = page.locator(f"#{name}-command code").text_content() or ""
    understood(line)
    return line.removeprefix("holdfast ")


def test_the_command_follows_the_fields_of_the_form(browser: Browser, site: Site) -> None:
    with opened(browser, site.url) as page:
        page.goto(SWITCHES)
        assert command(page, "pause") == "recovery pause --for 1h --reason TEXT"
        page.locator("#pause-segment").select_option("segment south")
        page.locator("#pause-lasts").select_option("until resumed")
        page.locator("#pause-reason").fill("it's a storm")
        wanted = switches.pause_command(
            {"segment": "south", "lasts": "forever", "reason": "it's a storm"}
        )
        assert f"holdfast {command(page, 'pause')}" == shlex.join(wanted)
        assert command(page, "maintenance") == "maintenance add --host HOST --for 1h --reason TEXT"
        page.locator("#maintenance-kind").select_option("guest")
        page.locator("#maintenance-from").fill("2027-01-31T18:00")
        assert command(page, "maintenance") == (
            "maintenance add --kind guest --from 2027-01-31T18:00 --for 1h --reason TEXT"
        )
        page.locator("#maintenance-host").fill("cmp-1")
        assert command(page, "maintenance").startswith("maintenance add --host cmp-1 --kind guest ")
        page.locator("#approve-domain").fill("rack a")
        assert command(page, "approve") == "recovery approve --domain 'rack a' --reason TEXT"


def test_the_command_on_an_incident_page_survives_a_refresh(browser: Browser, site: Site) -> None:
    (north,) = [one for one, name in _segments(site) if name == "north"]
    own = write_incident(site, host="cmp-5", segment=north)
    with opened(browser, site.url) as page:
        page.goto(f"{INCIDENTS}/{own}")
        expect(page.locator("#live")).to_have_text("live")
        assert command(page, "pause") == "recovery pause --for 1h --reason TEXT"
        page.locator("#pause-where").select_option("segment north")
        page.locator("#pause-lasts").select_option("1 day")
        page.locator("h1").click()
        wanted = "recovery pause --segment north --for 1d --reason TEXT"
        assert command(page, "pause") == wanted
        write_line(site, "cmp-5 is failed: no network reports it")
        expect(page.locator("#incident-timeline")).to_contain_text("cmp-5 is failed")
        assert command(page, "pause") == wanted


def test_the_command_that_mutes_an_alarm_has_the_length_that_is_chosen(
    browser: Browser, site: Site
) -> None:
    furnish_alarm(site)
    (own,) = [alarm["id"] for alarm in site.call("GET", f"{OWN}/alarms").json["alarms"]]
    with opened(browser, site.url) as page:
        page.goto(f"/console/alarms/{own}")
        assert command(page, "mute") == f"alarm mute {own} --for 1h"
        page.locator("#for").select_option("4 hours")
        assert command(page, "mute") == f"alarm mute {own} --for 4h"
