# SPDX-License-Identifier: Apache-2.0
"""`holdfast incident …` and `maintenance …`: what is sent, printed and returned. The server is
scripted."""

import json
import sys
from datetime import timedelta
from typing import Any

import pytest
from test_client_fake import Fake, Run

from holdfast.cli.incident import screen
from holdfast.client import dates
from holdfast.client.client import Client
from holdfast.client.errors import NotFound

UUID = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"
OTHER = "4f2c9999-6d0a-4f3c-9a51-0b6f7d1f2a3b"
PATH = "/holdfast/v1/incidents"
LIST, SHOW, PAUSES = f"GET {PATH}", f"GET {PATH}/{UUID}", "GET /holdfast/v1/pauses"
WINDOWS = "/holdfast/v1/maintenance-windows"
NOON = "2027-01-31T12:00:00+00:00"
NONE = {"pending": 0, "ongoing": 0, "succeeded": 0, "failed": 0, "ignored": 0}
PAUSE = {
    "id": "p1",
    "segment_id": None,
    "segment": None,
    "author": "ann",
    "reason": "a storm",
    "created_at": NOON,
    "expires_at": "2027-01-31T13:00:00+00:00",
}


@pytest.fixture(autouse=True)
def unpaused(fake: Fake) -> None:
    fake.says(PAUSES, (200, {"pauses": []}))


def listed(**more: Any) -> dict[str, Any]:
    return {
        "id": UUID,
        "kind": "host",
        "subject": "host:cmp-7",
        "host": "cmp-7",
        "server": None,
        "segment_id": "s1",
        "segment": "north",
        "cause": "cmp-7 is reported to have stopped",
        "status": "running",
        "sentence": "1 of 2 servers moved",
        "opened_at": NOON,
        "closed_at": None,
        "moves": {**NONE, "succeeded": 1, "ongoing": 1},
        **more,
    }


def step(name: str, status: str = "done", sentence: str = "") -> dict[str, Any]:
    at = "2027-01-31T12:00:03+00:00" if status == "done" else None
    return {"name": name, "status": status, "finished_at": at, "sentence": sentence}


def server(number: int, status: str, to: str | None = "cmp-3", **more: Any) -> dict[str, Any]:
    return {
        "server": f"s{number}",
        "name": f"web-{number}",
        "from": "cmp-7",
        "to": to,
        "status": status,
        "attempts": 1,
        "message": "",
        "reservation": None,
        "started_at": NOON,
        "ended_at": None,
        **more,
    }


def case(**more: Any) -> dict[str, Any]:
    verdict = {"guard": "paused", "passed": True, "sentence": "recovery is not paused", "at": NOON}
    return {
        **listed(),
        "evidence": "cmp-7 was fenced: its power reads off",
        "work": {
            "status": "running",
            "sentence": "1 of 2 servers moved",
            "attempts": 0,
            "next_try_at": NOON,
            "owner": "m1",
        },
        "verdicts": [verdict],
        "steps": [step("guards", sentence="all say yes"), step("move", "under way", "1 of 2")],
        "servers": [
            server(1, "succeeded", message="runs on cmp-3"),
            server(2, "ongoing", "cmp-4", attempts=2),
        ],
        "reports": [
            {
                "id": "n1",
                "type": "COMPUTE_HOST",
                "payload": {"event": "STOPPED", "host_status": "NORMAL"},
                "status": "running",
                "message": None,
                "generated_at": NOON,
                "received_at": "2027-01-31T12:00:01+00:00",
            }
        ],
        "timeline": [
            {
                "at": NOON,
                "actor": "holdfast",
                "kind": "opened",
                "data": {"cause": "cmp-7 died"},
                "sentence": "opened: cmp-7 died",
            }
        ],
        "details": {"host": "cmp-7"},
        **more,
    }


def over(status: str = "recovered", **more: Any) -> dict[str, Any]:
    done = [step("guards", sentence="all say yes"), step("move", sentence="2 of 2 servers moved")]
    servers = [server(1, "succeeded", message="runs on cmp-3"), server(2, "succeeded", "cmp-4")]
    base = {"status": status, "sentence": "2 of 2 servers moved", "closed_at": NOON}
    return case(**{**base, "steps": done, "servers": servers, **more})


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_list_shows_the_state_of_each_incident(fake: Fake, holdfast: Run) -> None:
    fake.says(LIST, (200, {"incidents": [listed()]}))
    ran = holdfast("incident", "list")
    assert (ran.code, ran.err) == (0, "")
    assert squeezed(ran.out)[3] == (
        f"| {UUID} | host | cmp-7 | running | 2027-01-31 12:00:00 UTC |"
        " | 1 of 2 moved, 1 on the way | 1 of 2 servers moved |"
    )


