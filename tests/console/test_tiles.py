# SPDX-License-Identifier: Apache-2.0
"""What of the wall is wanted, in which groups, and what differs between two renderings."""

from __future__ import annotations

from urllib.parse import parse_qs

from holdfast.console import live
from holdfast.console.live import Memory, Rendering
from holdfast.console.wall import MOST_BAD, MOST_TILES, Tile, TileFilter, grouped


def test_an_address_says_all_that_is_wanted() -> None:
    wanted = TileFilter("segment", ("down", "up"), ("reserved",), "a b", ("r&1", "r=2"))
    path, _, query = wanted.address().partition("?")
    assert path == "/" and TileFilter.read(parse_qs(query)) == wanted
    assert TileFilter.read({}).address() == "/"
    assert wanted.toggled(state="down") == wanted.address(states=("up",))
    assert TileFilter().toggled(way="free") == "/?is=free"


def test_what_makes_no_sense_in_an_address_is_left_aside() -> None:
    asked = {"by": ["colour"], "state": ["odd", "up"], "is": ["odd"], "q": ["x" * 500]}
    assert TileFilter.read(asked) == TileFilter(states=("up",), text="x" * 100)


def test_of_what_is_bad_so_many_are_shown_as_people_can_look_at() -> None:
    tiles = [Tile(n, f"h{n}", "down" if n % 2 else "up", rack=f"r{n % 5}") for n in range(2000)]
    groups = grouped(tiles, TileFilter())
    assert [one.size for one in groups] == [400] * 5
    assert sum(len(one.tiles) for one in groups) == MOST_BAD
    assert all(tile.is_bad for one in groups for tile in one.tiles)
    assert sum(width for _state, _at, width in groups[0].bar) == 100
    few = grouped(tiles[:MOST_TILES], TileFilter())
    assert sum(len(one.tiles) for one in few) == MOST_TILES


def test_a_host_is_in_the_group_of_its_zone_where_no_rack_is_known() -> None:
    tiles = [Tile(1, "a", rack="r", zone="z"), Tile(2, "b", zone="z"), Tile(3, "c")]
    assert [one.name for one in grouped(tiles, TileFilter())] == ["", "r", "z"]
    assert [one.name for one in tiles if TileFilter(groups=("z",)).near(one)] == ["b"]


def test_a_rendering_that_nobody_remembers_is_sent_whole() -> None:
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
