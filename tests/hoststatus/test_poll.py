# SPDX-License-Identifier: Apache-2.0
"""Looking round: what dies in the cloud is found in time, and a bad monitor harms nobody."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from holdfast.hoststatus import poll
from holdfast.hoststatus.status import DOWN, RETURNING, SUSPECT, UP, StatusReport
from holdfast.model.errors import DriverError
from holdfast.ports.cloud import Cloud
from tests.hoststatus.site import Gate, Hurry, Own, Site
from tests.processes import eventually


def test_a_host_that_dies_is_out_of_use_within_one_interval_and_repair_is_armed(
    site: Site,
) -> None:
    site.enrol("cmp-1", "cmp-2")
    site.sim.change(service_down_s=60.0)
    site.run(100)
    assert (site.states(), site.repairs()) == ({"cmp-1": UP, "cmp-2": UP}, 0)
    site.sim.fail_host("cmp-1")
    site.run(59)
    assert site.states()["cmp-1"] == UP
    site.run(1 + 30)
    assert site.states() == {"cmp-1": DOWN, "cmp-2": UP}
    assert site.free() == {"cmp-2"}
    assert site.repairs() == 1
    assert site.rung == 1
    site.run(600)
    assert site.repairs() == 1


def test_a_bad_poll_makes_a_host_suspect_and_the_next_poll_comes_soon(site: Site) -> None:
    site.enrol("cmp-1")
    site.run(1)
    site.sim.fail_host("cmp-1")
    site.run(28)
    assert site.states() == {"cmp-1": SUSPECT}
    assert site.free() == {"cmp-1"}
    site.sim.recover_host("cmp-1")
    site.run(2)
    assert site.states() == {"cmp-1": UP}
    assert site.repairs() == 0


def test_a_returned_host_is_used_again_after_its_time_and_repair_is_armed(
    site: Site,
) -> None:
    site.enrol("cmp-1")
    site.sim.fail_host("cmp-1")
    site.run(10)
    site.sim.recover_host("cmp-1")
    site.run(60)
    assert site.states() == {"cmp-1": RETURNING}
    assert site.free() == set()
    site.run(500)
    assert site.states() == {"cmp-1": RETURNING}  # healthy for long enough, but damped
    site.run(60)
    assert site.states() == {"cmp-1": UP}
    assert site.free() == {"cmp-1"}
    assert site.repairs() == 2


def test_a_host_that_flaps_every_few_seconds_causes_one_repair_per_window(site: Site) -> None:
    site.enrol("cmp-1")
    site.settings.poll_interval_s, site.settings.flap_holdoff_s = 2.0, 60.0
    site.settings.healthy_after_s = 1.0
    for _ in range(16):  # 128 s
        site.sim.fail_host("cmp-1")
        site.run(4)
        site.sim.recover_host("cmp-1")
        site.run(4)
    with site.store.database.read() as conn:
        said = conn.exec_driver_sql("SELECT at, sentence FROM audit ORDER BY id").all()
    outs = [datetime.fromisoformat(at) for at, one in said if "takes no reservations" in one]
    assert len(outs) >= 2
    assert all(later - one >= timedelta(seconds=60) for one, later in pairwise(outs))
    assert site.repairs() <= 2 * len(outs)  # for a return it is armed as well


def test_a_forced_down_service_counts_at_the_first_poll(site: Site) -> None:
    site.enrol("cmp-1")
    site.cloud.services.force_down("cmp-1")
    site.run(0.05)
    assert site.states() == {"cmp-1": DOWN}
    (one,) = site.store.host_status.watched()
    assert one.status.why == "nova:service says down: forced down"


def test_maintenance_is_no_failure_unless_the_site_says_so(site: Site) -> None:
    site.enrol("cmp-1")
    site.cloud.services.disable("cmp-1", "new fans")
    site.run(100)
    assert site.states() == {"cmp-1": UP}
    site.settings.disabled_is_failure = True
    site.run(30)
    assert site.states() == {"cmp-1": DOWN}


def test_a_cloud_without_an_answer_makes_no_host_fail(site: Site) -> None:
    site.enrol("cmp-1")
    site.run(1)
    site.sim.change(down=True)
    site.run(200)
    assert site.states() == {"cmp-1": UP}
    assert site.count.failures["compute", "raised"] >= 5
    site.sim.change(down=False)
    site.sim.fail_host("cmp-1")
    site.run(32)
    assert site.states() == {"cmp-1": DOWN}


def test_many_hosts_failing_together_are_a_single_decision(site: Site) -> None:
    names = [f"cmp-{number}.example.org" for number in range(40)]
    site.enrol(*names, "well")
    for name in names:
        site.sim.fail_host(name)
    site.run(10)
    assert set(site.states().values()) == {DOWN, UP}
    assert site.free() == {"well"}
    assert site.repairs() == 1


def test_polls_without_a_change_write_nothing(site: Site) -> None:
    site.enrol("cmp-1")
    site.run(100)
    before = site.store.ledger.host("cmp-1")
    with site.store.database.read() as conn:
        kept = conn.exec_driver_sql("SELECT status FROM hosts").all()
    site.run(200)
    with site.store.database.read() as conn:
        assert conn.exec_driver_sql("SELECT status FROM hosts").all() == kept
    assert site.store.ledger.host("cmp-1") == before


def test_the_interval_is_read_anew_each_turn(site: Site) -> None:
    site.enrol("cmp-1")
    site.run(280)
    assert site.sim.calls()["services.list"] == 10
    site.settings.poll_interval_s = 5.0
    site.run(28 + 30)
    assert 29 <= site.sim.calls()["services.list"] <= 31


def test_with_polling_off_a_returning_host_is_used_again_by_time_alone(site: Site) -> None:
    site.enrol("cmp-1")
    site.sim.fail_host("cmp-1")
    site.run(10)
    site.sim.recover_host("cmp-1")
    site.run(60)
    site.settings.poll = False
    site.run(60)
    looked = site.sim.calls()["services.list"]
    site.run(600)
    assert site.sim.calls()["services.list"] == looked
    assert site.states() == {"cmp-1": UP}
    site.settings.poll = True
    site.sim.fail_host("cmp-1")
    site.run(10)
    assert site.states() == {"cmp-1": DOWN}


def test_of_several_managers_a_single_manager_polls_at_a_time(site: Site) -> None:
    site.enrol("cmp-1")
    site.run(270, site.loop, site.manager("m2"), site.manager("m3"))
    assert site.sim.calls()["services.list"] == 10


def test_short_and_full_names_are_the_same_host(build: Callable[..., Site]) -> None:
    def states(_cloud: Cloud, at: datetime) -> list[StatusReport]:
        forced = {"source": "x", "verdict": DOWN, "at": at, "decisive": True}
        names = ("CMP-1", "cmp-2.example.org", "cmp-3.example.net", "twin", "nobody")
        return [StatusReport(host=name, **forced) for name in names]

    site = build(Own(states=states))
    site.enrol("cmp-1.example.org", "cmp-2", "cmp-3.example.org", "twin.a", "twin.b")
    site.run(1)
    failed = {name for name, state in site.states().items() if state == DOWN}
    assert failed == {"cmp-1.example.org", "cmp-2"}


def boom(*_: Any) -> list[StatusReport]:
    raise RuntimeError("no fuse left")


def away(*_: Any) -> list[StatusReport]:
    raise DriverError("ipmi", "no answer", retryable=True)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (boom, "RuntimeError: no fuse left"),
        (away, "ipmi: no answer"),
        (lambda *_: [("cmp-1", "down")], "a monitor answers with reports, not with tuple"),
        (lambda *_: 7, "'int' object is not iterable"),
    ],
)
def test_a_raising_monitor_harms_no_other_and_is_logged_once(
    build: Callable[..., Site], caplog: pytest.LogCaptureFixture, states: Any, said: str
) -> None:
    site = build(Own(states=states))
    site.enrol("cmp-1")
    site.sim.fail_host("cmp-1")
    with caplog.at_level(logging.ERROR, "holdfast.hoststatus"):
        site.run(100)
    assert site.states() == {"cmp-1": DOWN}
    assert site.count.failures["own", "raised"] >= 4
    assert site.count.looks["compute"] >= 4
    lines = [
        record.getMessage() for record in caplog.records if "monitor own" in record.getMessage()
    ]
    assert len(lines) == 1
    assert said in lines[0]


def test_a_hanging_monitor_harms_no_other_and_is_not_called_until_its_return(
    build: Callable[..., Site], caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    stuck = Own(states=gate)
    waits = Hurry("poll compute")
    site = build(stuck, waits=waits)
    site.enrol("cmp-1")
    site.sim.fail_host("cmp-1")

    def look() -> None:
        site.clock.advance(1)
        site.store.host_status.expedite(poll.POLL)
        site.loop.cycle()

    with caplog.at_level(logging.INFO, "holdfast.hoststatus"):
        for _ in range(3):
            look()
        assert site.states() == {"cmp-1": DOWN}
        assert stuck.calls["states"] == 1
        assert dict(site.count.failures) == {("own", "hung"): 1, ("own", "busy"): 2}
        gate.open.set()
        waits.others.add("poll own")
        eventually(lambda: look() or site.count.looks["own"] >= 1)
    about = [
        record.getMessage() for record in caplog.records if "monitor own" in record.getMessage()
    ]
    assert [("not returned" in line, "well again" in line) for line in about] == [
        (True, False),
        (False, True),
    ]


def test_a_stopping_manager_does_not_wait_for_a_hanging_monitor(
    build: Callable[..., Site],
) -> None:
    gate, hangs = Gate(), threading.Event()

    def states(*_: Any) -> list[StatusReport]:
        hangs.set()
        return gate()

    site = build(Own(states=states), poll_timeout_s=1e6)
    stopping = threading.Thread(target=lambda: hangs.wait() and site.watch.stop.set(), daemon=True)
    stopping.start()
    site.loop.cycle()  # it would take as long as the test may
    stopping.join()
    assert site.count.failures == {}
    gate.open.set()


def test_a_disabled_monitor_is_not_polled(build: Callable[..., Site]) -> None:
    idle = Own("idle")
    site = build(idle)
    site.run(60)
    assert idle.calls["states"] == 0
    site.settings.enabled = ["idle"]
    site.run(60)
    assert idle.calls["states"] >= 1
    looked = site.sim.calls()["services.list"]
    site.run(60)
    assert site.sim.calls()["services.list"] == looked
