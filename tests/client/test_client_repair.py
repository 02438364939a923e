# SPDX-License-Identifier: Apache-2.0
"""`holdfast repair …`, `what-if` and `lease ack`: what is sent, printed and returned. The server is
scripted."""

import json
from typing import Any

import pytest
from test_client_fake import LEASES, Fake, Run

from holdfast.client.client import Client
from holdfast.client.errors import NotFound

UUID = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"
PLAN, RUN = "POST /holdfast/v1/repair/plan", "POST /holdfast/v1/repair"
WHAT_IF = "POST /holdfast/v1/what-if"
ACK = f"POST /holdfast/v1/leases/{UUID}/acknowledge"


def move(name: str, **more: Any) -> dict[str, Any]:
    return {
        "lease_id": UUID,
        "lease_name": name,
        "project_id": "blue",
        "reservation_id": f"r-{name}",
        "resource_type": "physical:host",
        "active": False,
        "start_date": "2027-02-01T08:00:00+00:00",
        "end_date": "2027-02-01T16:00:00+00:00",
        "leaves": ["cmp-1"],
        "joins": ["cmp-7"],
        "short": None,
        **more,
    }


NIGHT = move("night", active=True, leaves=["cmp-1", "cmp-2"], joins=["cmp-7", "cmp-8"])
SHORT = move("web", leaves=[], joins=[], short="2 of 3 slots: no room")


def report(*moves: dict[str, Any], failed: int = 1, held: str | None = None) -> Any:
    short = sum(bool(each["short"]) for each in moves)
    counts = {"reservations": len(moves), "moved": len(moves) - short, "short": short}
    return {
        "repair": {
            "failed": [f"cmp-{number}" for number in range(1, failed + 1)],
            "held": held,
            "counts": {**counts, "usable": 9, "free": 4},
            "moves": list(moves),
        }
    }


PAUSED = "recovery is paused by ann: storm"
STAYS = {"host": "cmp-1", "guests": 2, "segment": "north", "why": PAUSED, "how": ""}
LEFT = {
    "name": "rack-a",
    **{"up": 4, "still_up": 3, "usable": 4, "still_usable": 3, "free": 2, "still_free": 2},
    "kept": 3,
    "is_short": True,
}


def what_if(*moves: dict[str, Any], failed: int = 1, held: str | None = None) -> Any:
    plan = report(*moves, failed=failed, held=held)["repair"]
    servers = {**STAYS, "sentence": f"2 servers would stay down: {PAUSED}"}
    counts = {"move": 0, "stay": 2, "uncounted": 0, "evacuate_all": True, "ha_key": "HA_Enabled"}
    found = {
        "hosts": plan["failed"],
        "left_out": [],
        "already": [],
        "repair": plan,
        "recovery": {**counts, "hosts": [servers]},
        "racks": [LEFT],
        "segments": [{**LEFT, "name": "north"}],
    }
    return {"what_if": found}


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_plan_is_a_sentence_a_table_and_the_capacity_left(fake: Fake, holdfast: Run) -> None:
    fake.says(PLAN, (200, report(NIGHT, move("day"), SHORT, failed=2)))
    ran = holdfast("repair", "plan")
    assert (ran.code, ran.err) == (0, "")
    lines = squeezed(ran.out)
    assert lines[0] == (
        "2 hosts failed (cmp-1, cmp-2); 3 reservations hit: 2 move, 1 misses something"
    )
    assert lines[2] == "| lease | reservation | state | from | to | missing |"
    assert lines[4:8] == [
        "| night | r-night | active | cmp-1 | cmp-7 | |",
        "| | | | cmp-2 | cmp-8 | |",
        "| day | r-day | pending | cmp-1 | cmp-7 | |",
        "| web | r-web | pending | | | 2 of 3 slots: no room |",
    ]
    assert lines[-1] == "capacity left: 9 hosts usable, 4 of them free now"
    assert fake.asked[0]["body"] == {"hosts": [], "racks": []}


