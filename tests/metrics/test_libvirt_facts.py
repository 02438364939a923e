# SPDX-License-Identifier: Apache-2.0
"""Reading what guests are: one that does not answer is left, and takes nothing from the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

import libvirt
from holdfast.drivers.libvirt.connection import ConnectionPool
from holdfast.drivers.libvirt.metrics import MOST_LATE, Answer, Reader
from tests.processes import eventually


@dataclass
class Daemon:
    """Answers of each guest; who is in `slow` answers when that is set, who is in `fails` never."""

    slow: dict[str, threading.Event] = field(default_factory=dict)
    fails: dict[str, tuple[int, int]] = field(default_factory=dict)  # code and domain
    asked: list[str] = field(default_factory=list)

    def isAlive(self) -> bool:
        return True

    def close(self) -> None: ...

    def lookupByUUIDString(self, uuid: str) -> Domain:
        self.asked.append(uuid)
        if uuid in self.slow:
            self.slow[uuid].wait()
        if uuid in self.fails:
            error = libvirt.libvirtError("as if")
            code, where = self.fails[uuid]
            error.err = (code, where, "as if", 2, None, None, None, -1, -1)
            raise error
        return Domain(uuid)


@dataclass
class Domain:
    uuid: str

    def ID(self) -> int:
        return 7

    def XMLDesc(self) -> str:
        return f"<{self.uuid}/>"

    def state(self) -> tuple[int, int]:
        return libvirt.VIR_DOMAIN_RUNNING, 1


class Reading:
    def __init__(self, within_s: float = 60.0) -> None:
        self.daemon = Daemon()
        self.took: dict[str, Answer | None] = {}
        pool = ConnectionPool(lambda: self.daemon, 6)
        self.reader = Reader(pool, self.took.__setitem__, within_s=within_s)

    def read(self, *uuids: str) -> dict[str, str | None]:
        for uuid in uuids:
            self.reader.again(uuid)
        self.reader.turn()
        return {uuid: answer.xml if answer else None for uuid, answer in self.took.items()}


@pytest.fixture
def rule_manager() -> Reading:
    return Reading()


def until(rule_manager: Reading, true: Callable[[], object]) -> None:
    def turn() -> object:
        rule_manager.reader.turn()
        return true()

    eventually(turn, every=0.01)


def test_a_late_guest_is_asked_once_and_its_answer_is_used() -> None:
    rule_manager = Reading(within_s=0.2)
    rule_manager.daemon.slow["a"] = threading.Event()
    rule_manager.read("a", "b", "c")
    until(rule_manager, lambda: rule_manager.took.get("b") and rule_manager.took.get("c"))
    rule_manager.read("a", "d")
    until(rule_manager, lambda: rule_manager.took.get("d"))
    assert rule_manager.read() == {"a": None, "b": "<b/>", "c": "<c/>", "d": "<d/>"}
    assert rule_manager.daemon.asked.count("a") == 1
    assert rule_manager.reader.is_behind
    rule_manager.daemon.slow["a"].set()
    until(
        rule_manager, lambda: rule_manager.daemon.asked.count("a") == 2
    )  # as it was asked for again meanwhile
    until(rule_manager, lambda: rule_manager.took["a"] is not None)
    assert not rule_manager.reader.is_behind


def test_many_hanging_guests_do_not_use_up_all_connections() -> None:
    rule_manager = Reading(within_s=0.2)
    names = [f"g{n}" for n in range(10)]
    rule_manager.daemon.slow = {name: threading.Event() for name in names}
    for _ in range(3):
        rule_manager.read(*names)
    until(rule_manager, lambda: len(rule_manager.daemon.asked) == MOST_LATE)
    for event in rule_manager.daemon.slow.values():
        event.set()
    until(rule_manager, lambda: all(rule_manager.took.get(name) for name in names))


def test_unreadable_facts_are_logged_once_and_retried(
    rule_manager: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    rule_manager.daemon.fails["a"] = (libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_FROM_QEMU)
    for _ in range(3):
        assert rule_manager.read("a", "b") == {"a": None, "b": "<b/>"}
    assert [record.name for record in caplog.records].count(Reader.__module__) == 1
    del rule_manager.daemon.fails["a"]
    assert rule_manager.read()["a"] == "<a/>"


def test_facts_of_a_guest_that_is_gone_are_not_requested_again(rule_manager: Reading) -> None:
    rule_manager.daemon.fails["a"] = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_FROM_QEMU)
    rule_manager.read("a")
    rule_manager.read()
    assert rule_manager.daemon.asked == ["a"]
    assert not rule_manager.reader.is_behind


def test_after_a_lost_connection_no_other_guest_is_asked_and_no_guest_is_forgotten(
    rule_manager: Reading,
) -> None:
    rpc = (libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_FROM_RPC)
    rule_manager.daemon.fails = {"a": rpc, "b": rpc}
    with pytest.raises(libvirt.libvirtError):
        rule_manager.read("a", "b")
    assert len(rule_manager.daemon.asked) == 1
    rule_manager.daemon.fails = {}
    assert rule_manager.read() == {"a": "<a/>", "b": "<b/>"}
