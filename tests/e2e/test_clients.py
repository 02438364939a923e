# SPDX-License-Identifier: Apache-2.0
"""Clients as people have them: `openstack reservation …` unchanged, and our own commands."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import bcrypt
import blazarclient.client
import pytest

from holdfast.client.client import Client
from tests.e2e.deployment import all_in_one, soon
from tests.processes import eventually, script

#: For one command, on a machine that is busy.
MOST_S = 120.0


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with all_in_one(tmp_path_factory.mktemp("house")) as (_program, client):
        yield client


def command(program: str, words: Sequence[str], env: dict[str, str] | None = None) -> str:
    """What it printed; fails with what it complained about."""
    done = subprocess.run(
        [str(script(program)), *words],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


class OpenStack:
    """The openstack command with python-blazarclient in it, of one user: in a process that runs
    one command after the other, which keeps its client from the first on."""

    def __init__(self, url: str, *auth: str) -> None:
        self.words = (*auth, "--os-endpoint", f"{url}/reservation/v1", "reservation")
        self._shell = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.openstack_shell"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._shell.stdin and self._shell.stdout
        self._shell.stdin.close()
        self._shell.wait()
        self._shell.stdout.close()

    def ended(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output, complaints."""
        assert self._shell.stdin and self._shell.stdout
        watchdog = threading.Timer(MOST_S, self._shell.kill)
        watchdog.start()
        try:
            self._shell.stdin.write(json.dumps([*self.words, *words]) + "\n")
            self._shell.stdin.flush()
            code, out, err = json.loads(self._shell.stdout.readline())
        finally:
            watchdog.cancel()
        return code, out, err

    def __call__(self, *words: str) -> str:
        code, out, err = self.ended(*words)
        assert code == 0, f"{words}: {out}{err}"
        return out

    def json(self, *words: str) -> Any:
        text = self(*words, "-f", "json")
        return json.loads(text[min(i for i in (text.find("{"), text.find("[")) if i >= 0) :])


@pytest.fixture(scope="module")
def openstack(house: Client) -> Iterator[OpenStack]:
    with OpenStack(house.url, "--os-auth-type", "none") as made:
        yield made


def minute(**ahead: float) -> str:
    """A date as python-blazarclient takes it."""
    return (soon(0) + timedelta(**ahead)).strftime("%Y-%m-%d %H:%M")


def of(text: str) -> list[Any]:
    """What the table of a lease says of its reservations."""
    parts = text if isinstance(text, list) else [json.loads(each) for each in [text]]
    return [json.loads(part) if isinstance(part, str) else part for part in parts]


def test_the_openstack_command_itself_runs_unchanged(openstack: OpenStack) -> None:
    listed = json.loads(command("openstack", [*openstack.words, "host", "list", "-f", "json"]))
    assert listed == openstack.json("host", "list")
    assert listed[0].keys() == {"id", "hypervisor_hostname", "vcpus", "memory_mb", "local_gb"}


def test_openstack_reservation_host_commands_run_unchanged(
    openstack: OpenStack, house: Client
) -> None:
    openstack("host", "delete", "cmp-20")
    assert "cmp-20" not in {row["hypervisor_hostname"] for row in openstack.json("host", "list")}
    made = openstack.json("host", "create", "cmp-20", "--extra", "ssd=True", "--extra", "po=7")
    assert (made["hypervisor_hostname"], made["ssd"], made["po"]) == ("cmp-20", "True", "7")
    assert openstack.json("host", "show", "cmp-20")["ssd"] == "True"
    assert openstack.json("host", "show", made["id"])["hypervisor_hostname"] == "cmp-20"
    openstack("host", "set", "cmp-20", "--extra", "ssd=nvme")
    assert openstack.json("host", "show", "cmp-20")["ssd"] == "nvme"
    names = [row["hypervisor_hostname"] for row in openstack.json("host", "list")]
    assert names == sorted(names)
    sizes = [row["vcpus"] for row in openstack.json("host", "list", "--sort-by", "vcpus")]
    assert sizes == sorted(sizes)
    code, _out, err = openstack.ended("host", "create", "nowhere")
    assert code != 0 and "nowhere" in err

    assert {"property": "ssd"} in openstack.json("host", "property", "list", "-c", "property")
    openstack("host", "property", "set", "po", "--private")
    shown = openstack.json("host", "property", "list", "--detail", "-c", "property")
    assert {"property": "po"} not in shown
    every = openstack.json("host", "property", "list", "--detail", "--all")
    (private,) = (row for row in every if row["property"] == "po")
    assert private == {"property": "po", "private": True, "property_values": ["7"]}
    openstack("host", "property", "set", "po", "--public")
    found = openstack.json("host", "property", "show", "po")
    assert (found["private"], found["property_values"]) == (False, ["7"])
    # `host unset` of 4.6.0 cannot be loaded; what it would send is a null
    assert "po" not in house.hosts.update(made["id"], {"po": None})


