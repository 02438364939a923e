# SPDX-License-Identifier: Apache-2.0
"""`holdfast lease …`: what is sent, printed and returned. The server is scripted."""

import json
from typing import Any
from urllib.parse import parse_qsl

import pytest
from test_client_fake import LEASES, Fake, Run

from holdfast.client import dates
from holdfast.client.client import Client
from holdfast.client.errors import Conflict

UUID = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"


def lease(status: str = "PENDING", **more: Any) -> dict[str, Any]:
    return {
        "id": UUID,
        "name": "training",
        "status": status,
        "degraded": False,
        "start_date": "2027-01-31T12:00:00.000000",
        "end_date": "2027-01-31T20:00:00.000000",
        "reservations": [{"id": "r1", "resource_type": "physical:host", "min": 1, "max": 2}],
        "events": [],
        **more,
    }


def test_lease_create_asks_for_one_host_for_a_day_by_default(fake: Fake, holdfast: Run) -> None:
    fake.says(f"POST {LEASES}", (201, {"lease": lease()}))
    ran = holdfast("lease", "create", "training")
    assert ran.code == 0, ran.err
    assert UUID in ran.out
    assert fake.asked[0]["body"] == {
        "name": "training",
        "start_date": "now",
        "end_date": "2027-02-01 12:00:07",
        "before_end_date": None,
        "events": [],
        "reservations": [
            {
                "resource_type": "physical:host",
                "min": 1,
                "max": 1,
                "hypervisor_properties": "",
                "resource_properties": "",
            }
        ],
    }


def test_lease_show_says_why_a_lease_is_in_error(fake: Fake, holdfast: Run) -> None:
    fake.says(f"GET {LEASES}/{UUID}", (200, {"lease": lease("ERROR")}))
    line = {"id": 1, "sentence": "lease_start failed: the cloud refused"}
    fake.says("GET /holdfast/v1/audit", (200, {"audit": [line]}))
    ran = holdfast("lease", "show", UUID, "-f", "value", "-c", "why")
    assert ran.out == "lease_start failed: the cloud refused\n", ran.err


def test_lease_list_shows_further_columns_that_are_asked_for(fake: Fake, holdfast: Run) -> None:
    fake.says(f"GET {LEASES}", (200, {"leases": [lease(before_end_date="2027-01-31T19:00:00.0")]}))
    ran = holdfast("lease", "list", "-c", "name", "-c", "before_end_date", "-f", "value")
    assert ran.out.split() == ["training", "2027-01-31T19:00:00.0"], ran.err


def test_lease_create_sends_every_option(fake: Fake, holdfast: Run) -> None:
    fake.says(f"POST {LEASES}", (201, {"lease": lease()}))
    asked = "lease create night --start 2027-02-01T09:00+01:00 --end +2h --min 2 --max 4"
    more = "--before-end-date +90m --before-end snapshot --where vcpus>=8 --where"
    ran = holdfast(*asked.split(), *more.split(), "rack in a,b")
    assert ran.code == 0, ran.err
    body = fake.asked[0]["body"]
    dates = (body["start_date"], body["end_date"], body["before_end_date"])
    assert dates == ("2027-02-01 08:00", "2027-02-01 10:00", "2027-02-01 09:30")
    (reservation,) = body["reservations"]
    assert (reservation["min"], reservation["max"]) == (2, 4)
    assert reservation["before_end"] == "snapshot"
    assert json.loads(reservation["resource_properties"]) == [
        "and",
        [">=", "$vcpus", "8"],
        ["in", "$rack", "a", "b"],
    ]


@pytest.mark.parametrize(("status", "code"), [("ACTIVE", 0), ("ERROR", 1)])
def test_lease_create_waits_and_prints_each_state(
    fake: Fake, holdfast: Run, status: str, code: int
) -> None:
    fake.says(f"POST {LEASES}", (201, {"lease": lease()}))
    fake.says(
        f"GET {LEASES}/{UUID}",
        (200, {"lease": lease()}),
        (200, {"lease": lease("STARTING")}),
        *[(503, {})] * 5,
        (200, {"lease": lease(status)}),
    )
    ran = holdfast("lease", "create", "training", "--wait", "-f", "json")
    assert ran.code == code
    assert json.loads(ran.out)["status"] == status
    said = [line.split(": ", 1)[1] for line in ran.err.splitlines()]
    assert said == ["PENDING, starts 2027-01-31T12:00:00Z", "STARTING", status]