def test_a_long_sentence_is_folded_for_people_only(fake: Fake, holdfast: Run) -> None:
    why = "2 of the 2 hosts it lost cannot be replaced: " + "never room " * 12
    fake.says(PLAN, (200, report(move("web", short=why.strip()))))
    table = holdfast("repair", "plan").out
    assert max(map(len, table.splitlines())) < 120
    assert table.count(" room") == 12
    (row,) = json.loads(holdfast("repair", "plan", "-f", "json").out)
    assert row["missing"] == why.strip()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (report(failed=0), "no host has failed, there is nothing to repair"),
        (report(failed=1), "1 host failed (cmp-1); no reservation is hit"),
        (report(move("a")), "1 host failed (cmp-1); 1 reservation hit: 1 moves"),
        (report(SHORT), "1 host failed (cmp-1); 1 reservation hit: 1 misses something"),
        (
            report(SHORT, SHORT, failed=6),
            "6 hosts failed (cmp-1, cmp-2, cmp-3, cmp-4 and 2 more); 2 reservations hit:"
            " 2 miss something",
        ),
        (report(SHORT, failed=0), "0 hosts failed; 1 reservation hit: 1 misses something"),
    ],
)
def test_the_first_sentence_of_a_plan_sums_up_the_repair(
    fake: Fake, holdfast: Run, answer: Any, said: str
) -> None:
    fake.says(PLAN, (200, answer))
    assert holdfast("repair", "plan").out.splitlines()[0] == said


def test_json_is_alone_on_stdout_and_long_shows_all(fake: Fake, holdfast: Run) -> None:
    fake.says(PLAN, (200, report(NIGHT, held="too many")))
    ran = holdfast("repair", "plan", "-f", "json")
    (row,) = json.loads(ran.out)
    assert row == {
        "lease": "night",
        "reservation": "r-night",
        "state": "active",
        "from": ["cmp-1", "cmp-2"],
        "to": ["cmp-7", "cmp-8"],
        "missing": "",
    }
    said = ran.err.splitlines()
    assert said[0].startswith("1 host failed")
    assert said[1].startswith("held: too many")
    assert said[2].startswith("capacity left")
    ran = holdfast("repair", "plan", "--long", "-f", "json", "--quiet")
    assert ran.err == ""
    (row,) = json.loads(ran.out)
    assert (row["lease_id"], row["project_id"]) == (UUID, "blue")
    assert row["resource_type"] == "physical:host"
    assert row["start_date"] == "2027-02-01T08:00:00+00:00"


@pytest.mark.parametrize("command", ["repair plan", "what-if --fail cmp-1"])
def test_a_script_can_ask_for_1_where_something_would_be_missing(
    fake: Fake, holdfast: Run, command: str
) -> None:
    fake.says(PLAN, (200, report(SHORT)))
    fake.says(WHAT_IF, (200, what_if(SHORT)))
    assert holdfast(*command.split()).code == 0
    assert holdfast(*command.split(), "--fail-on-short").code == 1
    fake.says(PLAN, (200, report(NIGHT)))
    fake.says(WHAT_IF, (200, what_if(NIGHT)))
    assert holdfast(*command.split(), "--fail-on-short").code == 0


@pytest.mark.parametrize(
    ("argv", "hosts", "racks"),
    [
        ("--fail cmp-1", ["cmp-1"], []),
        ("--fail cmp-1 cmp-2 --fail cmp-3", ["cmp-1", "cmp-2", "cmp-3"], []),
        ("--fail-rack a --fail-rack b c", [], ["a", "b", "c"]),
        ("--fail-rack a --fail cmp-9", ["cmp-9"], ["a"]),
    ],
)
def test_what_if_sends_the_hosts_and_racks(
    fake: Fake, holdfast: Run, argv: str, hosts: list[str], racks: list[str]
) -> None:
    fake.says(WHAT_IF, (200, what_if(NIGHT)))
    ran = holdfast("what-if", *argv.split())
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == "1 host fails (cmp-1); 1 reservation hit: 1 moves"
    assert lines[-5:] == [
        "servers: 0 would move, 2 would stay down",
        f"  cmp-1: 2 servers would stay down: {PAUSED}",
        "capacity left: 9 hosts usable, 4 of them free now",
        "  rack-a: hosts up 4 -> 3, to reserve 4 -> 3, free 2",
        "  segment north keeps 3 hosts free; 2 would be",
    ]
    assert fake.asked[-1]["body"] == {"hosts": hosts, "racks": racks}


