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
    known, sizes = {one.name for one in tiles}, _racks(tiles)
    hosts, racks = (set(request.every.get(name, ())) for name in ("fail", "rack"))
    racks &= sizes.keys()
    dead = [one for one in tiles if one.name in hosts or one.rack in racks]
    found, why = _asked(request, sorted(hosts & known), sorted(racks)) if dead else (None, "")
    return page(
        request,
        "what_if.html",
        title="What if",
        tiles=tiles if len(tiles) <= MOST_TILES else dead,
        many=len(tiles) > MOST_TILES,
        names=[one.name for one in tiles],
        racks=sizes,
        chosen={one.name for one in dead},
        chosen_racks=sorted(racks),
        unknown=sorted(hosts - known - {""}),
        dead=dead,
        why=why,
        command=command(dead, racks),
        found=found,
    )


def command(dead: Sequence[Tile], racks: Collection[str]) -> list[str]:
    """Return the equivalent command."""
    whole = sorted({one.rack for one in dead if one.rack in racks})
    alone = [one.name for one in dead if one.rack not in whole]
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
    for one in tiles:
        if one.rack:
            found[one.rack] = found.get(one.rack, 0) + 1
    return dict(sorted(found.items()))
