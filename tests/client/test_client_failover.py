# SPDX-License-Identifier: Apache-2.0
"""`holdfast failover`, `failover set` and `host status`: what is sent and printed. The server is
scripted."""

import json
from typing import Any

import pytest
from test_client_fake import Fake, Run

from holdfast.client.client import Client
from holdfast.client.errors import NotFound

UUID = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"
LIST, SET = "GET /holdfast/v1/failover", f"PUT /holdfast/v1/failover/{UUID}"
HOSTS = "GET /holdfast/v1/hosts"


def capacity(name: str = "north", **more: Any) -> dict[str, Any]:
    return {
        "segment_id": UUID,
        "segment": name,
        "kept": 2,
        "members": 9,
        "enrolled": 8,
        "usable": 7,
        "free": 5,
        "least_free": 3,
        "least_free_at": "2027-02-01T08:00:00+00:00",
        "short": 0,
        "why": None,
        **more,
    }


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_report_is_a_row_for_each_segment(fake: Fake, holdfast: Run) -> None:
    short = capacity("south", least_free=1, short=1, why="2 are to be kept free and 1 is")
    fake.says(LIST, (200, {"failover": [capacity(), short]}))
    ran = holdfast("failover")
    assert (ran.code, ran.err) == (0, "")
    lines = squeezed(ran.out)
    assert lines[1] == (
        "| segment | kept | members | enrolled | usable | free | least_free | least_free_at |"
        " short | why |"
    )
    assert lines[3] == "| north | 2 | 9 | 8 | 7 | 5 | 3 | 2027-02-01 08:00:00 UTC | 0 | |"
    assert lines[4].endswith("| 1 | 2 are to be kept free and 1 is |")
    assert holdfast("failover", "--fail-on-short").code == 1
    (row, _) = json.loads(holdfast("failover", "-f", "json").out)
    assert (row["segment"], row["why"]) == ("north", "")
    fake.says(LIST, (200, {"failover": [capacity()]}))
    assert holdfast("failover", "--fail-on-short").code == 0


@pytest.mark.parametrize("ref", ["north", UUID])
def test_set_goes_by_name_or_id(fake: Fake, holdfast: Run, ref: str) -> None:
    fake.says(LIST, (200, {"failover": [capacity()]}))
    fake.says(SET, (200, {"failover": capacity(kept=3)}))
    ran = holdfast("failover", "set", ref, "3", "-f", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["kept"] == 3
    assert fake.asked[-1]["body"] == {"kept": 3}


def test_an_unknown_segment_is_an_error(fake: Fake, holdfast: Run) -> None:
    fake.says(LIST, (200, {"failover": [capacity()]}))
    ran = holdfast("failover", "set", "west", "3")
    assert ran.code == 1
    assert "there is no segment 'west': `holdfast failover` shows them" in ran.err
    with pytest.raises(NotFound):
        Client().failover.find("west")


@pytest.mark.parametrize(
    "argv",
    ["failover set north", "failover set north -1", "failover set north many", "failover north"],
)
def test_a_wrong_option_ends_with_2_and_sends_nothing(fake: Fake, holdfast: Run, argv: str) -> None:
    assert holdfast(*argv.split()).code == 2
    assert fake.asked == []


def test_how_hosts_stand_is_a_table_with_the_reason(fake: Fake, holdfast: Run) -> None:
    host = {
        "id": 7,
        "uuid": UUID,
        "name": "cmp-7",
        "zone": "az-1",
        "rack": "rack-a",
        "state": "down",
        "since": "2027-02-01T08:00:00.123456+00:00",
        "why": "nova:service says down: forced down",
        "enrolled": True,
        "reservable": False,
        "segment": "north",
    }
    fake.says(HOSTS, (200, {"hosts": [host]}))
    ran = holdfast("host", "status", "--state", "down")
    assert (ran.code, ran.err) == (0, "")
    lines = squeezed(ran.out)
    assert lines[1] == "| name | state | since | why | enrolled | reservable | segment |"
    assert lines[3] == (
        "| cmp-7 | down | 2027-02-01 08:00:00 UTC | nova:service says down: forced down"
        " | True | False | north |"
    )
    assert fake.asked[-1]["query"] == "state=down"
    assert holdfast("host", "status", "--state", "tired").code == 2
