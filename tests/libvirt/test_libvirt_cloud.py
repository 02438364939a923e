# SPDX-License-Identifier: Apache-2.0
"""A handful of KVM machines: three libvirtd, real guests on shared disks, the recovery of ours."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.drivers.libvirt import tasks
from holdfast.model.errors import Conflict, DriverError, NotFound
from tests.conftest import serve
from tests.leases.house import copy, make_template
from tests.libvirt.plain_house import Patient, PlainHouse, Watchman, connect
from tests.processes import eventually
from tests.servers.kvm import Kvm

if TYPE_CHECKING:
    from holdfast.drivers.libvirt.cloud import LibvirtCloud

A, B, C = Kvm.names


@pytest.fixture(scope="module")
def machines() -> Iterator[Kvm]:
    yield from serve(Kvm())


@pytest.fixture
def kvm(machines: Kvm) -> Iterator[Kvm]:
    yield machines
    machines.restore()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for something waits for its end, as far as his settings let him."""
    monkeypatch.setattr(tasks, "ACCEPT_S", 60.0)


@pytest.fixture
def cloud(kvm: Kvm, tmp_path: Path) -> Iterator[LibvirtCloud]:
    made = connect(kvm, tmp_path / "libvirt.db", Patient)
    yield made
    made.close()


@pytest.fixture
def brisk(kvm: Kvm, tmp_path: Path) -> Iterator[LibvirtCloud]:
    """One that gives a host the time that it has by default, for hosts that hang."""
    made = connect(kvm, tmp_path / "libvirt.db")
    yield made
    made.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("plain-template"))


@pytest.fixture
def house(kvm: Kvm, template: Path, tmp_path: Path) -> Iterator[PlainHouse]:
    made = PlainHouse(copy(template, tmp_path / "house"), kvm)
    made.segment(*Kvm.names)
    yield made
    made.close()


def dies(cloud: LibvirtCloud, kvm: Kvm, guest: str) -> None:
    """Killed, and its host has seen it."""
    kvm.kill(guest)
    eventually(lambda: cloud.servers.show(guest).status == "SHUTOFF", every=0.02)


def seen_dead(cloud: LibvirtCloud, kvm: Kvm, host: str) -> None:
    """The host has lost its power, and that is known."""
    cloud.services.list()
    kvm.cut(host)
    cloud.services.force_down(host)


# recovery, from the report to the end


def test_a_killed_guest_is_started_again_and_the_third_time_on_another_host(
    kvm: Kvm, house: PlainHouse
) -> None:
    house.recovery.guest_restarts_in_place = 2
    guest, cloud = kvm.boot(A, "web"), house.m.cloud
    cloud.services.list()
    with Watchman(kvm):
        for where in ([A], [A], [B, C]):
            dies(cloud, kvm, guest)
            report = house.report_guest(A, guest)
            house.until(lambda: house.incident(report).status == "recovered")  # noqa: B023
            (now,) = kvm.runs(guest)
            assert now in where
    assert "it died 3 times" in house.incident(report).sentence
    assert (cloud.servers.show(guest).host, kvm.domain(A, guest)) == (now, "missing")
    dies(cloud, kvm, guest)
    report = house.report_guest(now, guest)
    house.until(lambda: house.incident(report).status == "failed")
    assert "keeps dying" in house.incident(report).sentence
    assert kvm.runs(guest) == []


@pytest.mark.parametrize("died", ["host", "daemon"])
def test_guests_of_a_dead_host_run_elsewhere_once_and_stay_there_when_it_returns(
    kvm: Kvm, house: PlainHouse, died: str
) -> None:
    """Also where only its libvirtd died and its guests live: it is fenced first."""
    cloud = house.m.cloud
    web, db, idle, other = (
        kvm.boot(host, name) for host, name in ((A, "web"), (A, "db"), (A, "idle"), (B, "other"))
    )
    kvm.autostart(A, db)  # its host starts it when it returns: the lock on its disk says no
    cloud.servers.stop(idle)
    cloud.services.list()
    with Watchman(kvm):
        kvm.cut(A) if died == "host" else kvm.machines[A].lose_daemon()
        report = house.report(A)
        house.until(lambda: house.incident(report).status == "recovered")
        assert kvm.runs(other) == [B]
        for guest in (web, db):
            (host,) = kvm.runs(guest)
            assert host != A
            assert cloud.servers.show(guest).host == host
        assert kvm.runs(idle) == []
        where = {guest: cloud.servers.show(guest).host for guest in (web, db, idle)}
        assert kvm.domain(str(where[idle]), idle) == "off"
        moves = cloud.moves.migrations(source_host=A)
        assert sorted((move.server_id, move.status) for move in moves) == sorted(
            (guest, "done") for guest in where
        )
        kvm.switch_on(A)
        house.until(lambda: _usable(cloud, A))
        assert [kvm.domain(A, guest) for guest in where] == ["missing"] * 3
        assert "lock" in (kvm.folder / "cache/libvirt/qemu/log/db.log").read_text()
        assert {guest: cloud.servers.show(guest).host for guest in where} == where
        assert [kvm.runs(guest) for guest in (web, db)] == [[where[web]], [where[db]]]


