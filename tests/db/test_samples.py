# SPDX-License-Identifier: Apache-2.0
"""Numbers of hosts that somebody looks at, on every database: wanted for a while, kept for no
longer, and to look changes nothing."""

from __future__ import annotations

from array import array
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.db import Store
from holdfast.db import agents as module
from holdfast.db.tables import samples
from holdfast.metrics import history as model
from holdfast.metrics.history import POINTS, Hour, Line
from holdfast.model.errors import InvalidInput

MINUTE = timedelta(minutes=1)


def slot(store: Store) -> int:
    return model.slot_of(store.database.now().timestamp())


def some(begin: int, count: int = 1, guest: str = "g", value: float = 0.5) -> Hour:
    row = array("f", [value] * count)
    return Hour(begin, count, (Line("guest", guest, "web-1", values={"util_ratio": row}),))


def change(store: Store, host: str, **values: Any) -> None:
    with store.database.write() as conn:
        conn.execute(sa.update(samples).where(samples.c.host == host).values(**values))


def hosts(store: Store) -> set[str]:
    with store.database.read() as conn:
        return set(conn.execute(sa.select(samples.c.host)).scalars())


def test_a_read_of_samples_changes_and_requests_nothing(store: Store) -> None:
    seen = store.samples.samples_of("cmp-7")
    assert (seen.hour, seen.at, seen.wanted_until) == (model.NOTHING, None, None)
    assert not seen.fresh and not seen.wanted
    assert hosts(store) == set()
    assert store.samples.wanted() == {}
    assert store.samples.wanted_of("cmp-7") is None


def test_what_nobody_wanted_is_not_kept(store: Store) -> None:
    assert not store.samples.put("cmp-7", some(slot(store)))
    assert hosts(store) == set()


def test_a_viewer_gets_new_samples_and_the_agent_gets_the_known_ones(store: Store) -> None:
    until = store.samples.want("CMP-7.")
    assert abs(until - store.database.now() - module.WANTED) < MINUTE
    assert store.samples.wanted() == {"cmp-7": -1}
    assert store.samples.wanted_of("Cmp-7") == -1
    assert store.samples.samples_of("cmp-7").wanted
    now = slot(store)
    assert store.samples.put("cmp-7", some(now - 100, 90))
    assert store.samples.wanted_of("cmp-7") == now - 11
    assert store.samples.put("cmp-7", some(now - 10, 11))
    assert not store.samples.put("cmp-7", model.NOTHING)
    assert store.samples.wanted() == {"cmp-7": now}
    seen = store.samples.samples_of("CMP-7")
    assert seen.fresh
    assert (seen.hour.begin, seen.hour.end) == (now - 100, now + 1)
    assert list(seen.hour.lines[0].values["util_ratio"]) == [0.5] * 101
    assert store.samples.there(5) == ["cmp-7"]


def test_an_hour_is_kept_and_no_more(store: Store) -> None:
    store.samples.want("cmp-7")
    now = slot(store)
    store.samples.put("cmp-7", some(now - 500, 300))
    store.samples.put("cmp-7", some(now - 200, 201))
    assert (found := store.samples.samples_of("cmp-7").hour).points == POINTS
    assert found.end == now + 1


def test_a_request_for_samples_expires(store: Store) -> None:
    store.samples.want("cmp-7")
    store.samples.put("cmp-7", some(slot(store)))
    past = store.database.now() - MINUTE
    change(store, "cmp-7", wanted_until=past, at=past)
    assert store.samples.wanted() == {}
    assert store.samples.wanted_of("cmp-7") is None
    seen = store.samples.samples_of("cmp-7")
    assert seen.hour.points == 1
    assert not seen.fresh and not seen.wanted
    store.samples.want("cmp-7")
    assert store.samples.wanted_of("cmp-7") == seen.hour.end - 1


def test_a_page_that_says_so_again_and_again_writes_little(store: Store) -> None:
    first = store.samples.want("cmp-7")
    assert abs(store.samples.want("cmp-7") - first) < timedelta(milliseconds=1)
    early = store.database.now() + module.WANTED / 2
    change(store, "cmp-7", wanted_until=early)
    assert store.samples.want("cmp-7") > early + MINUTE


def test_a_clock_that_is_far_ahead_is_refused_and_one_that_was_set_back_is_not(
    store: Store,
) -> None:
    store.samples.want("cmp-7")
    now = slot(store)
    with pytest.raises(InvalidInput, match="ahead"):
        store.samples.put("cmp-7", some(now + 2 * POINTS))
    assert store.samples.samples_of("cmp-7").at is None
    store.samples.put("cmp-7", some(now + 200, 5))
    store.samples.put("cmp-7", some(now - 3, 4))
    assert store.samples.wanted_of("cmp-7") == now


def test_of_very_many_hosts_those_that_were_wanted_last_stay(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_HOSTS", 3)
    for number in range(6):
        store.samples.want(f"cmp-{number}")
        early = store.database.now() + module.WANTED - (10 - number) * MINUTE / 60
        change(store, f"cmp-{number}", wanted_until=early)
    assert hosts(store) == {"cmp-3", "cmp-4", "cmp-5"}


def test_simultaneous_viewers_share_a_row(store: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.samples.want("cmp-7"), range(12)))
        now = slot(store)
        list(pool.map(lambda n: store.samples.put("cmp-7", some(now, 1, f"g{n}")), range(12)))
    assert hosts(store) == {"cmp-7"}
    assert {line.id for line in store.samples.samples_of("cmp-7").hour.lines} == {
        f"g{n}" for n in range(12)
    }


def test_a_full_hour_of_a_full_host_is_kept(store: Store) -> None:
    row = {name: array("f", [0.1] * POINTS) for name in model.FIELDS["guest"]}
    lines = [Line("guest", f"g{n}", values=row) for n in range(model.MOST_LINES)]
    store.samples.want("cmp-7")
    now = slot(store)
    assert store.samples.put("cmp-7", Hour(now + 1 - POINTS, POINTS, tuple(lines)))
    assert len(store.samples.samples_of("cmp-7").hour.lines) == model.MOST_LINES
