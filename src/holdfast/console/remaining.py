# SPDX-License-Identifier: Apache-2.0
"""What racks or segments have now, and would have if hosts were gone. Pure.

left(tiles, After({"cmp-1"}, taken, sizes), "rack")     # [Left("rack-a", up=4, still_up=3, …)]
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.console.tiles import CLOSED, FREE, Tile
from holdfast.model.host import Size
from holdfast.model.standing import USABLE

NOTHING: Final = Size()


@dataclass(frozen=True)
class After:
    """Hosts that are gone then, those that reservations have got, and what each host has."""

    gone: Collection[str]
    taken: Collection[str]
    sizes: Mapping[int, Size]


@dataclass(frozen=True)
class Left:
    """Of a rack or a segment, before and after: hosts that are up, of them those that leases can
    get, of these free ones; and what all that are up have."""

    name: str
    up: int = 0
    still_up: int = 0
    usable: int = 0
    still_usable: int = 0
    free: int = 0
    still_free: int = 0
    size: Size = NOTHING
    still_size: Size = NOTHING
    kept: int = 0

    @property
    def is_short(self) -> bool:
        return self.still_free < self.kept

    def plus(self, tile: Tile, stays: bool, taken: bool, size: Size) -> "Left":
        given, free = tile.use != CLOSED, tile.use == FREE
        return replace(
            self,
            up=self.up + 1,
            still_up=self.still_up + stays,
            usable=self.usable + given,
            still_usable=self.still_usable + (given and stays),
            free=self.free + free,
            still_free=self.still_free + (free and stays and not taken),
            size=self.size + size,
            still_size=self.still_size + (size if stays else NOTHING),
        )


def left(
    tiles: Sequence[Tile], after: After, by: str, kept: Mapping[str, int] | None = None
) -> list[Left]:
    """What each rack or segment has now, and would have then."""
    found: dict[str, Left] = {}
    for one in (tile for tile in tiles if tile.state in USABLE):
        name = getattr(one, by)
        known = found.get(name) or Left(name, kept=(kept or {}).get(name, 0))
        size = after.sizes.get(one.id, NOTHING)
        found[name] = known.plus(one, one.name not in after.gone, one.name in after.taken, size)
    return [found[name] for name in sorted(found)]