def test_incident_list_sends_the_filters(fake: Fake, holdfast: Run) -> None:
    fake.says(LIST, (200, {"incidents": []}))
    wanted = ("--status", "failed", "--kind", "guest", "--host", "cmp-7", "--segment", "north")
    ran = holdfast("incident", "list", *wanted, "--open", "--since", "2027-01-31", "--limit", "5")
    assert ran.code == 0
    assert set(fake.asked[0]["query"].split("&")) == {
        "open=true",
        "status=failed",
        "kind=guest",
        "host=cmp-7",
        "segment=north",
        "since=2027-01-31T00%3A00%3A00%2B00%3A00",
        "limit=5",
    }
    holdfast("incident", "list", "--closed")
    assert fake.asked[2]["query"] == "open=false"


def test_a_pause_is_shown_above_the_table_and_never_in_json(fake: Fake, holdfast: Run) -> None:
    fake.says(LIST, (200, {"incidents": [listed()]}))
    north = {**PAUSE, "segment": "north", "segment_id": "s1", "expires_at": None}
    fake.says(PAUSES, (200, {"pauses": [PAUSE, north]}))
    lines = holdfast("incident", "list").out.splitlines()
    assert lines[0] == (
        "RECOVERY IS PAUSED everywhere, by ann, until 2027-01-31 13:00:00 UTC: a storm"
        " (end it: holdfast recovery resume)"
    )
    assert lines[1] == (
        "RECOVERY IS PAUSED in segment north, by ann, until it is resumed: a storm"
        " (end it: holdfast recovery resume --segment north)"
    )
    ran = holdfast("incident", "list", "-f", "json")
    (row,) = json.loads(ran.out)
    assert row["sentence"] == "1 of 2 servers moved"
    assert ran.err.startswith("RECOVERY IS PAUSED everywhere")


def test_incident_show_has_a_line_for_each_step_and_server(fake: Fake, holdfast: Run) -> None:
    fake.says(SHOW, (200, {"incident": case()}))
    out = holdfast("incident", "show", UUID).out
    for line in (
        "yes paused: recovery is not paused",
        "done 12:00:03 guards: all say yes",
        "under way move: 1 of 2",
        "web-1 cmp-7 -> cmp-3 succeeded: runs on cmp-3",
        "web-2 cmp-7 -> cmp-4 ongoing, 2 attempts",
        "12:00:01 COMPUTE_HOST event=STOPPED, host_status=NORMAL (running)",
        "12:00:00 holdfast: opened: cmp-7 died",
        "1 of 2 moved, 1 on the way",
    ):
        assert line in out
    found = json.loads(holdfast("incident", "show", UUID, "-f", "json").out)
    assert found == case()
    fake.says(SHOW, (200, {"incident": over()}))
    assert "| work |" not in squeezed(holdfast("incident", "show", UUID).out)
    assert json.loads(holdfast("incident", "show", UUID, "-f", "json").out) == over()


def test_a_unique_prefix_of_an_incident_id_is_enough(fake: Fake, holdfast: Run) -> None:
    fake.says(LIST, (200, {"incidents": [listed(), listed(id=OTHER)]}))
    fake.says(SHOW, (200, {"incident": case()}))
    assert holdfast("incident", "show", "4F2C6B").code == 0
    ran = holdfast("incident", "show", "4f2c")
    assert ran.code == 1
    assert UUID in ran.err
    assert OTHER in ran.err
    ran = holdfast("incident", "show", "beef")
    assert (ran.code, "`holdfast incident list` shows them" in ran.err) == (1, True)


def test_the_explanation_is_printed_as_the_server_sends_it(fake: Fake, holdfast: Run) -> None:
    fake.says(SHOW, (200, {"incident": case()}))
    story = {"incident_id": UUID, "title": "t", "parts": [], "text": "Incident\n\nWhat was seen"}
    fake.says(f"{SHOW}/explanation", (200, {"explanation": story}))
    assert holdfast("incident", "explain", UUID).out == "Incident\n\nWhat was seen\n"


