# SPDX-License-Identifier: Apache-2.0
"""Limits of exports and histories; Secure cookies behind HTTPS."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.console import lease as lease_page
from holdfast.db.audit import REPAIR
from holdfast.db.tables import audit
from tests.api.audits import write_line
from tests.api.house import basic_config, copy, when
from tests.console.people import Person
from tests.console.site import Site
from tests.processes import PATIENCE_S, eventually

AUDIT = "/console/audit.json"


@pytest.fixture(scope="module")
def site(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("bounds")
    with Site(copy(furnished, folder / "state"), basic_config(folder)) as made:
        yield made


def test_slow_readers_of_exports_do_not_take_every_thread(site: Site) -> None:
    at = site.core.store.database.now()
    line = {"at": at, "subject": "hosts", "actor": "holdfast", "request_id": ""}
    # more than the socket buffers of a client that does not read
    lines = [{**line, "sentence": f"line {number} {'x' * 5000}"} for number in range(1000)]
    with site.core.store.database.write() as conn:
        conn.execute(sa.insert(audit), lines)
    admin = Person(site, "admin")
    slow = [admin.get(AUDIT, stream=True) for _ in range(2)]
    assert [one.status_code for one in slow] == [200, 200]
    third = admin.get(AUDIT)
    assert third.status_code == 503 and int(third.headers["Retry-After"]) > 0
    assert "other exports are running" in third.text
    for one in slow:
        one.close()
    eventually(lambda: admin.get(f"{AUDIT}?text=nowhere").status_code == 200)
    for _ in range(3):
        assert admin.http.head(site.url + AUDIT, timeout=PATIENCE_S).status_code == 200
    assert admin.get(f"{AUDIT}?until=never").status_code == 400
    assert admin.get(f"{AUDIT}?text=nowhere").status_code == 200


def test_every_cookie_is_secure_behind_https(site: Site) -> None:
    person = Person(site, "member")
    pages = {"/console/theme": {"theme": "dark"}, "/console/logout": {}}
    lease = site.lease("member", start_date=when(days=5), end_date=when(days=6))
    gone = f"/console/leases/{lease['id']}/delete"

    def set_by(path: str, fields: dict[str, str]) -> list[str]:
        word = person.word("/console/leases" if path == gone else "/console/login")
        answer = person.post(path, fields, word)
        assert answer.status_code == 303, answer.text
        return list(answer.raw.headers.getlist("Set-Cookie"))

    site.conf.set_override("public_url", "https://cloud.example", "api")
    try:
        found = [
            one for path, fields in {gone: {}, **pages}.items() for one in set_by(path, fields)
        ]
    finally:
        site.conf.clear_override("public_url", "api")
    assert {one.partition("=")[0] for one in found} >= {"holdfast_message", "holdfast_session"}
    assert [one for one in found if "; Secure" not in one] == []


def test_a_long_history_still_shows_start_and_repairs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_page, "_HISTORY", 5)
    lease = site.lease("member", name="old", start_date="now", end_date=when(days=1))
    page = f"/console/leases/{lease['id']}"
    member = Person(site, "member")
    eventually(lambda: 'aria-current="step"><span class="word"' in member.get(page).text)
    own = {"subject": lease["id"], "project_id": "blue"}
    began = datetime.fromisoformat("2027-01-31T12:34:56+00:00")
    write_line(site, "lease old is ACTIVE", at=began, kind="ACTIVE", **own)
    write_line(site, "lease old: reservation r misses what failed", at=began, kind=REPAIR, **own)
    for number in range(9):
        write_line(site, f"line {number}", at=began + timedelta(minutes=number), **own)
    with site.core.store.database.write() as conn:
        mark = "UPDATE reservations SET missing_resources = 1 WHERE lease_id = ?"
        conn.exec_driver_sql(mark, (lease["id"],))
        conn.exec_driver_sql("UPDATE leases SET version = version + 1")
    text = member.get(page).text
    chain, rest = text.split('id="lease-flags"')
    assert "2027-01-31 12:34:56" in chain
    assert "misses what failed" in rest.partition("</section>")[0]
    assert "line 4" in text and "line 3" not in text
    assert f'The last 5 lines. <a href="/console/audit?subject={lease["id"]}">' in text