def _usable(cloud: LibvirtCloud, host: str) -> bool:
    (service,) = [one for one in cloud.services.list() if one.host == host]
    return service.state == "up" and service.enabled


# what the driver promises


def test_a_guest_is_not_evacuated_while_its_host_may_run_it(kvm: Kvm, cloud: LibvirtCloud) -> None:
    guest = kvm.boot(A, "web")
    cloud.services.list()
    with pytest.raises(Conflict, match="force it down"):
        cloud.moves.evacuate(guest, B)
    cloud.services.force_down(A)
    with pytest.raises(Conflict, match=f"runs on {A}.*fence it"):
        cloud.moves.evacuate(guest, B)
    assert cloud.moves.migrations(source_host=A) == []
    assert kvm.runs(guest) == [A]
    with pytest.raises(Conflict, match="where it is now"):
        cloud.moves.evacuate(guest, A)
    with pytest.raises(NotFound, match="nobody"):
        cloud.moves.evacuate(guest, "nobody")


def test_a_guest_on_a_disk_that_is_not_shared_stays(kvm: Kvm, cloud: LibvirtCloud) -> None:
    local = kvm.folder / "local.raw"
    guest, lost = kvm.boot(A, "local", disk=local), kvm.boot(A, "lost")
    seen_dead(cloud, kvm, A)
    with pytest.raises(Conflict, match=r"disk vda, .*local.raw, is in none of \[libvirt\] shared"):
        cloud.moves.evacuate(guest, as_it_was=True)
    (kvm.shared / "lost.raw").unlink()  # shared by name, and not there
    cloud.moves.evacuate(lost, B, as_it_was=True)
    assert (cloud.servers.show(lost).status, cloud.servers.show(lost).host) == ("ERROR", A)
    (move,) = cloud.moves.migrations(source_host=A)
    assert (move.status, move.dest_host) == ("failed", B)
    assert kvm.domain(B, lost) == "missing"
    assert kvm.runs(lost) == kvm.runs(guest) == []


def test_a_move_without_room_fails_and_can_be_made_again(kvm: Kvm, cloud: LibvirtCloud) -> None:
    guest = kvm.boot(A, "web")
    cloud.services.list()
    kvm.cut(A)
    for host in (B, C):
        cloud.services.disable(host, "for a test")
    cloud.services.force_down(A)
    cloud.moves.evacuate(guest)
    assert cloud.servers.show(guest).status == "ERROR"
    cloud.services.enable(C)
    cloud.moves.evacuate(guest)  # one in ERROR ends running
    seen = cloud.servers.show(guest)
    assert (seen.status, seen.host, kvm.runs(guest)) == ("ACTIVE", C, [C])
    moves = cloud.moves.migrations(source_host=A)
    assert [(move.status, move.dest_host) for move in moves] == [("failed", None), ("done", C)]


def test_a_moved_guest_that_runs_on_its_old_host_too_is_stopped_there(
    kvm: Kvm, cloud: LibvirtCloud
) -> None:
    """Where nothing locks its disks: here a second one that has none."""
    guest = kvm.boot(A, "web", disk=None)
    kvm.let_run_twice(A, guest)
    seen_dead(cloud, kvm, A)
    cloud.moves.evacuate(guest, B, as_it_was=True)
    assert kvm.runs(guest) == [B]
    with pytest.raises(Conflict, match="restart it first"):
        cloud.services.unforce(A)
    kvm.switch_on(A)
    kvm.start(A, guest)
    assert kvm.runs(guest) == [A, B]
    eventually(lambda: _unforced(cloud, A), every=0.2)
    assert (kvm.runs(guest), kvm.domain(A, guest)) == ([B], "missing")


def _unforced(cloud: LibvirtCloud, host: str) -> bool:
    try:
        cloud.services.unforce(host)
    except Conflict:
        return False
    return True