def test_control_c_ends_a_wait_with_130_and_no_traceback(
    fake: Fake, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dates, "sleep", interrupt)
    fake.says(f"POST {LEASES}", (201, {"lease": lease()}))
    ran = holdfast("lease", "create", "training", "--wait")
    assert ran.code == 130
    assert "Traceback" not in ran.err


def test_lease_list_shows_a_table_or_json(fake: Fake, holdfast: Run) -> None:
    fake.says(f"GET {LEASES}", (200, {"leases": [lease(), lease(name="b")]}))
    table = holdfast("lease", "list", "--sort-column", "name").out
    assert table.index(" b ") < table.index(" training ")
    assert "2027-01-31 20:00:00 " in table
    (first, _) = json.loads(holdfast("lease", "list", "-f", "json").out)
    assert first["end_date"] == "2027-01-31T20:00:00.000000"
    assert first["hosts"] == "1-2"


def test_lease_create_reserves_other_things_than_hosts(fake: Fake, holdfast: Run) -> None:
    fake.says(f"POST {LEASES}", (201, {"lease": lease()}))
    slots = 'virtual:instance,vcpus=2,affinity=false,resource_properties=["==","$a",1]'
    ran = holdfast(
        "lease", "create", "web",
        "--reservation", slots,
        "--reservation", "flavor:instance,flavor_id=42,amount=1,affinity=None",
        "--reservation", 'virtual:floatingip,network_id=n,required_floatingips=["203.0.113.7"]',
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert fake.asked[0]["body"]["reservations"] == [
        {
            "resource_type": "virtual:instance",
            "vcpus": 2,
            "affinity": False,
            "resource_properties": '["==","$a",1]',
        },
        {"resource_type": "flavor:instance", "flavor_id": "42", "amount": 1, "affinity": "None"},
        {
            "resource_type": "virtual:floatingip",
            "network_id": "n",
            "required_floatingips": ["203.0.113.7"],
        },
    ]
    assert "dry_run" not in fake.asked[0]["body"]
    assert holdfast("lease", "create", "both", "--hosts", "2", "--reservation", "a:b").code == 0
    types = [each["resource_type"] for each in fake.asked[1]["body"]["reservations"]]
    assert types == ["physical:host", "a:b"]
    whole = '{"resource_type": "physical:host", "min": 1, "max": 1}'
    assert holdfast("lease", "create", "raw", "--reservation", whole).code == 0
    assert fake.asked[2]["body"]["reservations"] == [json.loads(whole)]


def test_lease_create_shows_the_lease_of_a_dry_run(fake: Fake, holdfast: Run) -> None:
    got = {
        "resource_type": "virtual:instance",
        "status": "pending",
        **{"vcpus": 2, "memory_mb": 4096, "disk_gb": 20, "amount": 3},
        "hosts": [
            {"id": "1", "name": "cmp-1", "slots": 2},
            {"id": "2", "name": "cmp-2", "slots": 1},
        ],
    }
    fake.says(f"POST {LEASES}", (200, {"lease": lease(reservations=[got]), "dry_run": True}))
    ran = holdfast("lease", "create", "training", "--dry-run")
    assert ran.code == 0, ran.err
    assert fake.asked[0]["body"]["dry_run"] is True
    said = (
        "virtual:instance, pending, 3 of 2 vCPU 4096 MB 20 GB, on cmp-1 (2 slots), cmp-2 (1 slot)"
    )
    assert said in ran.out


def test_a_refusal_keeps_the_details_for_programs(fake: Fake) -> None:
    details = {"earliest": {"start_date": "s", "end_date": "e"}, "obstacles": [], "conditions": []}
    said = {"error_code": 409, "error_message": "no", "error_name": 409, "details": details}
    fake.says(f"POST {LEASES}", (409, said))
    with pytest.raises(Conflict) as refused:
        Client(fake.url).leases.create("x", end_date="2027-01-31 18:00")
    assert refused.value.details == details


def test_lease_list_sends_the_filters(fake: Fake, holdfast: Run) -> None:
    fake.says(f"GET {LEASES}", (200, {"leases": [lease()], "leases_links": [{"rel": "next"}]}))
    options = "--status ACTIVE --end-before +1d --sort end_date:desc --limit 5 --project p1"
    assert holdfast("lease", "list", *options.split()).code == 0
    assert dict(parse_qsl(fake.asked[0]["query"])) == {
        "status": "ACTIVE",
        "end_before": "2027-02-01 12:00:07",
        "sort": "end_date:desc",
        "limit": "5",
        "project_id": "p1",
    }
    assert len(fake.asked) == 1
    assert fake.asked[0]["headers"]["OpenStack-API-Version"] == "reservation 1.1"


def test_a_list_without_a_limit_follows_the_pages_to_the_end(fake: Fake) -> None:
    more = [{"rel": "next", "href": "http://elsewhere.example/unreachable"}]
    fake.says(
        f"GET {LEASES}",
        (200, {"leases": [{"id": "a"}, {"id": "b"}], "leases_links": more}),
        (200, {"leases": [{"id": "c"}]}),
    )
    found = Client(fake.url).leases.list(status="ACTIVE")
    assert [each["id"] for each in found] == ["a", "b", "c"]
    assert [each["query"] for each in fake.asked] == ["status=ACTIVE", "status=ACTIVE&marker=b"]


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ("--extend 2h", {"end_date": "2027-01-31 22:00"}),
        ("--shorten 30m", {"end_date": "2027-01-31 19:30"}),
        ("--end now --name new", {"end_date": "now", "name": "new"}),
        ("--end +1h", {"end_date": "2027-01-31 13:00:07"}),
        ("--reservation max=3", {"reservations": [{"id": "r1", "max": 3}]}),
        (
            "--reservation r1,min=2,max=3 --dry-run",
            {"reservations": [{"id": "r1", "min": 2, "max": 3}], "dry_run": True},
        ),
        (
            "--start 2027-02-01T00:00 --end +1h",
            {"start_date": "2027-02-01 00:00", "end_date": "2027-02-01 01:00"},
        ),
    ],
)
def test_lease_set_sends_only_changed_fields(
    fake: Fake, holdfast: Run, options: str, sent: dict[str, str]
) -> None:
    fake.says(f"GET {LEASES}", (200, {"leases": [lease()]}))
    fake.says(f"PUT {LEASES}/{UUID}", (200, {"lease": lease()}))
    ran = holdfast("lease", "set", "training", *options.split())
    assert ran.code == 0, ran.err
    assert fake.asked[-1]["body"] == sent


