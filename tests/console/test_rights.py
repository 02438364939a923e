# SPDX-License-Identifier: Apache-2.0
"""What a page shows beside its main thing has rights of its own: where a server is, what recovery
does, what stands out, what was written down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.console.wall import FRESH
from tests.api.audits import write_line
from tests.api.cases import write_incident
from tests.api.house import LATER, LEASES, basic_config, when
from tests.api.rules import furnish_alarm
from tests.console.people import Person
from tests.console.site import Site

Build = Callable[..., Site]
#: Nobody but the test says how hosts stand, or does anything about it.
QUIET = "[monitors]\npoll = false\n[reservation]\nrepair = false\n"
HERE = "/console/leases"
MEMBER = "role:member or role:admin"


def ruled(build: Build, folder: Path, **rules: str) -> Site:
    """A site whose operator gave some rights to others than we do."""
    policy = folder / "policy.yaml"
    lines = (f'"holdfast:{name.replace("__", ":")}": "{rule}"\n' for name, rule in rules.items())
    policy.write_text("".join(lines))
    return build(f"{basic_config(folder)}{QUIET}[oslo_policy]\npolicy_file = {policy}\n")


# where a server is


def leased_server(site: Site) -> dict[str, Any]:
    (server,) = site.services.sim().world()["servers"]  # type: ignore[misc]
    wanted = {"resource_type": "virtual:server", "server_id": server["id"], "on_end": "stop"}
    return site.lease("member", start_date=when(days=1), reservations=[wanted])


def test_an_owner_does_not_learn_where_a_leased_server_will_be(
    build: Build, tmp_path: Path
) -> None:
    """Whoever asks first: what was written for an admin is not shown to the owner, nor the other
    way round."""
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


# the wall


def test_who_may_list_hosts_does_not_read_incidents_or_count_alarms_there(
    build: Build, tmp_path: Path
) -> None:
    site = ruled(build, tmp_path, host__list=MEMBER)
    evidence = {"kind": "fenced", "sentence": "its power reads off"}
    own = write_incident(site, host="cmp-1", details={"evidence": evidence})
    furnish_alarm(site)
    secrets = (own, "nothing proves that it is off", "its power reads off", "1 alarm")

    def seen(user: str, path: str) -> str:
        return Person(site, user).get(path).text

    whole = seen("admin", "/")
    for secret in (own, "1 alarm"):
        assert secret in whole, secret
    for path in (f"{FRESH}?since=", "/", "/console/hosts/cmp-1"):
        seen("admin", path)  # what is worked out once for all admins is not for him
        text = seen("member", path)
        assert "cmp-1" in text
        assert not [secret for secret in secrets if secret in text], path


def test_who_may_list_incidents_too_reads_them_on_the_wall(build: Build, tmp_path: Path) -> None:
    site = ruled(build, tmp_path, host__list=MEMBER, incident__list=MEMBER)
    own = write_incident(site, host="cmp-1")
    assert own in Person(site, "member").get("/").text


# the audit


@pytest.mark.parametrize("given", ["incident__show", "audit__list"])
def test_an_incidents_page_tells_other_projects_things_to_admins_alone(
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
def test_an_owner_reads_the_history_of_a_lease_with_the_right_to_read_the_audit(
    build: Build, tmp_path: Path, may: bool
) -> None:
    site = ruled(build, tmp_path, **({} if may else {"audit__list": "role:admin"}))
    lease = site.lease("member", name="ours", start_date=when(days=1))
    text = Person(site, "member").get(f"{HERE}/{lease['id']}").text
    assert ("lease ours booked" in text) is may
    assert ("do not let you read the audit" in text) is not may
    assert "PENDING" in text
    assert "lease ours booked" in Person(site, "admin").get(f"{HERE}/{lease['id']}").text
