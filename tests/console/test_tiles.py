# SPDX-License-Identifier: Apache-2.0
"""Filter and groups of the wall, and differences between two renderings."""

from __future__ import annotations

from urllib.parse import parse_qs

from holdfast.console import live
from holdfast.console.live import Memory, Rendering
from holdfast.console.wall import MOST_BAD, MOST_TILES, Tile, TileFilter, grouped


def test_the_url_holds_the_whole_filter() -> None:
    filter = TileFilter("segment", ("down", "up"), ("reserved",), "a b", ("r&1", "r=2"))
    path, _, query = filter.address().partition("?")
    assert path == "/" and TileFilter.read(parse_qs(query)) == filter
    assert TileFilter.read({}).address() == "/"
    assert filter.toggled(state="down") == filter.address(states=("up",))
    assert TileFilter().toggled(trait="free") == "/?is=free"


def test_invalid_values_in_the_url_are_ignored() -> None:
    asked = {"by": ["colour"], "state": ["odd", "up"], "is": ["odd"], "q": ["x" * 500]}
    assert TileFilter.read(asked) == TileFilter(states=("up",), text="x" * 100)


def test_a_large_wall_shows_a_limited_number_of_bad_hosts() -> None:
    tiles = [Tile(n, f"h{n}", "down" if n % 2 else "up", rack=f"r{n % 5}") for n in range(2000)]
    groups = grouped(tiles, TileFilter())
    assert [group.size for group in groups] == [400] * 5
    assert sum(len(group.tiles) for group in groups) == MOST_BAD
    assert all(tile.is_bad for group in groups for tile in group.tiles)
    assert sum(width for _state, _at, width in groups[0].bar) == 100
    few = grouped(tiles[:MOST_TILES], TileFilter())
    assert sum(len(group.tiles) for group in few) == MOST_TILES


def test_a_host_without_rack_is_grouped_by_zone() -> None:
    tiles = [Tile(1, "a", rack="r", zone="z"), Tile(2, "b", zone="z"), Tile(3, "c")]
    assert [one.name for one in grouped(tiles, TileFilter())] == ["", "r", "z"]
    assert [tile.name for tile in tiles if TileFilter(groups=("z",)).matches(tile)] == ["b"]


def test_a_forgotten_rendering_is_sent_whole() -> None:
    memory = Memory()
    old = Rendering({"l": ("a", "b")}, {"a": "1", "b": "2"})
    new = Rendering({"l": ("b", "c")}, {"b": "2", "c": "3"})
    memory.keep(old)
    changed = memory.difference(old.version, new)
    assert changed == {"version": new.version, "lists": {"l": ["b", "c"]}, "pieces": {"c": "3"}}
    for number in range(live.REMEMBERED):
        memory.keep(Rendering({}, {"a": str(number)}))
    assert memory.difference(old.version, new)["pieces"] == new.pieces
    nothing = {"version": new.version, "lists": {}, "pieces": {}}
    assert Memory().difference(new.version, new) == nothing  # another process has sent it
