# SPDX-License-Identifier: Apache-2.0
"""Many lines at once against each of them alone."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.capacity import FOREVER, CapacitySnapshot, Hold, Line
from holdfast.model.gaps import Flat, Some, lay_out
from holdfast.model.host import Host

END = 30

_LINE = st.lists(
    st.tuples(st.integers(0, END), st.integers(1, 9)).map(
        lambda one: Hold(float(one[0]), float(sum(one)), {"VCPU": 1})
    ),
    max_size=6,
).map(Line)
_WINDOW = st.tuples(st.integers(-2, END), st.integers(1, 9)).map(
    lambda one: (float(one[0]), float(one[0] + one[1]))
)


def free_minutes(*lines: Line) -> list[tuple[float, float]]:
    """Gap by gap, without those that are none."""
    return sorted((a, b) for a, b in zip(*lay_out(lines), strict=True) if a < b)


@settings(max_examples=150, deadline=None)
@given(_LINE)
def test_gaps_are_all_the_free_minutes_that_hang_together(line: Line) -> None:
    found = free_minutes(line)
    for minute in range(-5, END + 15):
        assert any(a <= minute < b for a, b in found) == line.is_free(minute, minute + 1)
    assert found[0][0] == -FOREVER
    assert found[-1][1] == FOREVER


@settings(max_examples=150, deadline=None)
@given(st.lists(_LINE, max_size=6), st.lists(_LINE, max_size=3), st.data())
def test_of_some_lines_known_or_not_the_gaps_are_theirs(
    known: list[Line], others: list[Line], data: st.DataObject
) -> None:
    wanted = data.draw(st.lists(st.sampled_from([*known, *others]))) if known or others else []
    some = Some(Flat(known), wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.model.gaps.PORTION", 4)
        portions = list(some.gaps())
    found = [gap for portion in portions for gap in zip(*portion, strict=True)]
    assert sorted((a, b) for a, b in found if a < b) == free_minutes(*wanted)
    assert some.unknown == sum(not any(one is k for k in known) for one in wanted)


@settings(max_examples=200, deadline=None)
@given(st.lists(_LINE, max_size=6), st.lists(_LINE, max_size=2), _WINDOW)
def test_all_hosts_say_at_once_until_when_they_are_busy(
    known: list[Line], others: list[Line], window: tuple[float, float]
) -> None:
    wanted = [*others, *reversed(known)]
    alone = [line.busy_until(*window) for line in wanted]
    some = Some(Flat(known), wanted)
    for _again in range(2):
        said = some.busy_until(*window).tolist()
        assert [None if until == -FOREVER else until for until in said] == alone
        assert list(some.free(*window)) == [at for at, until in enumerate(alone) if until is None]
        busy = sorted((until, at) for at, until in enumerate(alone) if until is not None)
        assert list(some.first_back(*window, most=3)) == [at for _until, at in busy[:3]]
        some.busy_until(window[0] + 1, window[1] + 1)  # somebody asks for another window


def host(number: int) -> Host:
    return Host(number, f"u{number}", f"cmp-{number}", f"cmp-{number}", f"cmp-{number}")


def ids(hosts: Sequence[Host]) -> list[int]:
    return [host.id for host in hosts]


@settings(max_examples=100, deadline=None)
@given(st.lists(_LINE, min_size=2, max_size=6), _WINDOW)
def test_a_site_with_few_hosts_and_one_with_many_get_the_same_answer(
    lines: list[Line], window: tuple[float, float]
) -> None:
    snapshot = CapacitySnapshot({n: host(n) for n in range(len(lines))}, dict(enumerate(lines)))
    hosts = list(snapshot.hosts.values())
    few = [ids(snapshot.free(hosts, *window)), ids(snapshot.first_back(hosts, *window, 2))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.model.capacity.FEW", 1)
        snapshot.lay_out()
        assert [
            ids(snapshot.free(hosts, *window)),
            ids(snapshot.first_back(hosts, *window, 2)),
        ] == few


def test_when_many_lines_are_new_all_are_laid_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.model.capacity.FEW", 1)
    monkeypatch.setattr("holdfast.model.capacity.MANY", 1)
    lines = {number: Line([Hold(0.0, 10.0)]) for number in (1, 2, 3)}
    snapshot = CapacitySnapshot({number: host(number) for number in (1, 2, 3, 4)}, lines)
    hosts = list(snapshot.hosts.values())
    assert ids(snapshot.free(hosts, 5.0, 6.0)) == [4]
    assert ids(snapshot.first_back(hosts, 5.0, 6.0, 9)) == [1, 2, 3]
    (kept,) = snapshot._flat
    lines[1] = Line([Hold(0.0, 20.0)])
    assert ids(snapshot.first_back(hosts[:3], 5.0, 6.0, 9)) == [2, 3, 1]
    assert snapshot._flat == [kept]
    lines[2] = Line([Hold(0.0, 30.0)])
    renewed = snapshot.renewed({**snapshot.hosts, 5: host(5)})
    assert ids(renewed.first_back(hosts[:3], 5.0, 6.0, 2)) == [3, 1]
    assert snapshot._flat != [kept]
    assert renewed.revision == snapshot.revision + 1
    assert set(snapshot._flat[0].places) == set(lines.values())
