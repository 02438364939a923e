# SPDX-License-Identifier: Apache-2.0
"""The resource agents for Pacemaker: they say what is so, and end nothing but what they started."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.client.client import Client
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.ports.cloud import Server
from holdfast.runtime.clock import SystemClock
from tests.e2e.deployment import all_in_one, write_config
from tests.ocf.resource import (
    ARGS,
    CONFIGURED,
    FAILED,
    INSTALLED,
    LONGEST_S,
    NOT_RUNNING,
    OCF_ROOT,
    OK,
    PERM,
    UNIMPLEMENTED,
    Resource,
    alive,
)
from tests.processes import Program, eventually, free_port, script
from tests.servers.base import Missing, which

SOURCE = Path(__file__).parents[2] / "etc" / "ocf" / "holdfast"
HOST = "cmp-13"
CLIENT = script("holdfast")
KINDS = ("agent", "expectation")

#: What must not fail because the machine is busy has a minute.
PATIENT = {"status_timeout": 60, "stop_timeout": 60}

pytestmark = pytest.mark.timeout(600)


@dataclass
class Site:
    folder: Path
    tester: str
    client: Client
    sim: Simulator

    def config(self, folder: Path, name: str = "agent.conf", **other: object) -> Path:
        about = {
            "host": HOST,
            "guests": "sim",
            "guests_address": f"{HOST}@{self.folder / 'state' / 'sim.db'}",
            "outbox": folder / "outbox",
            "socket": folder / "socket",
            "api_url": self.client.url,
            "token_file": self.folder / "token",
            **other,
        }
        return write_config(folder / name, {"agent": about})


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Short, for sockets, and open to everybody: ocf-tester comes as nobody too."""
    made = Path(tempfile.mkdtemp(prefix="hf-ocf-"))
    made.chmod(0o755)
    shutil.copytree(SOURCE, made / "holdfast")
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def tester() -> str:
    found = which("ocf-tester")
    if found is not None and which("xmllint") is not None and OCF_ROOT.is_dir():
        return found
    without(str(Missing("ocf-tester", "resource-agents libxml2-utils")))


@pytest.fixture(scope="module")
def site(folder: Path, tester: str) -> Iterator[Site]:
    secret = folder / "secret"
    secret.write_text("a secret of at least 32 characters\n")
    options = {"auth": {"agent_secret_file": secret}}
    with all_in_one(folder, options) as (_program, client), contextlib.ExitStack() as stack:
        eventually((folder / "state" / "populated").exists)
        file = str(folder / "state" / "sim.db")
        sim = stack.enter_context(contextlib.closing(Simulator(file, SystemClock())))
        central = write_config(folder / "central.conf", options)
        command = [script("holdfast"), "agent", "token", HOST, "--config", central]
        made = subprocess.run(command, check=True, capture_output=True, text=True)
        (folder / "token").write_text(made.stdout)
        yield Site(folder, tester, client, sim)