KILLED = """
import os, signal, sys
from holdfast.drivers.libvirt import cloud, settings, tasks
from holdfast.runtime.clock import SystemClock

def die(): os.kill(os.getpid(), signal.SIGKILL)
real = tasks.start_domain
def start(conn, server_id):
    if sys.argv[1] == "before":
        die()
    real(conn, server_id)
    die()
tasks.start_domain = start
settings.Settings.poll_timeout_s = 30.0  # however busy the machine
tasks.ACCEPT_S = 60.0
hosts = tuple(settings.Host(*one.split("=", 1)) for one in sys.argv[5:])
made = settings.Settings(hosts, sys.argv[2], (sys.argv[3],), call_timeout_s=240.0)
cloud.LibvirtCloud(made, SystemClock()).moves.evacuate(sys.argv[4], "cmp-2", as_it_was=True)
"""


def killed_moving(kvm: Kvm, state: Path, guest: str, when: str) -> None:
    """A manager moves it to the second host and dies before, or after, it is started there."""
    hosts = [f"{host.name}={host.uri}" for host in kvm.hosts]
    words = [when, str(state), str(kvm.shared), guest, *hosts]
    done = subprocess.run([sys.executable, "-c", KILLED, *words], timeout=180, check=False)
    assert done.returncode == -9


def time_is_over(state: Path) -> None:
    """As if so long had passed that whoever moves a guest must have ended."""
    with contextlib.closing(sqlite3.connect(state)) as db, db:
        db.execute("UPDATE guests SET until = 0 WHERE task IS NOT NULL")


@pytest.mark.parametrize(("when", "ends"), [("before", "failed"), ("after", "done")])
def test_a_manager_that_is_killed_in_the_middle_of_a_move_leaves_nothing_open(
    kvm: Kvm, cloud: LibvirtCloud, tmp_path: Path, when: str, ends: str
) -> None:
    guest = kvm.boot(A, "web")
    seen_dead(cloud, kvm, A)
    killed_moving(kvm, tmp_path / "libvirt.db", guest, when)
    (move,) = cloud.moves.migrations(source_host=A)
    assert (move.status, cloud.servers.show(guest).task_state) == ("running", "rebuilding")
    with pytest.raises(Conflict, match="rebuilding"):
        cloud.moves.evacuate(guest, C)
    time_is_over(tmp_path / "libvirt.db")
    assert [migration.status for migration in cloud.moves.migrations(source_host=A)] == [ends]
    if ends == "failed":
        assert kvm.domain(B, guest) == "missing"
        cloud.moves.evacuate(guest, C)
    seen = cloud.servers.show(guest)
    assert (seen.status, seen.task_state) == ("ACTIVE", None)
    assert kvm.runs(guest) == [seen.host]


def test_a_guest_whose_target_dies_too_goes_elsewhere_and_leaves_no_copy(
    kvm: Kvm, cloud: LibvirtCloud, tmp_path: Path
) -> None:
    guest = kvm.boot(A, "web")
    seen_dead(cloud, kvm, A)
    killed_moving(kvm, tmp_path / "libvirt.db", guest, "before")
    kvm.cut(B)
    cloud.services.force_down(B)
    time_is_over(tmp_path / "libvirt.db")  # and nobody can look what became of it
    assert [migration.status for migration in cloud.moves.migrations(source_host=A)] == ["running"]
    with pytest.raises(Conflict, match="still"):
        cloud.services.unforce(A)
    cloud.servers.reset(guest)
    cloud.moves.evacuate(guest)
    moves = cloud.moves.migrations(source_host=A)
    assert [(move.status, move.dest_host) for move in moves] == [("failed", B), ("done", C)]
    kvm.switch_on(B)
    assert kvm.domain(B, guest) == "off"
    eventually(lambda: _unforced(cloud, B), every=0.2)
    assert (kvm.domain(B, guest), kvm.runs(guest)) == ("missing", [C])