def test_what_if_reports_a_hold_and_names_an_unknown_host(fake: Fake, holdfast: Run) -> None:
    fake.says(WHAT_IF, (200, what_if(NIGHT, failed=3, held="3 of 4 hosts in a are down")))
    lines = holdfast("what-if", "--fail-rack", "a").out.splitlines()
    assert lines[0].startswith("3 hosts fail (")
    assert lines[1] == "it would be held until approved: 3 of 4 hosts in a are down"
    unknown = {"errors": [{"detail": "no enrolled host is in rack 'z'; racks known: a"}]}
    fake.says(WHAT_IF, (404, unknown))
    ran = holdfast("what-if", "--fail-rack", "z")
    assert (ran.code, ran.out) == (1, "")
    assert "rack 'z'; racks known: a" in ran.err


def test_repair_run_prints_the_result(fake: Fake, holdfast: Run) -> None:
    fake.says(RUN, (202, report(NIGHT, SHORT)))
    ran = holdfast("repair", "run")
    assert (ran.code, ran.err) == (0, "")
    assert fake.asked[-1]["body"] == {"approve": False, "reason": ""}
    assert squeezed(ran.out)[0].endswith("2 reservations hit: 1 moves, 1 misses something")
    assert holdfast("repair", "run", "--approve", "--reason", "rack-a burns").code == 0
    assert fake.asked[-1]["body"] == {"approve": True, "reason": "rack-a burns"}
    words = "repair run --approve --reason burns --domain rack-a"
    assert holdfast(*words.split()).code == 0
    assert fake.asked[-1]["body"] == {"approve": True, "reason": "burns", "domain": "rack-a"}


def test_a_run_that_is_held_ends_with_1_and_says_how_to_approve(fake: Fake, holdfast: Run) -> None:
    fake.says(RUN, (202, report(NIGHT, held="5 of 8 hosts in rack-a are down")))
    ran = holdfast("repair", "run", "--quiet")
    assert ran.code == 1
    assert ran.err == (
        "held: 5 of 8 hosts in rack-a are down; if it is so:"
        " `holdfast repair run --approve --reason TEXT`\n"
    )


@pytest.mark.parametrize(
    "argv",
    [
        "what-if",
        "what-if --fail",
        "what-if cmp-1",
        "repair run --approve",
        "repair run --reason because",
        "repair run --domain rack-a",
        "repair run --fail-on-short",
        "lease ack",
    ],
)
def test_a_wrong_option_ends_with_2_and_sends_nothing(fake: Fake, holdfast: Run, argv: str) -> None:
    assert holdfast(*argv.split()).code == 2
    assert fake.asked == []


def test_lease_ack_goes_by_name_and_goes_on_after_a_stranger(fake: Fake, holdfast: Run) -> None:
    lease = {"id": UUID, "name": "night", "reservations": [{"missing_resources": False}]}
    fake.says(f"GET {LEASES}", (200, {"leases": [lease]}))
    fake.says(ACK, (204, None))
    ran = holdfast("lease", "ack", "day", "night")
    assert ran.code == 1
    said = ran.err.splitlines()
    assert said[0].startswith("day: there is no lease 'day'")
    assert said[1] == f"lease night ({UUID}) acknowledged"
    assert fake.times(ACK) == 1
    lease["reservations"].append({"missing_resources": True})  # type: ignore[attr-defined]
    ran = holdfast("lease", "ack", "night")
    assert (ran.code, ran.err) == (
        0,
        f"lease night ({UUID}) acknowledged, but it still misses something\n",
    )


def test_the_library_plans_runs_and_acknowledges(fake: Fake) -> None:
    fake.says(PLAN, (200, report(NIGHT)))
    fake.says(RUN, (202, report()))
    fake.says(ACK, (204, None))
    client = Client()
    assert client.repair.plan(hosts=("cmp-1",), racks={"a"})["moves"] == [NIGHT]
    assert fake.asked[-1]["body"] == {"hosts": ["cmp-1"], "racks": ["a"]}
    assert client.repair.run(approve=True, reason="so")["counts"]["free"] == 4
    client.leases.acknowledge(UUID)
    assert fake.asked[-1]["what"] == ACK
    with pytest.raises(NotFound):
        client.leases.acknowledge("another")
    client.close()