def test_watching_without_a_terminal_prints_a_line_for_each_thing_that_is_new(
    fake: Fake, holdfast: Run
) -> None:
    looks = [(200, {"incident": one}) for one in (case(), case(), over())]
    fake.says(SHOW, looks[0], looks[1], (503, {"errors": []}), (0, None), looks[2])
    ran = holdfast("incident", "watch", UUID)
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "12:00:03 guards: all say yes",
        "web-1 cmp-7 -> cmp-3 succeeded: runs on cmp-3",
        "running: 1 of 2 servers moved",
        "12:00:03 move: 2 of 2 servers moved",
        "web-2 cmp-7 -> cmp-4 succeeded",
        "recovered: 2 of 2 servers moved",
    ]


@pytest.mark.parametrize(
    ("status", "code"),
    [("recovered", 0), ("ignored", 0), ("explained", 0), ("failed", 1), ("aborted", 1)],
)
def test_watching_ends_with_the_final_state_and_exit_code(
    fake: Fake, holdfast: Run, status: str, code: int
) -> None:
    fake.says(SHOW, (200, {"incident": case()}), (200, {"incident": over(status)}))
    assert holdfast("incident", "watch", UUID).code == code
    fake.says(SHOW, (200, {"incident": case()}), (200, {"incident": over(status)}))
    ran = holdfast("incident", "show", UUID, "--watch")
    assert ran.code == code
    assert f"| status | {status} |" in squeezed(ran.out)


def test_json_is_alone_on_stdout_also_when_watching(fake: Fake, holdfast: Run) -> None:
    fake.says(SHOW, (200, {"incident": case()}), (200, {"incident": over()}))
    ran = holdfast("incident", "show", UUID, "--watch", "-f", "json")
    assert json.loads(ran.out)["status"] == "recovered"
    assert ran.err.splitlines()[-1] == "recovered: 2 of 2 servers moved"


def test_on_a_terminal_the_picture_is_drawn_over(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, holdfast: Run
) -> None:
    fake.says(SHOW, (200, {"incident": case()}), (200, {"incident": over()}))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out = holdfast("incident", "watch", UUID).out
    first, _, second = out.partition("\x1b[")
    assert first.splitlines()[1] == "RUNNING: 1 of 2 servers moved"
    assert "  > " + " " * 8 + " move" in first
    drawn = len(first.splitlines())
    assert second.startswith(f"{drawn}F\x1b[J")
    assert "RECOVERED: 2 of 2 servers moved" in second


def test_the_picture_fits_the_terminal_and_trouble_comes_first() -> None:
    servers = [server(number, "succeeded") for number in range(50)]
    many = case(servers=[*servers, server(99, "failed", None, message="no room")])
    lines = screen(many, 40, 12)
    assert len(lines) == 12
    assert max(map(len, lines)) <= 40
    assert any("web-99 cmp-7 failed: no room" in line for line in lines)
    assert lines[-1].startswith("… 45 more lines")