def test_openstack_reservation_lease_commands_run_unchanged(openstack: OpenStack) -> None:
    openstack("host", "set", "cmp-20", "--extra", "ssd=nvme")
    wanted = 'resource_type=physical:host,min=1,max=1,resource_properties=["==","$ssd","nvme"]'
    lease = openstack.json(
        "lease", "create", "from-blazarclient",
        "--start-date", minute(hours=2), "--end-date", minute(hours=4),
        "--before-end-date", minute(hours=3),
        "--event", f"event_type=notification,event_date={minute(hours=3)}",
        "--reservation", wanted,
    )  # fmt: skip
    assert lease["status"] == "PENDING"
    (reservation,) = of(lease["reservations"])
    assert (reservation["min"], reservation["max"]) == (1, 1)
    rows = openstack.json("lease", "list")
    assert "from-blazarclient" in {row["name"] for row in rows}
    assert rows[0].keys() == {"id", "name", "start_date", "end_date"}
    for column in ("id", "name", "start_date", "end_date"):
        values = [row[column] for row in openstack.json("lease", "list", "--sort-by", column)]
        assert values == sorted(values)

    def shown(ref: str = "from-blazarclient") -> Any:
        return openstack.json("lease", "show", ref)

    first = shown()
    assert first == shown(lease["id"])
    held = openstack.json("allocation", "list", "host", "--lease-id", lease["id"])
    (row,) = (row for row in held if row["reservations"])
    assert row["resource_id"] == openstack.json("host", "show", "cmp-20")["id"]
    one = openstack.json("allocation", "show", "host", "cmp-20")
    assert reservation["id"] in str(one["reservations"])
    none = openstack.json("allocation", "show", "host", "cmp-20", "--reservation-id", "other")
    assert not none["reservations"]
    code, _out, err = openstack.ended("host", "delete", "cmp-20")
    assert code != 0 and "ERROR" in err

    openstack("lease", "set", "from-blazarclient", "--prolong-for", "1h", "--defer-by", "30m")
    moved = shown()
    assert moved["end_date"] > first["end_date"] and moved["start_date"] > first["start_date"]
    openstack("lease", "set", lease["id"], "--reduce-by", "1h", "--advance-by", "30m")
    again = shown()
    assert (again["start_date"], again["end_date"]) == (first["start_date"], first["end_date"])
    openstack(
        "lease", "set", lease["id"], "--name", "renamed",
        "--start-date", minute(hours=5), "--end-date", minute(hours=6),
        "--reservation", f"id={reservation['id']},min=2,max=3,resource_properties=",
    )  # fmt: skip
    (grown,) = of(shown("renamed")["reservations"])
    assert (grown["min"], grown["max"], grown["resource_properties"]) == (2, 3, "")
    openstack("lease", "delete", "renamed")
    assert lease["id"] not in {row["id"] for row in openstack.json("lease", "list")}
    code, _out, err = openstack.ended("lease", "show", lease["id"])
    assert code != 0 and "not found" in err


SLOTS = "resource_type=virtual:instance,vcpus=1,memory_mb=1024,disk_gb=5,amount=2"


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (SLOTS, {"amount": 2, "affinity": None, "resource_properties": ""}),
        (f"{SLOTS},affinity=None", {"affinity": None}),
        (f"{SLOTS},affinity=", {"affinity": None}),
        (f"{SLOTS},affinity=False", {"affinity": False}),
        (f"{SLOTS},affinity=true", {"affinity": True}),
        (
            "resource_type=flavor:instance,flavor_id=1,amount=2",
            {"vcpus": 2, "memory_mb": 4096, "disk_gb": 20, "amount": 2, "affinity": None},
        ),
    ],
)
def test_openstack_client_reserves_slots_with_default_options(
    openstack: OpenStack, wanted: str, shown: dict[str, Any]
) -> None:
    dates = ("--start-date", minute(hours=2), "--end-date", minute(hours=4))
    lease = openstack.json("lease", "create", "slots", *dates, "--reservation", wanted)
    (reservation,) = of(lease["reservations"])
    assert {key: reservation[key] for key in shown} == shown
    assert reservation["flavor_id"] == reservation["id"]
    openstack("lease", "set", "slots", "--reservation", f"id={reservation['id']},amount=3")
    (more,) = of(openstack.json("lease", "show", "slots")["reservations"])
    assert more["amount"] == 3
    openstack("lease", "delete", "slots")


