# SPDX-License-Identifier: Apache-2.0
"""The front page is harmless, and so is every GET."""

from __future__ import annotations

import re

from holdfast import console
from holdfast.api.routes import table
from tests.api.cases import INCIDENT, furnish_case
from tests.api.ha import furnish
from tests.api.house import OWN, House
from tests.api.rules import furnish_alarm, furnish_rules
from tests.api.views import furnish_view


def test_the_front_page_forbids_everything_it_does_not_need(shared: House) -> None:
    answer = shared.call("GET", "/")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = answer.headers["Content-Security-Policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_front_page_escapes_what_clients_call_us(shared: House) -> None:
    answer = shared.call("GET", "/", headers={"Host": 'x"><script>alert(1)</script>'})
    assert answer.status_code == 403
    assert "<script>alert" not in answer.text


def test_public_url_is_used_in_links_when_it_is_set(house: House) -> None:
    house.conf.set_override("public_url", "https://cloud.example/", "api")
    (version,) = house.call("GET", "/reservation").json["versions"]
    assert version["links"][0]["href"] == "https://cloud.example/reservation/v1"


def test_no_get_and_no_head_changes_anything(house: House) -> None:
    lease_id = house.lease()["id"]
    furnish(house)
    furnish_case(house, "")
    furnish_view(house)
    furnish_rules(house)
    alarm = furnish_alarm(house)
    before, world = house.dump(), house.services.sim().world() | {"time": ""}
    names = {"lease_id": lease_id, "host_id": "1", "code": "holdfast.internal"}
    names |= {"segment_id": "1", "notification_id": "1", "vmove_id": "1", "alias": "segments"}
    names |= {"incident_id": INCIDENT, "other": "else", "host": "cmp-1"}
    names |= {"rules_name": "base", "alarm_id": alarm}
    names["operation_id"] = house.call("GET", f"{OWN}/operations").json["operations"][0]["id"]
    names["floatingip_id"] = house.core.store.ledger.floatingips()[0].id
    asked = {"reservation": '{"resource_type": "physical:host", "min": 1, "max": 1}'}
    for route in table(house.core.metrics):
        if route.method == "GET":
            path = re.sub(r"{(\w+)}", lambda found: names[found[1]], route.path)
            params = {**asked, "duration_s": 60} if path.endswith("/availability") else None
            for method in ("GET", "HEAD", "OPTIONS"):
                assert house.call(method, path, params=params).status_code in (200, 300), path
    for route in console.ROUTES:
        if route.method == "GET" and not route.path.endswith("/live"):
            path = re.sub(r"{(\w+)}", lambda found: names.get(found[1], "cmp-1"), route.path)
            for method in ("GET", "HEAD"):
                assert house.call(method, path).status_code < 500, path
    assert house.dump() == before
    assert house.services.sim().world() | {"time": ""} == world