def test_watching_gives_up_on_a_server_that_stays_away(
    fake: Fake, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(dates, "sleep", slept.append)
    fake.says(SHOW, (200, {"incident": case()}), (503, {"errors": []}))
    assert holdfast("incident", "watch", UUID).code == 1
    assert 20 < sum(slept) < 120


@pytest.mark.parametrize(
    ("argv", "sent"),
    [
        ((), {"reason": "a storm", "duration_s": 3600}),
        (("--for", "2d"), {"reason": "a storm", "duration_s": 172800}),
        (
            ("--for", "forever", "--segment", "north"),
            {"reason": "a storm", "duration_s": None, "segment": "north"},
        ),
    ],
)
def test_a_pause_lasts_an_hour_by_default(
    fake: Fake, holdfast: Run, argv: tuple[str, ...], sent: dict[str, Any]
) -> None:
    fake.says("POST /holdfast/v1/pauses", (201, {"pause": PAUSE}))
    ran = holdfast("recovery", "pause", "--reason", "a storm", *argv)
    assert ran.code == 0
    assert fake.asked[0]["body"] == sent
    assert ran.err.startswith("RECOVERY IS PAUSED everywhere, by ann")


@pytest.mark.parametrize(
    "argv",
    [
        ("recovery", "pause"),
        ("recovery", "pause", "--reason", "so", "--for", "soon"),
        ("incident", "abort", UUID),
        ("incident", "confirm-off", UUID),
        ("recovery", "approve"),
        ("incident", "list", "--open", "--closed"),
        ("maintenance", "add", "--host", "cmp-7", "--reason", "so"),
        ("maintenance", "add", "--host", "cmp-7", "--for", "2h"),
        ("maintenance", "add", "--for", "2h", "--reason", "so"),
        (
            "maintenance",
            "add",
            "--host",
            "cmp-7",
            "--for",
            "1h",
            "--until",
            "+2h",
            "--reason",
            "so",
        ),
    ],
)
def test_a_wrong_option_sends_nothing(fake: Fake, holdfast: Run, argv: tuple[str, ...]) -> None:
    assert holdfast(*argv).code == 2
    assert fake.asked == []


def test_resume_names_the_remaining_pauses(fake: Fake, holdfast: Run) -> None:
    fake.says("DELETE /holdfast/v1/pauses", (204, None))
    fake.says(PAUSES, (200, {"pauses": [PAUSE]}))
    ran = holdfast("recovery", "resume", "--segment", "north")
    assert ran.code == 0
    assert fake.asked[0]["query"] == "segment=north"
    assert ran.err.splitlines()[0] == "recovery is no longer paused in segment north"
    assert ran.err.splitlines()[1].startswith("RECOVERY IS PAUSED everywhere")


def test_resume_where_nothing_is_paused_fails_with_the_servers_sentence(
    fake: Fake, holdfast: Run
) -> None:
    said = {"errors": [{"detail": "recovery is not paused everywhere", "code": "x"}]}
    fake.says("DELETE /holdfast/v1/pauses", (404, said))
    ran = holdfast("recovery", "resume")
    assert (ran.code, "not paused everywhere" in ran.err) == (1, True)


@pytest.mark.parametrize("order", ["retry", "abort", "confirm-off"])
def test_an_order_says_how_the_incident_stands_then(fake: Fake, holdfast: Run, order: str) -> None:
    fake.says(SHOW, (200, {"incident": case()}))
    answer = listed(status="aborted", sentence="aborted by ann: a drill")
    fake.says(f"POST {PATH}/{UUID}/{order}", (202, {"incident": answer}))
    ran = holdfast("incident", order, UUID, "--reason", "a drill")
    assert ran.code == 0
    assert fake.asked[-1]["body"] == {"reason": "a drill"}
    assert ran.err == f"incident {UUID} is aborted: aborted by ann: a drill\n"


def test_confirm_off_overrides_the_fence_only_with_the_option(fake: Fake, holdfast: Run) -> None:
    fake.says(SHOW, (200, {"incident": case()}))
    fake.says(f"POST {PATH}/{UUID}/confirm-off", (202, {"incident": listed(status="running")}))
    ran = holdfast("incident", "confirm-off", UUID, "--despite-power-on", "--reason", "so")
    assert ran.code == 0
    assert fake.asked[-1]["body"] == {"reason": "so", "despite_power_on": True}


def test_an_action_continues_after_a_refused_incident(fake: Fake, holdfast: Run) -> None:
    fake.says(SHOW, (200, {"incident": case()}))
    fake.says(f"GET {PATH}/{OTHER}", (200, {"incident": case(id=OTHER)}))
    refused = {"errors": [{"detail": f"incident {OTHER} is open", "code": "x"}]}
    fake.says(f"POST {PATH}/{OTHER}/retry", (409, refused))
    fake.says(f"POST {PATH}/{UUID}/retry", (202, {"incident": listed(status="open")}))
    ran = holdfast("incident", "retry", OTHER, UUID)
    assert ran.code == 1
    assert fake.asked[-1]["body"] == {}
    assert f"{OTHER}: incident {OTHER} is open" in ran.err
    assert f"incident {UUID} is open" in ran.err


def test_an_approval_says_where_and_until_when(fake: Fake, holdfast: Run) -> None:
    made = {"domain": "rack-b", "author": "ann", "reason": "so", "expires_at": NOON, "held": 3}
    fake.says("POST /holdfast/v1/approvals", (202, {"approval": made}))
    ran = holdfast("recovery", "approve", "--domain", "rack-b", "--reason", "so")
    assert fake.asked[0]["body"] == {"reason": "so", "domain": "rack-b"}
    assert ran.err == (
        "approved in rack-b until 2027-01-31 12:00:00 UTC; 3 held incidents are asked again\n"
    )
    everywhere = {**made, "domain": None, "held": 1}
    fake.says("POST /holdfast/v1/approvals", (202, {"approval": everywhere}))
    ran = holdfast("recovery", "approve", "--reason", "so")
    assert fake.asked[1]["body"] == {"reason": "so"}
    assert "everywhere" in ran.err
    assert "1 held incident is asked again" in ran.err


WINDOW = {
    "id": UUID,
    "matcher": {"host": "cmp-7", "segment": "s1"},
    "segment": "north",
    "author": "ann",
    "reason": "new memory",
    "created_at": NOON,
    "starts_at": NOON,
    "expires_at": "2027-01-31T14:00:00+00:00",
}


@pytest.mark.parametrize(
    ("argv", "matcher", "when"),
    [
        (("--host", "cmp-7", "--for", "2h"), {"host": "cmp-7"}, {"duration_s": 7200}),
        (
            ("--segment", "north", "--kind", "guest", "--until", "2027-02-01"),
            {"segment": "north", "kind": "guest"},
            {"expires_at": "2027-02-01T00:00:00+00:00"},
        ),
        (
            ("--server", "s1", "--from", "2027-02-01", "--for", "1d"),
            {"server": "s1"},
            {"starts_at": "2027-02-01T00:00:00+00:00", "duration_s": 86400},
        ),
    ],
)
def test_a_maintenance_window_is_sent_with_matcher_and_dates(
    fake: Fake,
    holdfast: Run,
    argv: tuple[str, ...],
    matcher: dict[str, str],
    when: dict[str, Any],
) -> None:
    fake.says(f"POST {WINDOWS}", (201, {"maintenance_window": WINDOW}))
    ran = holdfast("maintenance", "add", *argv, "--reason", "new memory")
    assert ran.code == 0
    assert fake.asked[0]["body"] == {"matcher": matcher, "reason": "new memory", **when}
    assert "| what | host=cmp-7, segment=north |" in squeezed(ran.out)


def test_maintenance_windows_are_listed_and_removed(fake: Fake, holdfast: Run) -> None:
    fake.says(f"GET {WINDOWS}", (200, {"maintenance_windows": [WINDOW]}))
    assert squeezed(holdfast("maintenance", "list").out)[3] == (
        f"| {UUID} | host=cmp-7, segment=north | 2027-01-31 12:00:00 UTC |"
        " 2027-01-31 14:00:00 UTC | ann | new memory |"
    )
    fake.says(f"DELETE {WINDOWS}/{UUID}", (204, None))
    ran = holdfast("maintenance", "remove", UUID)
    assert (ran.code, ran.err) == (0, f"maintenance window {UUID} removed\n")


def test_the_library_has_the_same(fake: Fake) -> None:
    client = Client(fake.url)
    fake.says(LIST, (200, {"incidents": [listed()]}))
    assert client.incidents.list(open=False, host="cmp-7")[0]["id"] == UUID
    assert set(fake.asked[0]["query"].split("&")) == {"open=false", "host=cmp-7"}
    with pytest.raises(NotFound):
        client.incidents.abort(UUID, "so")
    fake.says("POST /holdfast/v1/pauses", (201, {"pause": PAUSE}))
    client.pauses.pause("so", lasts=timedelta(minutes=5))
    assert fake.asked[-1]["body"] == {"reason": "so", "duration_s": 300}
    client.close()


@pytest.mark.parametrize(
    ("words", "kind", "payload"),
    [
        ([], "COMPUTE_HOST", {"event": "STOPPED", "host_status": "NORMAL"}),
        (
            ["--server", UUID],
            "VM",
            {"event": "LIFECYCLE", "vir_domain_event": "STOPPED_FAILED", "instance_uuid": UUID},
        ),
        (
            ["--process", "nova-compute"],
            "PROCESS",
            {"event": "STOPPED", "process_name": "nova-compute"},
        ),
    ],
)
def test_incident_report_sends_the_notification_of_a_monitor(
    fake: Fake, holdfast: Run, words: list[str], kind: str, payload: dict[str, str]
) -> None:
    reports = "POST /instance-ha/v1/notifications"
    fake.says(reports, (202, {"notification": {"notification_uuid": OTHER}}))
    ran = holdfast("incident", "report", "cmp-07", *words)
    assert ran.code == 0, ran
    assert OTHER in ran.err
    (asked,) = [one for one in fake.asked if one["what"] == reports]
    said = asked["body"]["notification"]
    assert (said["type"], said["hostname"], said["payload"]) == (kind, "cmp-07", payload)
    assert said["generated_time"].startswith("2027-01-31T12:00:07")
