# SPDX-License-Identifier: Apache-2.0
"""Tidying up is work like any other: one row, done by one manager, again every hour."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from holdfast.db.retention import TidyStore
from holdfast.jobs import retention as tidying
from holdfast.jobs.job import never_ending
from holdfast.jobs.retention import TIDY, TidyUp
from holdfast.ports.ledger import Work
from tests.jobs.conftest import Shop, Toy


def keeps(operations: int = 30, audit: int = 365) -> SimpleNamespace:
    days = {"keep_operations_days": operations, "keep_audit_days": audit, "lost_agent_days": 7}
    return SimpleNamespace(**days)


def arm(shop: Shop) -> None:
    row = never_ending(TIDY, shop.clock.now())
    shop.apply(row.subject, Work(add=(row,)))


def done(shop: Shop, count: int) -> None:
    toy = Toy("toy", {"go": lambda _run: "went"})
    for _ in range(count):
        shop.add()
    shop.turn(toy)


def closed(shop: Shop) -> int:
    return len(shop.operations.list_all(status="done", limit=10_000))


def test_every_hour_old_rows_go(shop: Shop) -> None:
    done(shop, 3)
    shop.clock.advance(31 * 24 * 3600)
    done(shop, 2)
    arm(shop)
    kind = TidyUp(TidyStore(shop.store.database), keeps())
    assert shop.turn(kind) == 1000.0  # the poll interval; the row itself comes after an hour
    row = shop.get("tidy")
    assert closed(shop) == 2
    gone = "3 operations, 0 reports, 0 observations, 0 sentences of the audit, 0 hosts' samples"
    assert row.sentence == f"removed {gone}"
    assert row.next_try_at - shop.clock.now() == timedelta(hours=1)
    assert row.status == "retrying"
    shop.clock.advance(31 * 24 * 3600)
    shop.turn(kind)
    assert closed(shop) == 0


def test_nothing_goes_where_all_is_kept(shop: Shop) -> None:
    done(shop, 3)
    shop.clock.advance(3000 * 24 * 3600)
    arm(shop)
    shop.turn(TidyUp(TidyStore(shop.store.database), keeps(0, 0)))
    assert closed(shop) == 3


def test_rows_beyond_the_limit_of_a_run_are_deleted_soon_after(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidying, "PORTION", 2)
    monkeypatch.setattr(tidying, "MOST_PORTIONS", 2)
    done(shop, 7)
    shop.clock.advance(31 * 24 * 3600)
    arm(shop)
    kind = TidyUp(TidyStore(shop.store.database), keeps())
    shop.turn(kind)
    assert closed(shop) == 3
    assert shop.get("tidy").next_try_at - shop.clock.now() == timedelta(seconds=5)
    shop.clock.advance(5)
    shop.turn(kind)
    assert closed(shop) == 0


def test_alarms_of_lost_agents_end_with_a_notification(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def alarms(before: datetime, _most: int) -> int:
        asked.append((shop.clock.now() - before).total_seconds() / 86400)
        return 2

    tidy = TidyStore(shop.store.database)
    monkeypatch.setattr(tidy, "alarms", alarms)
    arm(shop)
    shop.turn(TidyUp(tidy, keeps()))
    assert asked == [7.0]
    assert shop.get("tidy").sentence.endswith("; ended 2 alarms of lost agents")