def test_lease_delete_continues_after_a_failure(fake: Fake, holdfast: Run) -> None:
    fake.says(f"GET {LEASES}", (200, {"leases": [lease()]}))
    fake.says(f"DELETE {LEASES}/{UUID}", (204, None))
    ran = holdfast("lease", "delete", "nope", "training")
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "nope: there is no lease 'nope' that you may see: `holdfast lease list` shows them",
        f"lease training ({UUID}) deleted",
    ]


def test_lease_delete_says_when_the_lease_is_still_being_deleted(fake: Fake, holdfast: Run) -> None:
    fake.says(
        f"GET {LEASES}/{UUID}", (200, {"lease": lease()}), (200, {"lease": lease("DELETING")})
    )
    fake.says(f"DELETE {LEASES}/{UUID}", (204, None))
    ran = holdfast("lease", "delete", UUID)
    assert ran.code == 0
    assert ran.err == (
        f"lease training ({UUID}) is being deleted; `holdfast operation list` shows how far\n"
    )


def test_lease_show_fits_the_screen_and_json_keeps_everything(fake: Fake, holdfast: Run) -> None:
    stamp = "2027-01-31T12:00:00.000000"
    reservation = {
        **{"id": UUID, "lease_id": UUID, "resource_id": UUID, "status": "active"},
        **{"resource_type": "physical:host", "min": 1, "max": 2, "created_at": stamp},
        **{"missing_resources": False, "resources_changed": True, "hypervisor_properties": ""},
        "resource_properties": '[">=", "$vcpus", "8"]',
    }
    event = {"id": UUID, "lease_id": UUID, "event_type": "start_lease", "status": "DONE"}
    full = lease(reservations=[reservation], events=[{**event, "time": stamp}])
    fake.says(f"GET {LEASES}/{UUID}", (200, {"lease": full}))
    table = holdfast("lease", "show", UUID).out
    where = 'where [">=", "$vcpus", "8"]'
    assert f"| physical:host, active, 1-2 hosts, {where}, resources changed |" in table
    assert "| start_lease 2027-01-31 12:00:00 UTC DONE " in table
    assert max(map(len, table.splitlines())) < 110
    assert json.loads(holdfast("lease", "show", UUID, "-f", "json").out) == full
