# SPDX-License-Identifier: Apache-2.0
"""The simulated cloud is as nasty as it promises to be."""

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.drivers.small_cloud import HandClock

from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.drivers.sim.wire import Dice, decide_fault
from holdfast.drivers.sim.world import CALLS, Settings
from holdfast.model.errors import DriverError, InvalidInput
from holdfast.ports.cloud import Flavor
from holdfast.runtime.clock import SystemClock


def test_fate_is_decided_in_order_and_only_for_chosen_calls() -> None:
    lucky, unlucky = Dice(0.99, 0.99, 0.99, 0.5), Dice(0.0, 0.0, 0.0, 0.5)
    bad = Settings(failure_rate=0.5, lost_reply_rate=0.5, latency_s=1)
    assert decide_fault(bad, "a", 10, lucky) == decide_fault(Settings(latency_s=1), "a", 10, lucky)
    assert "failed" in decide_fault(bad, "a", 10, unlucky).refusal
    chosen = Settings(down=True, only_calls=("pools.list",))
    assert decide_fault(chosen, "pools.find", 10, unlucky).refusal == ""
    assert "down" in decide_fault(chosen, "pools.list", 10, unlucky).refusal
    jittery = Settings(latency_s=2, latency_jitter=0.5)
    assert decide_fault(jittery, "a", 10, Dice(0, 0, 0, 0.0)).wait_s == 1.0
    assert decide_fault(jittery, "a", 10, Dice(0, 0, 0, 0.75)).wait_s == 2.5
    done = decide_fault(Settings(hang_s=99), "a", 10, unlucky)
    not_done = decide_fault(Settings(hang_s=99), "a", 10, lucky)
    assert (done.refusal, done.wait_after) == ("", True)
    assert (not_done.wait_s, not_done.loss) == (10, "")


def test_a_cloud_that_is_down_fails_at_once_and_changes_nothing(
    cloud: SimCloud, sim: Simulator, clock: HandClock
) -> None:
    sim.change(down=True, latency_s=5)
    before = clock.monotonic()
    with pytest.raises(DriverError, match=r"sim cloud: pools\.create.*down") as error:
        cloud.pools.create("r1", {})
    assert error.value.retryable
    assert clock.monotonic() == before
    sim.change(down=False, latency_s=0)
    assert cloud.pools.list() == []
    assert sim.calls()["pools.create"] == 1


def test_a_lost_reply_comes_after_the_effect_and_a_failure_before(
    cloud: SimCloud, sim: Simulator
) -> None:
    pool = cloud.pools.create("r1", {})
    sim.change(lost_reply_rate=1, only_calls=["pools.add_host"])
    for _ in range(3):
        with pytest.raises(DriverError, match="no reply") as error:
            cloud.pools.add_host(pool.id, "cmp-1")
        assert error.value.retryable
    with pytest.raises(DriverError, match="no reply"):  # a refusal is lost as well
        cloud.pools.add_host(pool.id, "nobody")
    assert cloud.pools.list()[0].hosts == ("cmp-1",)
    assert len(sim.effects("pools.add_host", "r1/cmp-1")) == 1
    assert sim.calls()["pools.add_host"] == 4

    sim.change(lost_reply_rate=0, failure_rate=1, only_calls=[])
    with pytest.raises(DriverError, match="nothing was changed") as error:
        cloud.pools.remove_host(pool.id, "cmp-1")
    assert error.value.retryable
    sim.change(failure_rate=0)
    assert cloud.pools.list()[0].hosts == ("cmp-1",)


def test_latency_passes_outside_any_transaction(path: str, cloud: SimCloud, sim: Simulator) -> None:
    class Peeking(HandClock):
        peeked: list[float]

        def wait(self, wake_event: threading.Event, seconds: float) -> bool:
            # Another writer gets in while the call sleeps, or this raises.
            with sqlite3.connect(path, timeout=0) as other:
                other.execute("BEGIN IMMEDIATE")
            other.close()
            self.peeked.append(seconds)
            return super().wait(wake_event, seconds)

    slow = Peeking()
    slow.peeked = []
    sim.change(latency_s=2, latency_jitter=0.5)
    other = SimCloud(path, slow, seed=3)
    for n in range(5):
        other.pools.create(f"r{n}", {})
    other.close()
    assert len(set(slow.peeked)) == 5
    assert all(1 <= seconds <= 3 for seconds in slow.peeked)


