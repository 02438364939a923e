# SPDX-License-Identifier: Apache-2.0
"""An HA matrix that is written down in our format says what it said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.hostmonitor import matrix
from holdfast.hostmonitor.matrix import ACTIONS, ANY, DOWN, UP, Matrix, Rule
from holdfast.hostmonitor.matrix_file import written

NAMES = ("manage", "null", "1", "-", "n.a", "on")
MASAKARI = """
sequence: [manage, storage]
matrix:
  - {health: [up, down], action: [recovery]}
  - {health: [down, up], action: []}
  - {health: [down, down], action: [alert]}
"""


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    networks = tuple(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)))
    healths = st.tuples(*(st.sampled_from((UP, DOWN, ANY)) for _ in networks))
    spans = st.sampled_from((0.0, 0.25, 3.0, 90.0, 86_400.0))
    rules = st.builds(Rule, healths, st.sampled_from(ACTIONS), spans)
    return Matrix(networks, tuple(draw(st.lists(rules, max_size=8))), "it")


@given(matrices())
def test_whatever_a_matrix_says_can_be_read_again(ha_matrix: Matrix) -> None:
    assert matrix.parse(written(ha_matrix), ha_matrix.networks).agrees(ha_matrix)


def test_a_masakari_matrix_is_converted_to_the_holdfast_format() -> None:
    ha_matrix = matrix.parse(MASAKARI, ("manage", "storage"))
    assert written(ha_matrix).splitlines() == [
        "networks: [manage, storage]",
        "rules:",
        "  - {when: {manage: up, storage: down}, do: recovery, for: 3s}",
        "  - {when: {manage: down, storage: up}, do: none}",
        "  - {when: {manage: down, storage: down}, do: alert, for: 3s}",
        "otherwise: none",
    ]
