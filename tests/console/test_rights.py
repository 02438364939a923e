# SPDX-License-Identifier: Apache-2.0
"""Rights on details of pages: the host of a server, incidents, alarms and audit lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.console.wall import TILES_URL
from tests.api.audits import write_line
from tests.api.cases import write_incident
from tests.api.house import LATER, LEASES, basic_config, when
from tests.api.rules import furnish_alarm
from tests.console.people import Person
from tests.console.site import Site

Build = Callable[..., Site]
#: Only the test changes host statuses; no recovery, no repair.
QUIET = "[monitors]\npoll = false\n[reservation]\nrepair = false\n"
HERE = "/console/leases"
MEMBER = "role:member or role:admin"


def ruled(build: Build, folder: Path, **rules: str) -> Site:
    """Build a site with other policy rules."""
    policy = folder / "policy.yaml"
    lines = (f'"holdfast:{name.replace("__", ":")}": "{rule}"\n' for name, rule in rules.items())
    policy.write_text("".join(lines))
    return build(f"{basic_config(folder)}{QUIET}[oslo_policy]\npolicy_file = {policy}\n")


# The host of a server


def leased_server(site: Site) -> dict[str, Any]:
    (server,) = site.services.sim().world()["servers"]  # type: ignore[misc]
    wanted = {"resource_type": "virtual:server", "server_id": server["id"], "on_end": "stop"}
    return site.lease("member", start_date=when(days=1), reservations=[wanted])


def test_an_owner_does_not_see_the_host_of_a_leased_server(build: Build, tmp_path: Path) -> None:
    """A cached answer for an admin is not shown to the owner, nor the other way round."""
    site = ruled(build, tmp_path)
    lease = leased_server(site)
    paths = (f"{LEASES}/{lease['id']}", LEASES)

    def told(path: str, user: str) -> str:
        return str(site.call("GET", path, user, headers=LATER).json)

    for path in paths:
        for _ in range(2):
            assert "'name': 'cmp-" in told(path, "admin")
            own = told(path, "member")
            assert "cmp-" not in own and "'hosts': []" in own
    assert "cmp-" not in Person(site, "member").get(f"{HERE}/{lease['id']}").text
    assert "/console/hosts/cmp-" in Person(site, "admin").get(f"{HERE}/{lease['id']}").text
    change = {"end_date": when(days=3), "dry_run": True}
    tried = site.call("PUT", paths[0], "member", json=change, headers=LATER)
    assert tried.status_code == 200 and "cmp-" not in str(tried.json)


# The wall


def test_a_user_who_may_list_hosts_sees_no_incidents_and_no_alarms(
    build: Build, tmp_path: Path
) -> None:
    site = ruled(build, tmp_path, host__list=MEMBER)
    evidence = {
        "kind": "fenced",
        "sentence": "its power reads off",
        "at": "2026-11-01T10:00:00+00:00",
    }
    own = write_incident(site, host="cmp-1", details={"evidence": evidence})
    furnish_alarm(site)
    secrets = (own, "nothing proves that it is off", "its power reads off", "1 alarm")

    def seen(user: str, path: str) -> str:
        return Person(site, user).get(path).text

    whole = seen("admin", "/")
    for secret in (own, "1 alarm"):
        assert secret in whole, secret
    for path in (f"{TILES_URL}?since=", "/", "/console/hosts/cmp-1"):
        seen("admin", path)  # fills the rendering shared by admins
        text = seen("member", path)
        assert "cmp-1" in text
        assert not [secret for secret in secrets if secret in text], path


def test_a_user_who_may_list_incidents_sees_them_on_the_wall(build: Build, tmp_path: Path) -> None:
    site = ruled(build, tmp_path, host__list=MEMBER, incident__list=MEMBER)
    own = write_incident(site, host="cmp-1")
    assert own in Person(site, "member").get("/").text


# The audit log


@pytest.mark.parametrize("given", ["incident__show", "audit__list"])
def test_an_incident_page_shows_other_projects_only_to_admins(
    build: Build, tmp_path: Path, given: str
) -> None:
    site = ruled(build, tmp_path, **{"incident__show": MEMBER, given: MEMBER})
    own = write_incident(site, host="cmp-1")
    write_line(site, "lease secret-plan lost cmp-1", project_id="red", subject="l-1")
    path = f"/console/incidents/{own}"
    assert "secret-plan" in Person(site, "admin").get(path).text
    shown = Person(site, "member").get(path)
    assert shown.status_code == 200 and "secret-plan" not in shown.text


@pytest.mark.parametrize("may", [True, False])
def test_the_history_of_a_lease_needs_the_right_to_read_the_audit_log(
    build: Build, tmp_path: Path, may: bool
) -> None:
    site = ruled(build, tmp_path, **({} if may else {"audit__list": "role:admin"}))
    lease = site.lease("member", name="ours", start_date=when(days=1))
    text = Person(site, "member").get(f"{HERE}/{lease['id']}").text
    assert ("lease ours booked" in text) is may
    assert ("do not permit reading the audit log" in text) is not may
    assert "PENDING" in text
    assert "lease ours booked" in Person(site, "admin").get(f"{HERE}/{lease['id']}").text