def test_a_hanging_call_ends_at_its_timeout_with_or_without_the_effect(
    path: str, clock: HandClock, sim: Simulator
) -> None:
    cloud = SimCloud(path, clock, call_timeout_s=4, seed=5)
    sim.change(hang_s=600)
    for n in range(20):
        before = clock.monotonic()
        with pytest.raises(DriverError, match="no answer within 4 s") as error:
            cloud.pools.create(f"r{n}", {})
        assert error.value.retryable
        assert clock.monotonic() - before == pytest.approx(4)
    sim.change(hang_s=3)  # shorter than the timeout: slow, but fine
    made = len(cloud.pools.list())
    cloud.close()
    assert 0 < made < 20
    assert made == len(sim.effects("pools.create"))


def test_a_hanging_call_ends_on_time_by_the_real_clock_too(path: str) -> None:
    cloud = SimCloud(path, SystemClock(), call_timeout_s=0.2)
    sim = Simulator(path, SystemClock())
    sim.change(hang_s=600)
    began = time.monotonic()
    with pytest.raises(DriverError):
        cloud.hosts.list()
    assert time.monotonic() - began < 60
    cloud.close()
    sim.close()


def test_a_seed_replays_the_same_faults(tmp_path: Path) -> None:
    def run(name: str) -> list[str]:
        path = str(tmp_path / name)
        cloud, sim = SimCloud(path, HandClock(), seed=7), Simulator(path, HandClock())
        sim.change(failure_rate=0.3, lost_reply_rate=0.3)
        said = []
        for n in range(40):
            try:
                said.append(cloud.slots.create_group(f"g{n}", "affinity", "p").id)
            except DriverError as error:
                said.append(error.message)
        cloud.close()
        sim.close()
        return said

    first = run("one.db")
    assert first == run("two.db")
    assert {"failed, nothing was changed", "no reply"} <= {
        line.rsplit(": ", 1)[-1] for line in first
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("latency_s", -1),
        ("latency_s", "1"),
        ("hang_s", float("nan")),
        ("lost_reply_rate", 1.1),
        ("failure_rate", True),
        ("latency_jitter", 2),
        ("down", 1),
        ("only_calls", ["pools.fly"]),
        ("only_calls", "pools.list"),
        ("colour", "blue"),
    ],
)
def test_a_bad_setting_is_refused_by_name_and_nothing_changes(
    sim: Simulator, field: str, value: Any
) -> None:
    with pytest.raises(InvalidInput, match=field) as error:
        sim.change(delete_s=9, **{field: value})
    assert error.value.details["field"] == field
    assert sim.settings() == Settings()


def test_every_call_of_every_port_can_fail_and_is_counted_by_its_name(
    cloud: SimCloud, sim: Simulator
) -> None:
    sim.change(down=True)
    arguments: dict[str, tuple[Any, ...]] = {
        "pools.create": ("n", {}),
        "pools.set_metadata": ("1", {}),
        "flavors.create": (Flavor("f", "f", 1, 1, 1),),
        "slots.set_inventory": ("h", "c", 1, 1),
        "slots.create_group": ("g", "affinity", "p"),
        "addresses.create": ("n", "a", "p", []),
        "moves.migrations": (),
    }
    two = {"add_host", "remove_host", "snapshot", "lock", "disable", "inventory"}
    two |= {"images", "add_access", "remove_access", "rename"}
    for call in CALLS:
        port, method = call.split(".")
        args = arguments.get(call, ("a", "b") if method in two else ("a",))
        if method in ("list", "groups", "without_role"):
            args = ()
        named = {"source_host": "h"} if method == "migrations" else {}
        with pytest.raises(DriverError) as error:
            getattr(getattr(cloud, port), method)(*args, **named)
        assert error.value.retryable
    assert sim.calls() == dict.fromkeys(CALLS, 1)