def test_openstack_reservation_floatingip_commands_run_unchanged(openstack: OpenStack) -> None:
    made = openstack.json("floatingip", "create", "public", "203.0.113.20")
    assert made["floating_ip_address"] == "203.0.113.20"
    (row,) = (r for r in openstack.json("floatingip", "list") if r["id"] == made["id"])
    assert row.keys() == {"id", "floating_ip_address", "floating_network_id"}
    assert openstack.json("floatingip", "show", made["id"])["reservable"] is True
    dates = ("--start-date", minute(hours=2), "--end-date", minute(hours=4))
    wanted = "resource_type=virtual:floatingip,network_id=public"
    required = f'{wanted},amount=1,required_floatingips=["203.0.113.20"]'
    lease = openstack.json("lease", "create", "address", *dates, "--reservation", required)
    (reservation,) = of(lease["reservations"])
    assert reservation["required_floatingips"] == ["203.0.113.20"]
    code, _out, err = openstack.ended("floatingip", "delete", made["id"])
    assert code != 0 and "203.0.113.20" in err
    openstack("lease", "delete", "address")
    plain = openstack.json("lease", "create", "address", *dates, "--reservation", wanted)
    assert of(plain["reservations"])[0]["amount"] == 1
    openstack("lease", "delete", "address")
    openstack("floatingip", "delete", made["id"])
    assert made["id"] not in {r["id"] for r in openstack.json("floatingip", "list")}


def test_dashboard_calls_get_answers_in_the_expected_format(house: Client) -> None:
    """Its forms send what people left empty as it is, and "now" as this minute."""
    client = blazarclient.client.Client(
        blazar_url=f"{house.url}/reservation/v1", auth_token="a-token"
    )

    def date(text: str) -> datetime:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f").replace(tzinfo=UTC)

    eventually(lambda: datetime.now(UTC).second < 45)  # or it may be another minute soon
    now, end = soon(-1).strftime("%Y-%m-%d %H:%M"), minute(days=1)
    hosts = {"resource_type": "physical:host", "min": 1, "max": 2}
    hosts |= {"hypervisor_properties": "", "resource_properties": ""}
    slots = {"resource_type": "virtual:instance", "amount": 1, "vcpus": 1, "memory_mb": 1}
    slots |= {"disk_gb": 0, "affinity": "", "resource_properties": ""}
    made = [
        client.lease.create("from-dashboard", now, end, [hosts], []),
        client.lease.create("slots-from-dashboard", minute(hours=1), end, [slots], []),
    ]
    assert {lease["id"] for lease in made} <= {lease["id"] for lease in client.lease.list()}
    lease = client.lease.get(made[0]["id"])
    assert date(lease["start_date"]) < date(lease["end_date"])
    (part,) = lease["reservations"]
    changed = client.lease.update(
        lease["id"], name="renamed", prolong_for="1h", reservations=[{"id": part["id"], "max": 3}]
    )
    assert date(changed["end_date"]) - date(lease["end_date"]) == timedelta(hours=1)

    known = {host["id"]: host for host in client.host.list()}
    for host in known.values():
        assert isinstance(json.loads(host["cpu_info"]), dict)
        assert host["reservable"] is True
        assert {"vcpus", "memory_mb", "local_gb", "hypervisor_type"} <= host.keys()
    calendar = [
        (known[each["resource_id"]]["hypervisor_hostname"], reservation)
        for each in client.allocation.list("os-hosts")
        for reservation in each["reservations"]
    ]
    ours = [entry for _host, entry in calendar if entry["lease_id"] == lease["id"]]
    assert ours and {entry["id"] for entry in ours} == {part["id"]}
    for entry in ours:
        assert date(entry["start_date"]) < date(entry["end_date"])
    assert len(client.allocation.list("os-hosts")) == len(known)
    some = next(iter(known))
    assert client.host.update(some, {"room": "c"})["room"] == "c"
    assert client.host.get(some)["room"] == "c"
    assert "room" not in client.host.update(some, {"room": None})
    assert isinstance(client.host.list_properties(detail=True), list)
    for lease in made:
        client.lease.delete(lease["id"])
    left = {lease["id"] for lease in client.lease.list()}
    assert not left & {lease["id"] for lease in made}


