# SPDX-License-Identifier: Apache-2.0
"""The other `holdfast` commands, and what all have in common. The server is scripted."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from test_client_fake import HOSTS, LEASES, Fake, Ran, Run

from holdfast.cmd import client as program

UUID = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"
SIM = "/holdfast/v1/sim"


@pytest.mark.parametrize(
    "argv",
    [
        "lease create",
        "lease create x --end yesterday",
        "lease create x --end 'tomorrow 25:00'",
        "lease create x --hosts 0",
        "lease create x --hosts 2 --min 1",
        "lease create x --min 3 --max 2",
        "lease create x --where gpu",
        "lease create x --where vcpus>=",
        "lease create x --start 9000-01-01 --end +999999d",
        "lease set x",
        "lease set x --end now --extend 2h",
        "host set cmp-1",
        "host set cmp-1 --extra a=1 --unset a",
        "host create cmp-1 --extra gpu",
        "sim set latency_s",
        "sim set latency_s=NaN",
        "sim set latency_s=1e999",
        "operation list --status odd",
        "lease create x --reservation vcpus=2",
        "lease create x --reservation virtual:instance,vcpus",
        "lease create x --reservation virtual:instance,amount=1,amount=2",
        "lease create x --reservation {",
        "lease create x --wait --dry-run",
        "lease list --status odd",
        "lease list --limit 0",
        "lease list --end-before soon",
        "availability --hosts 1",
        "availability --hosts 1 --for 8h --end +1d",
        "availability --hosts 1 --end +1d --limit 3",
        "availability --hosts 1 --for 8h --reservation virtual:instance,amount=1",
        "host unset cmp-1",
        "host property set gpu",
        "host property set gpu --private --public",
        "floatingip create net",
        "leese list",
    ],
)
def test_a_wrong_option_ends_with_2_and_sends_nothing(fake: Fake, holdfast: Run, argv: str) -> None:
    assert holdfast(*argv.split()).code == 2
    assert fake.asked == []


@pytest.mark.parametrize(
    ("argv", "prog", "message"),
    [
        (["lease", "create", "x", "--hosts", "0"], "holdfast lease create", "argument --hosts: "),
        (["lease", "show"], "holdfast lease show", "the following arguments are required: lease"),
        (["--user"], "holdfast", "argument --user: expected one argument"),
    ],
)
def test_a_wrong_argument_is_a_line_and_a_hint(
    holdfast: Run, argv: list[str], prog: str, message: str
) -> None:
    ran = holdfast(*argv)
    assert ran.code == 2
    first, hint = ran.err.splitlines()
    assert first.startswith(f"{prog}: {message}")
    assert hint == f"{prog} --help shows all arguments"


RAW = "a\x1b]0;owned\x07\u202eb"


def test_control_characters_never_reach_a_terminal_raw(fake: Fake, holdfast: Run) -> None:
    operation = {"id": UUID, "kind": RAW, "sentence": RAW, "listed": [{"name": RAW}]}
    fake.says("GET /holdfast/v1/operations", (200, {"operations": [operation]}))
    fake.says(f"GET /holdfast/v1/operations/{UUID}", (200, {"operation": operation}))
    refusal = {"errors": [{"status": 400, "detail": f"no {RAW}"}]}
    fake.says("GET /holdfast/v1/operations/odd", (400, refusal))
    for argv in (["list"], ["show", UUID], ["show", "odd"]):
        ran = holdfast("operation", *argv)
        shown = ran.out + ran.err
        assert "\\x1b]0;owned\\x07\\u202eb" in shown
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    raw = holdfast("operation", "show", UUID, "-f", "value", "-c", "kind").out
    assert raw == RAW + "\n"  # for programs: not a terminal


def test_a_list_that_is_too_long_says_so(fake: Fake, holdfast: Run) -> None:
    fake.says("GET /holdfast/v1/operations", (200, {"operations": [{"id": UUID}] * 100}))
    assert "at most 100 are listed; --limit N lists more" in holdfast("operation", "list").err
    assert "at most" not in holdfast("operation", "list", "--limit", "500").err
    assert fake.asked[-1]["query"] == "limit=500"


def test_status_looks_at_the_url_that_is_given(fake: Fake, holdfast: Run) -> None:
    fake.says("GET /readyz", (200, {"status": "ok", "database": "ok"}), (503, {"status": "x"}))
    ran = holdfast("--url", fake.url, "status", "-f", "json")
    assert ran.code == 0, ran.err
    (row,) = json.loads(ran.out)
    assert (row["check"], row["result"]) == ("api", "ok")
    assert "database ok" in row["what"]
    assert holdfast("--url", fake.url, "status").code == 2


def test_a_condition_with_two_operators_is_refused_at_its_place(fake: Fake, holdfast: Run) -> None:
    ran = holdfast("lease", "create", "x", "--where", "vcpus>>4")
    assert ran.code == 2
    assert "'vcpus>>4' is not a condition: '>' at character 7 follows the operator" in ran.err
    assert fake.asked == []


def test_host_create_enrols_several_hosts_and_continues_after_a_failure(
    fake: Fake, holdfast: Run
) -> None:
    host = {"id": "1", "hypervisor_hostname": "cmp-1", "vcpus": 8}
    busy = {"error_message": "it has servers"}
    fake.says(f"POST {HOSTS}", (409, busy), (201, {"host": host}))
    ran = holdfast("host", "create", "cmp-0", "cmp-1", "--extra", "gpu=True", "-f", "json")
    assert ran.code == 1
    assert ran.err == "cmp-0: it has servers\n"
    assert [each["hypervisor_hostname"] for each in json.loads(ran.out)] == ["cmp-1"]
    assert fake.asked[1]["body"] == {"name": "cmp-1", "gpu": "True"}


def test_host_set_sends_null_for_a_removed_capability(fake: Fake, holdfast: Run) -> None:
    host = {"id": "1", "hypervisor_hostname": "cmp-1.example.org"}
    fake.says(f"GET {HOSTS}", (200, {"hosts": [host]}))
    fake.says(f"PUT {HOSTS}/1", (200, {"host": {**host, "gpu": "a=b"}}))
    ran = holdfast("host", "set", "cmp-1", "--extra", "gpu=a=b", "--unset", "old")
    assert ran.code == 0, ran.err
    assert fake.asked[-1]["body"] == {"gpu": "a=b", "old": None}
    assert "a=b" in ran.out


def test_host_allocation_list_names_hosts_and_filters_by_lease(fake: Fake, holdfast: Run) -> None:
    held = {"id": "r1", "lease_id": UUID, "start_date": "s", "end_date": "e"}
    allocations = [
        {"resource_id": "1", "reservations": [held]},
        {"resource_id": "2", "reservations": []},
    ]
    fake.says(f"GET {LEASES}", (200, {"leases": [{"id": UUID, "name": "training"}]}))
    fake.says(f"GET {HOSTS}/allocations", (200, {"allocations": allocations}))
    fake.says(f"GET {HOSTS}", (200, {"hosts": [{"id": 1, "hypervisor_hostname": "cmp-1"}]}))
    ran = holdfast("host", "allocation", "list", "--lease", "training", "-f", "json")
    assert [(each["host"], each["reservation_id"]) for each in json.loads(ran.out)] == [
        ("cmp-1", "r1")
    ]
    assert fake.asked[1]["query"] == f"lease_id={UUID}"


def test_host_unset_takes_capabilities_away(fake: Fake, holdfast: Run) -> None:
    host = {"id": "1", "hypervisor_hostname": "cmp-1"}
    fake.says(f"GET {HOSTS}", (200, {"hosts": [host]}))
    fake.says(f"PUT {HOSTS}/1", (200, {"host": host}))
    ran = holdfast("host", "unset", "cmp-1", "old", "older")
    assert ran.code == 0, ran.err
    assert fake.asked[-1]["body"] == {"old": None, "older": None}


def test_host_properties_are_listed_and_hidden(fake: Fake, holdfast: Run) -> None:
    known = [{"property": "gpu", "private": False, "values": ["a100", "h100"]}]
    fake.says(f"GET {HOSTS}/properties", (200, {"resource_properties": known}))
    changed = {"id": "1", "property_name": "gpu", "private": True}
    fake.says(f"PATCH {HOSTS}/properties/gpu", (200, {"resource_property": changed}))
    ran = holdfast("host", "property", "list", "--detail", "--all")
    assert "a100" in ran.out and "h100" in ran.out
    assert fake.asked[-1]["query"] == "detail=True&all=True"
    assert "a100" not in holdfast("host", "property", "list").out
    assert fake.asked[-1]["query"] == ""
    assert holdfast("host", "property", "set", "gpu", "--private").code == 0
    assert fake.asked[-1]["body"] == {"private": True}
    assert holdfast("host", "property", "set", "gpu", "--public").code == 0
    assert fake.asked[-1]["body"] == {"private": False}


def test_floating_ips_go_by_their_address(fake: Fake, holdfast: Run) -> None:
    where = "/reservation/v1/floatingips"
    address = {"id": UUID, "floating_ip_address": "203.0.113.17", "floating_network_id": "net"}
    fake.says(f"GET {where}", (200, {"floatingips": [address]}))
    fake.says(f"POST {where}", (201, {"floatingip": address}))
    fake.says(f"DELETE {where}/{UUID}", (204, None))
    assert "203.0.113.17" in holdfast("floatingip", "list").out
    assert UUID in holdfast("floatingip", "show", "203.0.113.17").out
    assert holdfast("floatingip", "create", "net", "203.0.113.17").code == 0
    assert fake.asked[-1]["body"] == {
        "floating_network_id": "net",
        "floating_ip_address": "203.0.113.17",
    }
    ran = holdfast("floatingip", "delete", "203.0.113.17", "203.0.113.99")
    assert ran.code == 1
    assert ran.err.splitlines() == [
        f"floating IP 203.0.113.17 ({UUID}) deleted",
        "203.0.113.99: there is no floating IP '203.0.113.99': `holdfast floatingip list` shows"
        " them",
    ]


AVAILABILITY = "/holdfast/v1/availability"


def asked_for(fake: Fake) -> dict[str, str]:
    """The last query, with its reservation parsed."""
    query = dict(parse_qsl(fake.asked[-1]["query"]))
    return query | {"reservation": json.loads(query["reservation"])}


def test_availability_shows_the_first_windows(fake: Fake, holdfast: Run) -> None:
    window = {
        "start_date": "2027-02-01T08:00:00+00:00",
        "end_date": "2027-02-01T16:00:00+00:00",
        "amount": 3,
    }
    found = {"fits": True, "amount": 3, "windows": [window], "why_not": None}
    fake.says(f"GET {AVAILABILITY}", (200, {"availability": found}))
    asked = "availability --min 2 --max 4 --for 8h --from +1h --until +7d"
    ran = holdfast(*asked.split())
    assert ran.code == 0, ran.err
    assert "| 2027-02-01 08:00:00 UTC | 2027-02-01 16:00:00 UTC | 3 " in " ".join(ran.out.split())
    assert asked_for(fake) == {
        "reservation": {
            "resource_type": "physical:host",
            "min": 2,
            "max": 4,
            "hypervisor_properties": "",
            "resource_properties": "",
        },
        "duration_s": "28800",
        "from": "2027-01-31 13:00:07",
        "until": "2027-02-07 12:00:07",
    }


def test_availability_of_a_window_ends_with_1_and_says_why_not(fake: Fake, holdfast: Run) -> None:
    why = {"message": "Not enough hosts available: 3 of 4 are held until Monday"}
    found = {"fits": False, "amount": 0, "windows": [], "why_not": why}
    fake.says(f"GET {AVAILABILITY}", (200, {"availability": found}))
    slots = "virtual:instance,vcpus=2,amount=3"
    ran = holdfast("availability", "--end", "+2h", "--reservation", slots)
    assert (ran.code, ran.err) == (1, f"{why['message']}\n")
    assert asked_for(fake) == {
        "reservation": {"resource_type": "virtual:instance", "vcpus": 2, "amount": 3},
        "start_date": "now",
        "end_date": "2027-01-31 14:00:07",
    }


def test_sim_commands_show_change_and_break_the_cloud(fake: Fake, holdfast: Run) -> None:
    sim = {
        "hosts": [
            {"name": "cmp-1", "rack": "a", "pools": ["freepool"], "servers": 1}
            | {"powered": False, "service": {"state": "up", "enabled": False}}
        ],
        "servers": [{"id": "s1", "name": "web-1", "host": "cmp-1", "status": "ACTIVE"}],
    }
    fake.says(f"GET {SIM}", (200, {"sim": sim}))
    fake.says(f"PUT {SIM}/settings", (200, {"settings": {"latency_s": 0.2}}))
    fake.says(f"POST {SIM}/hosts/cmp-1/fail", (202, {"said": "cmp-1 is off"}))
    fake.says(f"POST {SIM}/servers/web-1/crash", (202, {"said": "web-1 crashed"}))
    shown = holdfast("sim", "show").out
    assert all(word in shown for word in ("cmp-1", "freepool", "| no power, still looks up, dis"))
    assert "ACTIVE" in holdfast("sim", "show", "--servers").out
    assert holdfast("sim", "set", "latency_s=0.2", "mode=odd").code == 0
    assert fake.asked[-1]["body"] == {"latency_s": 0.2, "mode": "odd"}
    assert holdfast("sim", "set", "down=True", "only_calls=servers.stop, moves.evacuate").code == 0
    assert fake.asked[-1]["body"] == {
        "down": True,
        "only_calls": ["servers.stop", "moves.evacuate"],
    }
    assert "latency_s: NaN is not" in holdfast("sim", "set", "latency_s=NaN").err
    assert holdfast("sim", "fail-host", "cmp-1").out == "cmp-1 is off\n"
    assert holdfast("sim", "crash-server", "web-1").out == "web-1 crashed\n"
    gone = holdfast("sim", "recover-host", "cmp-9")
    assert (gone.code, gone.out) == (1, "")


def test_sim_cut_and_mend_name_the_network_or_mean_all(fake: Fake, holdfast: Run) -> None:
    fake.says(f"POST {SIM}/hosts/cmp-1/cut", (202, {"said": "cut"}))
    fake.says(f"POST {SIM}/hosts/cmp-1/reconnect", (202, {"said": "reconnected"}))
    assert holdfast("sim", "cut", "cmp-1", "--network", "storage").out == "cut\n"
    assert fake.asked[-1]["body"] == {"network": "storage"}
    assert holdfast("sim", "reconnect", "cmp-1").out == "reconnected\n"
    assert fake.asked[-1]["body"] == {}


def test_operation_list_shows_the_sentence(fake: Fake, holdfast: Run) -> None:
    done = {"id": "o1", "kind": "lease.start", "status": "done", "sentence": "2 hosts moved"}
    fake.says("GET /holdfast/v1/operations", (200, {"operations": [done]}))
    assert "2 hosts moved" in holdfast("operation", "list").out


def test_operation_show_shows_the_whole_sentence(fake: Fake, holdfast: Run) -> None:
    operation = {"id": UUID, "kind": "lease_start", "status": "retrying", "sentence": "x " * 300}
    fake.says(f"GET /holdfast/v1/operations/{UUID}", (200, {"operation": operation}))
    ran = holdfast("operation", "show", UUID, "-f", "value", "-c", "sentence")
    assert (ran.code, ran.out.split()) == (0, ["x"] * 300)


def test_local_shows_times_in_the_zone_of_this_machine(
    fake: Fake, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations = {"operations": [{"id": UUID, "due_at": "2027-01-31T12:00:00+00:00"}]}
    fake.says("GET /holdfast/v1/operations", (200, operations))
    monkeypatch.setenv("TZ", "XYZ-3")
    time.tzset()
    try:
        local, usual = (holdfast(*o, "operation", "list").out for o in (["--local"], []))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "| 2027-01-31 15:00:00 XYZ |" in local
    assert "| 2027-01-31 12:00:00 UTC |" in usual


def test_operation_list_filters_and_shows_dates_alike(fake: Fake, holdfast: Run) -> None:
    whole = {"id": "o1", "due_at": "2027-01-31T12:00:00+00:00", "attempts": 3}
    parts = {"id": "o2", "due_at": "2027-01-31T12:00:01.250000+00:00", "attempts": 0}
    fake.says("GET /holdfast/v1/operations", (200, {"operations": [whole, parts]}))
    fake.says(f"GET {LEASES}", (200, {"leases": [{"id": UUID, "name": "training"}]}))
    ran = holdfast("operation", "list", "--lease", "training", "--status", "retrying")
    assert "| 2027-01-31 12:00:00 UTC | 3 " in " ".join(ran.out.split())
    assert "| 2027-01-31 12:00:01 UTC | 0 " in " ".join(ran.out.split())
    assert "failures" in ran.out
    assert fake.asked[-1]["query"] == f"subject={UUID}&status=retrying"
    assert holdfast("operation", "list", "--lease", UUID).code == 0
    assert fake.asked[-1]["query"] == f"subject={UUID}"


def test_an_unreachable_server_is_a_line_with_advice(holdfast: Run) -> None:
    ran = holdfast("--url", "http://127.0.0.1:1", "lease", "list")
    assert ran == Ran(
        1,
        "",
        "cannot reach http://127.0.0.1:1: is it running? start it with `make run`"
        " or set HOLDFAST_URL\n",
    )


def test_debug_shows_the_traceback(holdfast: Run) -> None:
    ran = holdfast("--debug", "--url", "http://127.0.0.1:1", "lease", "list")
    assert ran.code == 1
    assert "Traceback" in ran.err


def test_the_password_comes_from_a_file(fake: Fake, holdfast: Run, tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("xyzzy\n")
    fake.says(f"GET {LEASES}", (200, {"leases": []}))
    ran = holdfast("lease", "list", "--user", "ana", "--password-file", str(secret))
    assert ran.code == 0, ran.err
    assert fake.asked[0]["headers"]["Authorization"].startswith("Basic ")
    missing = holdfast("--user", "ana", "--password-file", "/nope", "lease", "list")
    assert missing.code == 1
    assert missing.err.startswith("cannot read the password file /nope")


def test_every_command_of_ours_teaches_by_example(holdfast: Run) -> None:
    entries = importlib.metadata.entry_points(group="holdfast.commands")
    ours = [e.name for e in entries if e.value.startswith("holdfast.cli.")]
    assert len(ours) == 101
    for name in ours:
        ran = holdfast(*name.split(), "--help")
        assert ran.code == 0
        assert ("--config FILE" in ran.out) is ("--config-file FILE" in ran.out), name
        _, _, examples = ran.out.partition("\nexample")
        assert f"holdfast {name}" in examples, name


def test_help_is_printed_after_any_arguments(holdfast: Run) -> None:
    assert "lease create" in holdfast().out
    assert "Commands:" in holdfast("--help").out
    assert holdfast("lease", "create", "x", "--end", "+1h", "--help").code == 0
    assert "lease show" in holdfast("lease", "--help").out
    assert holdfast("--version").out.startswith("holdfast 0.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_is_printed_and_parses(holdfast: Run, shell: str) -> None:
    ran = holdfast("complete", "--shell", shell)
    assert ran.code == 0, ran.err
    assert "holdfast complete --words" in ran.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=ran.out, text=True, check=True, timeout=90)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fail"], ["failover"]),
        (["failover", ""], ["set"]),
        (["lease", ""], ["ack", "create", "delete", "list", "replace-host", "set", "show"]),
        (["--url", "URL", "lease", "s"], ["set", "show"]),
        (["lease", "list", "--sta"], ["--start-after", "--start-before", "--status"]),
        (["lease", "list", "--status", "A"], ["ACTIVE"]),
        (["lease", "show", ""], ["night", "training"]),
        (["lease", "delete", "night", "t"], ["training"]),
        (["host", "show", "cmp"], ["cmp-1"]),
        (["audit", "list", "--limit", ""], []),
        (["nonsense", ""], []),
        (["--url"], []),
    ],
)
def test_words_are_completed_from_the_parsers_and_the_names_of_leases_and_hosts(
    fake: Fake, holdfast: Run, words: list[str], expected: list[str]
) -> None:
    names = ("training", "night", "two words", "$(reboot)")
    fake.says(f"GET {LEASES}", (200, {"leases": [{"id": UUID, "name": name} for name in names]}))
    fake.says(f"GET {HOSTS}", (200, {"hosts": [{"id": "1", "hypervisor_hostname": "cmp-1"}]}))
    words = [fake.url if word == "URL" else word for word in words]
    assert holdfast("complete", "--words", *words).out.split() == expected


def test_bash_completes_a_command(fake: Fake, holdfast: Run, tmp_path: Any) -> None:
    (tmp_path / "holdfast").symlink_to(Path(sys.executable).parent / "holdfast")
    script = holdfast("complete").out + (
        "COMP_WORDS=(holdfast operation s); COMP_CWORD=2; _holdfast; echo ${COMPREPLY[@]}"
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert ran.stdout == "show\n"


def test_a_command_that_cannot_be_imported_leaves_the_others_alone(
    holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = importlib.metadata.EntryPoint("lease list", "holdfast.cli.lease:List", program.NAMESPACE)
    bad = importlib.metadata.EntryPoint("up", "holdfast.nothing:Up", program.NAMESPACE)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [good, bad])
    listed = holdfast("--help").out
    assert "List the leases you may see" in listed
    assert "(not available here: No module named 'holdfast.nothing')" in listed
    assert holdfast("complete").code == 0
    ran = holdfast("up", "--port", "1")
    assert ran.code == 1
    assert ran.err.startswith("`holdfast up` is not available here: No module named")


def test_a_reader_that_leaves_early_hears_no_complaint() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "holdfast.cmd.client", "complete"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=90,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, "")
