# SPDX-License-Identifier: Apache-2.0
"""Clients as people have them: `openstack reservation …` unchanged, and our own commands."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from holdfast.client import Client
from tests.e2e.deployment import all_in_one, soon
from tests.processes import eventually, script


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
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


class OpenStack:
    """The openstack command with python-blazarclient in it."""

    def __init__(self, url: str, *auth: str) -> None:
        self._words = (*auth, "--os-endpoint", f"{url}/reservation/v1", "reservation")

    def __call__(self, *words: str) -> Any:
        text = command("openstack", [*self._words, *words])
        return text

    def json(self, *words: str) -> Any:
        text = self(*words, "-f", "json")
        return json.loads(text[min(i for i in (text.find("{"), text.find("[")) if i >= 0) :])


def test_openstack_reservation_commands_run_unchanged(house: Client) -> None:
    openstack = OpenStack(house.url, "--os-auth-type", "none")
    house.hosts.delete(house.hosts.find("cmp-20")["id"])
    made = openstack.json("host", "create", "cmp-20", "--extra", "ssd=True")
    assert made["hypervisor_hostname"] == "cmp-20" and made["ssd"] == "True"
    assert "cmp-20" in {row["hypervisor_hostname"] for row in openstack.json("host", "list")}
    assert openstack.json("host", "show", "cmp-20")["ssd"] == "True"

    start, end = soon(7200), soon(14400)
    wanted = 'resource_type=physical:host,min=1,max=1,resource_properties=["==","$ssd","True"]'
    lease = openstack.json(
        "lease", "create", "from-blazarclient",
        "--start-date", start.strftime("%Y-%m-%d %H:%M"),
        "--end-date", end.strftime("%Y-%m-%d %H:%M"),
        "--reservation", wanted,
    )  # fmt: skip
    assert lease["status"] == "PENDING"
    assert "from-blazarclient" in {row["name"] for row in openstack.json("lease", "list")}
    shown = openstack.json("lease", "show", "from-blazarclient")
    assert shown["id"] == lease["id"]
    openstack("lease", "set", "from-blazarclient", "--prolong-for", "1h")
    longer = openstack.json("lease", "show", lease["id"])
    assert longer["end_date"] > shown["end_date"]
    openstack("lease", "delete", "from-blazarclient")
    assert lease["id"] not in {row["id"] for row in house.leases.list()}


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
    with all_in_one(tmp_path / "house", options) as (_program, nobody):

        def who(name: str) -> OpenStack:
            auth = ("--os-auth-type", "http_basic", "--os-username", name)
            return OpenStack(nobody.url, *auth, "--os-password", "s3cret")

        Client(nobody.url, user="root", password="s3cret").hosts.delete("12")
        assert who("root").json("host", "create", "cmp-20")["hypervisor_hostname"] == "cmp-20"
        assert len(who("root").json("host", "list")) == 12
        assert who("root").json("host", "show", "cmp-20")["reservable"] is True
        lease = who("alice").json(
            "lease", "create", "hers", "--reservation", "resource_type=physical:host,min=1,max=1"
        )
        assert (lease["project_id"], lease["user_id"]) == ("blue", "alice")
        alice = Client(nobody.url, user="alice", password="s3cret")
        assert [one["name"] for one in alice.leases.list()] == ["hers"]
        eventually(lambda: alice.leases.show(lease["id"])["status"] == "ACTIVE", 15)
        assert [row["name"] for row in who("alice").json("lease", "list")] == ["hers"]
        assert who("alice").json("lease", "show", "hers")["status"] == "ACTIVE"
        who("alice")("lease", "delete", "hers")
        assert alice.leases.list() == []


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
    holdfast("sim", "fail-host", "cmp-05")
    world = {host["name"]: host for host in house.sim.show()["hosts"]}
    assert world["cmp-05"]["powered"] is False
    holdfast("sim", "recover-host", "cmp-05")
    holdfast("sim", "set", "latency_s=0.05")
    assert house.sim.show()["settings"]["latency_s"] == 0.05
    holdfast("sim", "set", "latency_s=0")
    holdfast("lease", "delete", "ours")
    assert "ours" not in holdfast("lease", "list", "-f", "value", "-c", "name").split()