def test_openstack_reservation_commands_with_http_basic(tmp_path: Path) -> None:
    secret = bcrypt.hashpw(b"s3cret", bcrypt.gensalt(4)).decode()
    (tmp_path / "htpasswd").write_text(f"alice:{secret}\nroot:{secret}\n")
    (tmp_path / "users.yaml").write_text(
        "alice: {project: blue, roles: [member]}\nroot: {project: ops, roles: [admin]}\n"
    )
    options = {
        "DEFAULT": {"auth_strategy": "http_basic"},
        "auth": {
            "htpasswd_file": tmp_path / "htpasswd",
            "users_file": tmp_path / "users.yaml",
        },
    }
    with contextlib.ExitStack() as stack:
        _program, nobody = stack.enter_context(all_in_one(tmp_path / "house", options))

        def who(name: str) -> OpenStack:
            auth = ("--os-auth-type", "http_basic", "--os-username", name)
            made = OpenStack(nobody.url, *auth, "--os-password", "s3cret")
            return stack.enter_context(made)

        root, alice = who("root"), who("alice")
        Client(nobody.url, user="root", password="s3cret").hosts.delete("12")
        assert root.json("host", "create", "cmp-20")["hypervisor_hostname"] == "cmp-20"
        assert len(root.json("host", "list")) == 12
        assert root.json("host", "show", "cmp-20")["reservable"] is True
        lease = alice.json(
            "lease", "create", "hers", "--reservation", "resource_type=physical:host,min=1,max=1"
        )
        assert (lease["project_id"], lease["user_id"]) == ("blue", "alice")
        her = Client(nobody.url, user="alice", password="s3cret")
        assert [one["name"] for one in her.leases.list()] == ["hers"]
        eventually(lambda: her.leases.show(lease["id"])["status"] == "ACTIVE")
        assert [row["name"] for row in alice.json("lease", "list")] == ["hers"]
        assert alice.json("lease", "show", "hers")["status"] == "ACTIVE"
        alice("lease", "delete", "hers")
        assert her.leases.list() == []


def test_our_own_commands_from_lease_to_break(house: Client) -> None:
    def holdfast(*words: str) -> str:
        return command("holdfast", ["--url", house.url, *words])

    shown = json.loads(
        holdfast("lease", "create", "ours", "--hosts", "1", "--end", "+1h", "--wait", "-f", "json")
    )
    assert shown["status"] == "ACTIVE"
    assert "ours" in holdfast("lease", "list", "-f", "value", "-c", "name").split()
    holdfast("lease", "set", "ours", "--extend", "30m")
    assert "lease_end" in holdfast("operation", "list")
    (row,) = json.loads(holdfast("lease", "list", "--name", "ours", "--sort", "name", "-f", "json"))
    assert (row["name"], row["hosts"]) == ("ours", "1")
    windows = json.loads(holdfast("availability", "--hosts", "2", "--for", "1h", "-f", "json"))
    assert windows[0]["amount"] == 2
    slots = "virtual:instance,vcpus=1,memory_mb=512,disk_gb=1,amount=2"
    dry = holdfast("lease", "create", "dry", "--reservation", slots, "--dry-run")
    assert "virtual:instance, pending, 2 of 1 vCPU 512 MB 1 GB, on cmp-" in dry
    holdfast("floatingip", "create", "public", "203.0.113.30")
    assert "203.0.113.30" in holdfast("floatingip", "list")
    holdfast("floatingip", "delete", "203.0.113.30")
    assert "dry" not in holdfast("lease", "list", "-f", "value", "-c", "name").split()
    holdfast("sim", "fail-host", "cmp-05")
    world = {host["name"]: host for host in house.sim.show()["hosts"]}
    assert world["cmp-05"]["powered"] is False
    holdfast("sim", "recover-host", "cmp-05")
    holdfast("sim", "set", "latency_s=0.05")
    assert house.sim.show()["settings"]["latency_s"] == 0.05
    holdfast("sim", "set", "latency_s=0")
    holdfast("lease", "delete", "ours")
    assert "ours" not in holdfast("lease", "list", "-f", "value", "-c", "name").split()