def test_a_move_that_was_given_up_while_its_target_hung_is_undone_there(
    kvm: Kvm, brisk: LibvirtCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.drivers.libvirt import tasks

    guest, cloud = kvm.boot(A, "web"), brisk
    seen_dead(cloud, kvm, A)
    define, hung = tasks.define_domain, kvm.machines[B]

    def hang(conn: object, xml: str) -> None:
        monkeypatch.undo()
        hung.pause()
        define(conn, xml)

    monkeypatch.setattr(tasks, "define_domain", hang)
    cloud.moves.evacuate(guest, B, as_it_was=True)
    assert cloud.servers.show(guest).task_state == "rebuilding"
    cloud.servers.reset(guest)
    cloud.moves.evacuate(guest, C)
    eventually(lambda: kvm.runs(guest) == [C], every=0.1)
    hung.resume()
    eventually(lambda: kvm.domain(B, guest) == "missing", every=0.1)
    eventually(lambda: {one.state for one in cloud.services.list()} == {"up", "down"}, every=0.1)
    eventually(lambda: cloud.servers.show(guest).status == "ACTIVE", every=0.1)
    assert (cloud.servers.show(guest).host, kvm.runs(guest)) == (C, [C])


def test_of_two_managers_that_move_a_guest_one_does(
    kvm: Kvm, cloud: LibvirtCloud, tmp_path: Path
) -> None:
    guest = kvm.boot(A, "web")
    seen_dead(cloud, kvm, A)
    with contextlib.closing(connect(kvm, tmp_path / "libvirt.db", Patient)) as other:
        wishes = [(cloud, B), (other, C), (cloud, C), (other, B)]

        def move(wish: tuple[LibvirtCloud, str]) -> str:
            try:
                wish[0].moves.evacuate(guest, wish[1], as_it_was=True)
            except Conflict:
                return "refused"
            return wish[1]

        with ThreadPoolExecutor() as pool:
            told = sorted(pool.map(move, wishes))
    (where,) = set(told) - {"refused"}
    assert told.count(where) == 1
    assert kvm.runs(guest) == [where]
    assert [migration.status for migration in cloud.moves.migrations(source_host=A)] == ["done"]


def test_a_frozen_host_costs_the_others_nothing_and_its_guests_are_known_all_the_same(
    kvm: Kvm, brisk: LibvirtCloud
) -> None:
    frozen, fine, cloud = kvm.boot(A, "frozen"), kvm.boot(B, "fine"), brisk

    def states() -> dict[str, str]:
        return {one.host: one.state for one in cloud.services.list()}

    eventually(lambda: set(states().values()) == {"up"}, every=0.2)
    with kvm.machines[A].paused():
        began = time.monotonic()
        seen = states()
        assert time.monotonic() - began < 60  # it is frozen for as long as we like
        assert seen[A] == "down"
        # those that are well may have got no processor for a while
        eventually(lambda: states() == {A: "down", B: "up", C: "up"}, every=0.2)
        began = time.monotonic()
        for _ in range(3):
            assert cloud.servers.show(fine).status == "ACTIVE"
            assert cloud.servers.show(frozen).host == A
            assert len(cloud.servers.list()) == 2
        # each of nine would wait three seconds for it
        assert time.monotonic() - began < 20
        with pytest.raises(DriverError) as refused:
            cloud.servers.stop(frozen)
        assert refused.value.retryable
    eventually(lambda: {one.state for one in cloud.services.list()} == {"up"}, every=0.2)
    cloud.servers.stop(frozen)
    eventually(lambda: cloud.servers.show(frozen).status == "SHUTOFF", every=0.1)


def test_a_daemon_that_is_away_is_a_matter_of_time(kvm: Kvm, cloud: LibvirtCloud) -> None:
    guest = kvm.boot(A, "web")
    cloud.services.list()
    kvm.machines[A].lose_daemon()
    with pytest.raises(DriverError, match=A) as refused:
        cloud.servers.stop(guest)
    assert refused.value.retryable
    seen = cloud.servers.show(guest)
    assert (seen.status, seen.task_state, kvm.runs(guest)) == ("ACTIVE", None, [A])
    kvm.machines[A].start()
    eventually(lambda: {one.state for one in cloud.services.list()} == {"up"}, every=0.1)
    cloud.servers.stop(guest)
    assert (cloud.servers.show(guest).status, kvm.runs(guest)) == ("SHUTOFF", [])


def test_what_only_a_larger_cloud_has_is_refused_for_good(kvm: Kvm, cloud: LibvirtCloud) -> None:
    guest = kvm.boot(A, "web")
    for wish in (
        lambda: cloud.pools.create("free", {}),
        lambda: cloud.slots.inventory(A, "CUSTOM_X"),
        lambda: cloud.addresses.create("net", "203.0.113.4", "red", ()),
        lambda: cloud.servers.suspend(guest),
        lambda: cloud.servers.snapshot(guest, "image"),
        lambda: cloud.servers.delete(guest),
    ):
        with pytest.raises(DriverError, match="plain libvirt") as refused:
            wish()
        assert not refused.value.retryable
    with pytest.raises(Conflict, match="virsh migrate"):
        cloud.moves.live_migrate(guest, B)
    assert (cloud.pools.list(), cloud.pools.find("free")) == ([], None)
    assert kvm.runs(guest) == [A]


def test_guests_that_people_make_move_and_remove_are_followed(
    kvm: Kvm, cloud: LibvirtCloud
) -> None:
    guest = kvm.boot(A, "web")
    assert cloud.servers.show(guest).host == A
    xml = kvm.definition(A, guest)
    kvm.remove(guest)
    with pytest.raises(NotFound, match=guest):
        cloud.servers.show(guest)
    kvm.define(B, xml)
    kvm.start(B, guest)
    assert [one.host for one in cloud.servers.list()] == [B]
