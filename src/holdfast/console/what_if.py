# SPDX-License-Identifier: Apache-2.0
"""/console/what-if: the effects of an assumed failure of hosts or racks.

The page shows the servers that would move, the reservations that would lose hosts, and the
capacity left, as the API says (`api/holdfast_v1/what_if.py`). The URL names the assumed failures.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.api.holdfast_v1 import repair, what_if
from holdfast.api.request import Request, Response
from holdfast.console import api_calls
from holdfast.console.pages import page
from holdfast.console.wall import MOST_TILES, Tile, all_tiles
from holdfast.model.errors import HoldfastError


def show(request: Request) -> Response:
    tiles = all_tiles(request)
    known, sizes = {tile.name for tile in tiles}, _racks(tiles)
    hosts, racks = (set(request.every.get(name, ())) for name in ("fail", "rack"))
    racks &= sizes.keys()
    dead = [tile for tile in tiles if tile.name in hosts or tile.rack in racks]
    found, why = _asked(request, sorted(hosts & known), sorted(racks)) if dead else (None, "")
    return page(
        request,
        "what_if.html",
        title="What if",
        tiles=tiles if len(tiles) <= MOST_TILES else dead,
        many=len(tiles) > MOST_TILES,
        names=[tile.name for tile in tiles],
        racks=sizes,
        chosen={tile.name for tile in dead},
        chosen_racks=sorted(racks),
        unknown=sorted(hosts - known - {""}),
        dead=dead,
        why=why,
        command=command(dead, racks),
        found=found,
    )


def command(dead: Sequence[Tile], racks: Collection[str]) -> list[str]:
    """Return the equivalent command."""
    whole = sorted({tile.rack for tile in dead if tile.rack in racks})
    alone = [tile.name for tile in dead if tile.rack not in whole]
    words = ["holdfast", "what-if"]
    words += ["--fail-rack", *whole] if whole else []
    return words + (["--fail", *alone] if alone else [])


def _asked(
    request: Request, hosts: Sequence[str], racks: Sequence[str]
) -> tuple[Mapping[str, Any] | None, str]:
    """Return the answer of the API, or the reason why there is none."""
    body = {"hosts": hosts[: repair.MOST_NAMED], "racks": racks}
    try:
        found = api_calls.call(request, what_if.ask, body=body)
    except HoldfastError as error:
        return None, error.message
    answer: Mapping[str, Any] = found["what_if"]
    return answer, ""


def _racks(tiles: Sequence[Tile]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for tile in tiles:
        if tile.rack:
            found[tile.rack] = found.get(tile.rack, 0) + 1
    return dict(sorted(found.items()))
