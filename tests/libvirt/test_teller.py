# SPDX-License-Identifier: Apache-2.0
"""Who hears never waits for who listens, and what waits is bounded."""

from __future__ import annotations

import logging
import threading
import time
import tracemalloc
from datetime import UTC, datetime

import pytest

from holdfast.drivers.libvirt.guests import MOST, Dispatcher
from holdfast.ports.guests import Event
from holdfast.runtime.clock import SystemClock
from tests.libvirt.ear import Ear
from tests.processes import eventually

AT = datetime(2026, 11, 16, 12, tzinfo=UTC)


def event(number: int) -> Event:
    return Event(f"u-{number}", "flood", "reboot", AT, detail=str(number))


def test_thirty_thousand_simultaneous_events_are_bounded_in_memory_and_the_loss_is_reported() -> (
    None
):
    go_on, full = threading.Event(), threading.Event()
    ear = Ear()
    teller = Dispatcher(ear, full.set, SystemClock())
    teller.start()
    teller.put(lambda _: go_on.wait(600) and None)
    tracemalloc.start()
    began = time.monotonic()
    for number in range(30_000):
        teller.put(lambda listener, number=number: listener.heard(event(number)))
    took_s = time.monotonic() - began
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took_s < 60, "putting never waits"
    assert kept_bytes < 10_000_000
    assert full.is_set()
    teller.put(lambda listener: listener.reconciled([], AT), always=True)
    go_on.set()
    eventually(lambda: ear.readings == [{}])
    numbers = [int(one.detail) for one in ear.events["flood"]]
    assert MOST - 1 <= len(numbers) <= MOST
    assert numbers == sorted(numbers)
    teller.close()


def test_a_listener_that_fails_hears_the_next_thing(caplog: pytest.LogCaptureFixture) -> None:
    ear = Ear()
    teller = Dispatcher(ear, lambda: None, SystemClock())
    teller.start()

    def fail(_listener: object) -> None:
        raise RuntimeError("no")

    with caplog.at_level(logging.ERROR):
        teller.put(fail)
        teller.put(lambda listener: listener.heard(event(1)))
        eventually(lambda: ear.events["flood"])
    teller.close()
    assert "RuntimeError: no" in caplog.text


def test_a_closed_dispatcher_delivers_nothing() -> None:
    ear = Ear()
    teller = Dispatcher(ear, lambda: None, SystemClock())
    teller.start()
    teller.close()
    teller.put(lambda listener: listener.heard(event(1)))
    time.sleep(0.05)
    assert not ear.events


def test_of_readings_only_the_latest_waits_and_comes_after_what_was_heard_before_it() -> None:
    """While nobody listens one may be made every second, of hundreds of guests."""
    go_on, said = threading.Event(), []
    teller = Dispatcher(Ear(), lambda: None, SystemClock())
    teller.start()
    teller.put(lambda _: go_on.wait(600) and None)
    for number in range(100):
        teller.put(lambda _, number=number: said.append(f"heard {number}"))
        teller.put_reading(lambda _, number=number: said.append(f"read {number}"))
    assert len(teller._waiting) <= 102
    go_on.set()
    eventually(lambda: "read 99" in said)
    assert said == [*(f"heard {number}" for number in range(100)), "read 99"]
    teller.put_reading(lambda _: said.append("read again"))
    eventually(lambda: said[-1] == "read again")
    teller.close()