@pytest.fixture
def own(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


@pytest.fixture
def plain(tester: str, folder: Path, own: Path) -> Resource:
    """An agent's resource that nothing is started of."""
    about = {
        "binary": script("holdfast-agent"),
        "client": CLIENT,
        "config": write_config(own / "agent.conf", {"agent": {"host": HOST}}),
        "pidfile": own / "pid",
        "log": own / "log",
        **PATIENT,
    }
    return Resource(folder / "holdfast" / "agent", own, about)


@pytest.fixture
def agent(site: Site, plain: Resource) -> Iterator[Resource]:
    site.config(plain.folder)
    yield plain
    plain.close()


@pytest.fixture
def expectation(site: Site, own: Path) -> Resource:
    about = {"client": CLIENT, "config": site.config(own), "state": own / "on", "grace": 0}
    about["ask_timeout"] = 60
    return Resource(site.folder / "holdfast" / "expectation", own, about)


# what anybody may ask


@pytest.mark.slow("ocf-tester starts and stops the agent many times")
def test_the_agent_passes_ocf_tester(site: Site, agent: Resource) -> None:
    done = agent.test(site.tester)
    assert (done.code, "passed all tests" in done.said) == (OK, True), done.said


def test_the_expectation_passes_ocf_tester(site: Site, expectation: Resource) -> None:
    expectation.parameters |= {"differing_limit": 1, "unasked_limit": 1}  # asked, and all is well
    done = expectation.test(site.tester)
    assert (done.code, "passed all tests" in done.said) == (OK, True), done.said


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_request_has_its_own_exit_code(plain: Resource, kind: str) -> None:
    plain.program = plain.program.with_name(kind)
    assert plain.do().code == ARGS
    assert plain.do("start", "now").code == ARGS
    assert plain.do("promote").code == UNIMPLEMENTED
    for word in ("usage", "help"):
        done = plain.do(word)
        assert (done.code, "validate-all" in done.said) == (OK, True)


@pytest.mark.parametrize("kind", KINDS)
def test_without_resource_agents_the_agent_names_the_package(plain: Resource, kind: str) -> None:
    plain.program = plain.program.with_name(kind)
    nowhere = plain.folder / "nowhere"
    done = plain.do("monitor", root=nowhere)
    assert (done.code, "install the package resource-agents" in done.said) == (INSTALLED, True)
    assert plain.do("meta-data", root=nowhere).code == OK


def test_without_its_common_part_the_agent_names_the_file_to_copy(plain: Resource) -> None:
    plain.program = Path(shutil.copy(plain.program, plain.folder / "alone"))
    done = plain.do("monitor")
    assert (done.code, "copy the whole folder" in done.said) == (INSTALLED, True)


# parameters


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_that_cannot_be_is_no_reason_not_to_stop(plain: Resource, kind: str) -> None:
    plain.program = plain.program.with_name(kind)
    plain.parameters["state"] = plain.folder / "on"
    place = "pidfile" if kind == "agent" else "state"
    number = "deaf_timeout" if kind == "agent" else "unasked_limit"
    wrong: list[tuple[dict[str, object], int, str]] = [
        ({"client": plain.folder / "none"}, INSTALLED, "install Holdfast"),
        ({"config": ""}, CONFIGURED, "no config is set"),
        # on this host: the others of the clone go on
        ({"config": plain.folder / "none"}, ARGS, "is not on this host"),
        ({number: "soon"}, CONFIGURED, "whole number"),
        ({place: "here"}, CONFIGURED, "whole path"),
    ]
    for parameters, code, why in wrong:
        for action in ("validate-all", "start"):
            done = plain.do(action, **parameters)
            assert (done.code, why in done.said) == (code, True), done
        assert plain.do("stop", **parameters).code == OK
        assert plain.do("monitor", **parameters).code == NOT_RUNNING


def test_a_probe_reports_a_missing_program_as_not_installed(plain: Resource) -> None:
    gone = {"binary": plain.folder / "none"}
    assert plain.do("start", **gone).code == INSTALLED
    assert plain.do("monitor", probe=True, **gone).code == INSTALLED
    assert plain.do("monitor", probe=True).code == NOT_RUNNING


def test_an_unknown_user_is_wrong_on_this_host(plain: Resource) -> None:
    assert plain.do("validate-all").code == OK
    done = plain.do("validate-all", user="no-such-user")
    assert (done.code, "no user no-such-user" in done.said) == (ARGS, True)


def test_a_file_without_write_permission_is_a_permission_error(plain: Resource) -> None:
    closed = plain.folder / "closed"
    closed.mkdir(mode=0o500)
    plain.folder.chmod(0o777)
    there = {"binary": "/bin/true", "client": "/bin/true", "pidfile": closed / "pid"}
    user = "nobody" if os.geteuid() == 0 else ""
    done = plain.do("start", account=user, **there)
    assert (done.code, "cannot write" in done.said) == (PERM, True), done
    if user:
        there["pidfile"] = plain.folder / "pid"
        done = plain.do("validate-all", account=user, **{**there, "user": "root"})
        assert (done.code, "only root can" in done.said) == (PERM, True), done


# the agent's life


def test_a_killed_agent_does_not_run_and_can_be_started_again(agent: Resource) -> None:
    assert agent.start().code == OK
    first = agent.process
    assert agent.do("status").code == OK
    first.kill()
    eventually(lambda: not alive(first))
    done = agent.do("monitor")
    assert (done.code, "has ended" in done.said) == (NOT_RUNNING, True)
    assert agent.do("monitor", probe=True).code == NOT_RUNNING
    assert agent.start().code == OK
    second = agent.process
    assert second.pid != first.pid
    for _ in range(2):
        assert agent.do("stop").code == OK
        assert not alive(second)
        assert agent.do("monitor").code == NOT_RUNNING
    assert "stopped by SIGTERM" in (agent.folder / "log").read_text()


@pytest.mark.parametrize(
    "patience",
    [{"stop_timeout": 1}, {"stop_timeout": 600, "CRM_meta_timeout": 7000}],
    ids=["of the resource", "of the operation"],
)
def test_a_hanging_agent_fails_and_is_ended_in_time(
    agent: Resource, patience: dict[str, object]
) -> None:
    assert agent.start().code == OK
    process = agent.process
    process.suspend()
    done = agent.do("monitor", status_timeout=1)
    assert (done.code, "cannot be asked: no answer within 1 s" in done.said) == (FAILED, True), done
    began = time.monotonic()
    done = agent.do("stop", **patience)
    assert (done.code, "within 1 s: killed" in done.said) == (OK, True), done
    assert time.monotonic() - began < LONGEST_S  # less than the resource would give it
    assert not alive(process)
    assert agent.do("monitor").code == NOT_RUNNING


def test_a_foreign_process_is_left_alone(agent: Resource) -> None:
    pidfile = agent.folder / "pid"
    with Program(["/bin/sleep", "600"], agent.folder) as other:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        before = f"{other.pid}\nstarted 12345 in {boot}\n"  # an agent had its id once
        for said in (before, f"{other.pid}\n", "-1\n", "x\n", ""):
            pidfile.write_text(said)
            assert agent.do("monitor").code == NOT_RUNNING
            assert agent.do("stop").code == OK
            assert not pidfile.exists()
        pidfile.write_text(before)
        assert agent.start().code == OK
        assert agent.process.pid != other.pid
        assert pidfile.read_text().splitlines()[1].endswith(f" in {boot}")
        assert agent.do("stop").code == OK
        assert other.poll() is None


def test_two_starts_at_once_start_a_single_agent(agent: Resource) -> None:
    starts = [agent.begin() for _ in range(2)]
    assert [start.wait(LONGEST_S) for start in starts] == [OK, OK]
    running = [p for start in starts for p in start.tree()]
    assert running == [agent.process]


def test_an_agent_ending_at_once_says_why(site: Site, agent: Resource) -> None:
    site.config(agent.folder, guests="none-such")
    done = agent.start()
    assert (done.code, "ended at once: holdfast-agent: " in done.said) == (FAILED, True), done
    assert "none-such" in done.said
    assert agent.do("stop").code == OK


def test_beside_a_foreign_agent_none_is_started(agent: Resource) -> None:
    binary, config = (str(agent.parameters[name]) for name in ("binary", "config"))
    with Program([binary, "--config-file", config], agent.folder, name="other") as other:
        ask = [CLIENT, "guest", "status", "--config-file", config]
        other.wait_until(lambda: subprocess.run(ask, check=False).returncode == 0)
        done = agent.start()
        assert (done.code, "Pacemaker did not start" in done.said) == (FAILED, True), done
        assert agent.do("monitor").code == NOT_RUNNING
        assert agent.do("stop").code == OK
        assert other.poll() is None


def test_an_agent_can_run_as_another_user(site: Site, agent: Resource) -> None:
    if os.geteuid() != 0:
        without("only root can run it as somebody else")
    nobody = pwd.getpwnam("nobody")
    os.chown(agent.folder, nobody.pw_uid, nobody.pw_gid)
    file = world(agent.folder)
    for path in (file.parent, *file.parent.iterdir()):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    site.config(agent.folder, guests_address=f"{HOST}@{file}")
    done = agent.start(user="nobody")
    assert done.code == OK, done
    assert agent.process.uids().real == nobody.pw_uid
    assert agent.process.gids().real == nobody.pw_gid
    assert agent.do("stop").code == OK


def test_an_agent_without_answers_for_too_long_fails(site: Site, agent: Resource) -> None:
    file = world(agent.folder)
    site.config(agent.folder, guests_address=f"{HOST}@{file}")
    assert agent.start().code == OK
    with contextlib.closing(sqlite3.connect(file)) as db:
        db.execute("ALTER TABLE hosts RENAME TO away")
        done = eventually(lambda: "not well" in (done := agent.do("monitor")).said and done)
        assert (done.code, "WARNING" in done.said) == (OK, True), done
        time.sleep(1)
        assert agent.do("monitor", deaf_timeout=0).code == OK
        done = agent.do("monitor", deaf_timeout=1)
        assert (done.code, "ocf-exit-reason" in done.said) == (FAILED, True), done
        db.execute("ALTER TABLE away RENAME TO hosts")
        done = eventually(lambda: "not well" not in (done := agent.do("monitor")).said and done)
        assert done.code == OK, done
        assert not (agent.folder / "pid.deaf").exists()


# the expectation


@pytest.fixture
def extra(site: Site) -> Iterator[Server]:
    """A server of our host that is nobody else's, and is gone at the end."""
    made = site.sim.boot("extra", "demo", HOST, 1, 64, 1)
    yield made
    file = str(site.folder / "state" / "sim.db")
    with contextlib.closing(SimCloud(file, SystemClock(), seed=1)) as cloud:
        cloud.servers.delete(made.id)


def test_a_missing_guest_fails_the_check_after_enough_samples(
    site: Site, expectation: Resource, extra: Server
) -> None:
    assert expectation.do("monitor").code == NOT_RUNNING
    assert expectation.do("start").code == OK
    assert expectation.do("monitor").code == OK
    site.sim.lose_server(extra.id)
    done = expectation.do("monitor")
    assert (done.code, "WARNING" in done.said) == (OK, True), done
    done = expectation.do("monitor")
    assert (done.code, f"should: {extra.name} missing" in done.said) == (FAILED, True), done
    assert expectation.do("monitor", differing_limit=0).code == OK
    assert expectation.do("monitor", probe=True).code == OK
    assert expectation.do("start").code == OK
    for _ in range(2):
        assert expectation.do("stop").code == OK
        assert expectation.do("monitor").code == NOT_RUNNING


def test_an_unreachable_admin_socket_fails_the_check_only_when_lasting(
    site: Site, expectation: Resource
) -> None:
    away = site.config(expectation.folder, "away.conf", api_url=f"http://127.0.0.1:{free_port()}")
    assert expectation.do("start").code == OK
    for times in (1, 2):
        done = expectation.do("monitor", config=away)
        assert (done.code, f"{times} of 3 times" in done.said) == (OK, True), done
    done = expectation.do("monitor", config=away)
    assert (done.code, "cannot be asked" in done.said) == (FAILED, True), done
    assert expectation.do("monitor", config=away, unasked_limit=0).code == OK
    assert expectation.do("stop").code == OK


def test_a_crash_of_the_client_is_no_failure_of_the_service(
    agent: Resource, expectation: Resource
) -> None:
    """Such as a Python that finds a module of ours no more: it ends with 1."""
    broken = agent.folder / "broken"
    broken.write_text("#!/bin/sh\necho 'ModuleNotFoundError: holdfast' >&2\nexit 1\n")
    broken.chmod(0o755)
    assert expectation.do("start").code == OK
    done = expectation.do("monitor", client=broken, differing_limit=1)
    assert (done.code, "cannot be asked" in done.said) == (OK, True), done
    assert agent.start().code == OK
    done = agent.do("monitor", client=broken)
    assert (done.code, "cannot be asked: ModuleNotFound" in done.said) == (FAILED, True), done
    assert agent.do("monitor").code == OK
    assert agent.do("stop").code == OK
    assert expectation.do("stop").code == OK


def without(what: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


def world(folder: Path) -> Path:
    """A cloud for one test alone, with our host."""
    file = folder / "world" / "sim.db"
    with contextlib.closing(Simulator(str(file), SystemClock())) as sim:
        sim.add_host(HOST)
    return file
