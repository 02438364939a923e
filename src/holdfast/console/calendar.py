# SPDX-License-Identifier: Apache-2.0
"""/console/calendar: hosts, pools or leases by time, and when something could be had. All that
chooses what is seen is in the address."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1 import availability
from holdfast.api.reservation_v1.dates import parse
from holdfast.console import inside
from holdfast.console.booking import KINDS, Wish
from holdfast.console.calendar_pools import of_pools
from holdfast.console.calendar_rows import CROWDED, Around, Row, of_hosts, of_leases
from holdfast.console.pages import PREFIX, page, part
from holdfast.console.timescale import WEEK, ZOOMS, Scale
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.store.calendar import GROUPS, Which

HERE: Final = f"{PREFIX}/calendar"
HOSTS, LEASES = "hosts", "leases"
ROWS: Final = 100
FITS: Final = 5
#: What is kept in the address beside the form of the search.
_KEPT: Final = ("view", "from", "zoom", "rack", "zone", "text", "page")

#: Where leases are the rows, a time for another one is chosen here.
_FRESH: Final = Row("row-new", "new lease", "drag to choose its time", where="")


@dataclass(frozen=True)
class Look:
    """What somebody looks at."""

    view: str
    scale: Scale
    which: Which
    number: int
    kept: Mapping[str, str]

    @property
    def offset(self) -> int:
        return (self.number - 1) * ROWS

    def address(self, base: str = HERE, **changes: Any) -> str:
        """The same with something else; from another page than the first only where it is said."""
        asked = {**self.kept, **({} if "page" in changes else {"page": ""}), **changes}
        return f"{base}?{urlencode({name: value for name, value in asked.items() if value})}"

    def closer(self, name: str) -> str:
        """One step nearer, of this host; where that begins is put behind it (`Block.begins`)."""
        zooms = list(ZOOMS)
        zoom = zooms[max(0, zooms.index(self.scale.zoom) - 1)]
        return self.address(zoom=zoom, text=name, **{"from": ""}) + "&from="

    def moved(self, to: datetime) -> str:
        return self.address(**{"from": f"{to:%Y-%m-%dT%H:%M}"})


def show(ask: Ask) -> Reply:
    look = _look(ask)
    rows, total = _rows(ask, look)
    racks, zones = ask.services.store.calendar.places() if _sees_hosts(ask) else ((), ())
    return page(
        ask,
        "calendar.html",
        title="Calendar",
        racks=racks,
        zones=zones,
        zooms=list(ZOOMS),
        views=_views(ask),
        kinds=KINDS,
        wish=Wish.of(ask.query),
        found=_found(ask),
        **_board(ask, look, rows, total),
    )


def board(ask: Ask) -> Reply:
    """The rows alone, when something changed."""
    look = _look(ask)
    rows, total = _rows(ask, look)
    return part(ask, "calendar_rows.html", **_board(ask, look, rows, total))


def _board(ask: Ask, look: Look, rows: Sequence[Row], total: int) -> dict[str, Any]:
    # what is refreshed must lie where it lay, however late it is
    fixed = {"from": f"{look.scale.start:%Y-%m-%dT%H:%M}", "page": str(look.number)}
    return {
        "look": look,
        "scale": look.scale,
        "rows": [_FRESH, *rows] if look.view == LEASES and _books(ask) else rows,
        "total": total,
        "first": look.offset + 1,
        "last": look.offset + len(rows),
        "part_address": look.address(f"{HERE}/board", **fixed),
        "books": _books(ask),
    }


def _look(ask: Ask) -> Look:
    query = {name: str(ask.query.get(name, "")) for name in _KEPT}
    views = _views(ask)
    view = query["view"] or views[0]
    if view not in views:
        raise InvalidInput(f"view: there is no {view[:40]!r} for you; one of {', '.join(views)}")
    start = parse(query["from"], "from") if query["from"] else None
    scale = Scale.of(query["zoom"] or WEEK, start, ask.services.clock.now())
    number = query["page"] or "1"
    good = number.isascii() and number.isdigit() and len(number) <= 5
    if not good or not 1 <= int(number) <= 10_000:
        raise InvalidInput(f"page: {number[:40]!r} is not a number of a page")
    which = Which(query["rack"], query["zone"], query["text"].strip().lower())
    return Look(view, scale, which, int(number), query)


def _books(ask: Ask) -> bool:
    return ask.may("reservation:lease:create")


def _sees_hosts(ask: Ask) -> bool:
    return ask.may("reservation:host:list") and ask.may("reservation:host:allocations")


def _views(ask: Ask) -> Sequence[str]:
    return (HOSTS, *GROUPS, LEASES) if _sees_hosts(ask) else (LEASES,)


def _rows(ask: Ask, look: Look) -> tuple[Sequence[Row], int]:
    store, scale = ask.services.store.calendar, look.scale
    may_change = ask.may("reservation:lease:update")
    if look.view == LEASES:
        whose = None if ask.caller.is_admin else ask.caller.project_id
        found, total = store.leases(whose, scale.start, scale.end, look.offset, ROWS)
        return of_leases(found, scale, may_change), total
    if look.view in GROUPS:
        pools = store.pools(look.view, look.which)
        taken = store.taken(look.view, look.which, scale.start, scale.end)
        rows = of_pools(pools, *taken, look.view, scale)
        return rows[look.offset : look.offset + ROWS], len(rows)
    hosts, total = store.hosts(look.which, look.offset, ROWS)
    ids = [host.id for host in hosts]
    crowded, dense = store.dense(ids, scale.start, scale.end, CROWDED)
    holds = store.holds([one for one in ids if one not in crowded], scale.start, scale.end)
    around = Around(
        store.incidents([host.name for host in hosts], scale.start, scale.end),
        store.silences(scale.start, scale.end),
        dense,
        ask.services.clock.now(),
    )
    return of_hosts(hosts, holds, around, scale, may_change), total


# when something could be had


def _found(ask: Ask) -> dict[str, Any] | None:
    """What the search found, or why nothing; None: nobody searched."""
    if "find" not in ask.query:
        return None
    wish = Wish.of(ask.query)
    try:
        reservation, query = wish.search(ask.services.clock.now(), FITS)
        query["reservation"] = json.dumps(reservation)
        answer = inside.call(ask, availability.show, query=query)["availability"]
    except HoldfastError as error:
        return {"windows": (), "why": {"message": error.message, **error.details}}
    now = ask.services.clock.now()
    windows = [{**one, "book": _book(wish, one, now)} for one in answer["windows"]]
    return {"windows": windows, "why": answer["why_not"]}


def _book(wish: Wish, window: Mapping[str, Any], now: datetime) -> str:
    """Where that window is booked. What is free now is so in a minute too: who fills in a form is
    not late."""
    asked = {name: value for name, value in wish.given.items() if value}
    start, end = (datetime.fromisoformat(window[name]) for name in ("start_date", "end_date"))
    asked |= {"start": f"{start:%Y-%m-%d %H:%M}", "end": f"{end:%Y-%m-%d %H:%M}"}
    if start <= now:
        asked |= {"start": "now", "end": f"+{wish['length']}"}
    return f"{PREFIX}/leases/new?{urlencode(asked)}"
