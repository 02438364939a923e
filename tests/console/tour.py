# SPDX-License-Identifier: Apache-2.0
"""A crawl of all pages of a site with leases, incidents, alarms and rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import parse_qs, urlsplit

from tests.api.cases import write_incident
from tests.api.ha import add_host, make_segment
from tests.api.house import LEASES, OWN, when
from tests.api.rules import furnish_alarm, furnish_rules
from tests.api.views import UP
from tests.console.people import Person
from tests.console.site import Site
from tests.console.test_wall import hold, see, stand

#: The most pages opened that differ only in their query.
ALIKE = 3
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def furnish(site: Site) -> None:
    """Create objects in every state that has a button of its own."""
    hold(site, "runs")
    site.lease(name="it's ahead; rm -rf", start_date=when(days=2), end_date=when(days=3))
    over = hold(site, "over")
    site.call("PUT", f"{LEASES}/{over}", json={"end_date": "now"})
    segment = make_segment(site)["uuid"]
    add_host(site, segment, "cmp-3")
    add_host(site, segment, "cmp-6")
    see(site, (UP, "none", ["cmp-1"]))  # for the time of the crawl
    furnish_rules(site)
    furnish_alarm(site)
    write_incident(site, host="cmp-3", segment=segment)
    write_incident(site, host="cmp-4", status="failed", subject="host:cmp-4")
    stand(site, "cmp-4", "down", "so it is")
    sim = site.services.sim()
    sim.fail_host("cmp-4")
    sim.cut_network("cmp-4", "storage")
    hour = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    window = {"matcher": {"host": "cmp-3"}, "reason": "fans", "expires_at": hour}
    for what, body in (
        ("pauses", {"reason": "storm"}),
        ("pauses", {"reason": "storm", "segment": segment}),
        ("maintenance-windows", window),
    ):
        made = site.call("POST", f"{OWN}/{what}", json=body)
        assert made.status_code == 201, made.text
    approve = {"approve": True, "reason": "so it is", "domain": "rack-a"}
    assert site.call("POST", f"{OWN}/repair", json=approve).status_code == 202
    site.settled()  # background jobs are done, so links stay valid


def walked(site: Site) -> Iterator[tuple[str, str]]:
    """Yield every page and part reached by links, with its text."""
    person, seen, alike = Person(site), set[str](), Counter[tuple[str, ...]]()
    waiting = ["/", "/?story=cmp-4", "/console/leases/new", "/console/what-if?rack=rack-a"]
    waiting += ["/console/what-if?fail=cmp-6", "/console/calendar?find=1&kind=slots&where=vcpus>0"]
    while waiting:
        path = waiting.pop(0)
        if path in seen or alike[kind(path)] >= ALIKE:
            continue
        seen.add(path)
        alike[kind(path)] += 1
        answer = person.get(path)
        if answer.status_code != 200 or "text/html" not in answer.headers["content-type"]:
            assert answer.status_code < 400, path
            continue
        yield path, answer.text
        found = re.findall(r'(?:href|data-refresh)="(/[^"#]*)', answer.text)
        waiting += [unescape(one) for one in found if not one.startswith("/console/static")]


def kind(path: str) -> tuple[str, ...]:
    """Return the key of a group of similar pages."""
    parts = urlsplit(path)
    about = re.sub(r"cmp-\d", "HOST", UUID.sub("ID", parts.path))
    return (about, *sorted(parse_qs(parts.query)))
