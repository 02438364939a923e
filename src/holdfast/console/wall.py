# SPDX-License-Identifier: Apache-2.0
"""/: every host as a tile, and what changes of it as it does. Who may not list hosts sees those
that their own reservations hold now.

What is shown is `tiles`, in the way that the address says; a page that is open names the rendering
it shows, and gets the pieces that differ (`renderings`)."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.agents import is_fresh
from holdfast.console import story
from holdfast.console.pages import HEADERS, PREFIX, environment, page
from holdfast.console.renderings import Memory, Rendering
from holdfast.console.tiles import (
    IS,
    LEASE,
    STATES,
    Group,
    Networks,
    Tile,
    Wanted,
    counts,
    furnish,
    grouped,
)
from holdfast.model import votes
from holdfast.model.host import normalise
from holdfast.model.matrix import UNKNOWN
from holdfast.store.changes import ALARMS, HOSTS, INCIDENTS, LEASES, NETWORKS, SWITCHES
from holdfast.store.wall import Held, Look

LIST, HOLDERS = "holdfast:host:list", "reservation:host:allocations"
CASES, ALARM_LIST = "holdfast:incident:list", "holdfast:alarm:list"
PLAN = "holdfast:repair:plan"
#: Whose name is not told.
SOMEBODY = Held("", "reserved", "")
FRESH = f"{PREFIX}/wall/tiles"
#: What a tile tells of.
SHOWN = (HOSTS, NETWORKS, LEASES, INCIDENTS, ALARMS, SWITCHES)


@dataclass(frozen=True)
class Wall:
    wanted: Wanted
    total: int
    near: Sequence[Tile]
    groups: Sequence[Group]
    whole: bool  # all that is to be said of hosts; not only that they are held
    plans: bool = False  # whether it may be asked what would follow if they died

    @property
    def shown(self) -> int:
        return sum(one.size for one in self.groups)

    @property
    def left_out(self) -> int:
        return sum(one.left_out for one in self.groups)


def show(ask: Ask) -> Reply:
    wall, tiles = _look(ask)
    made = rendering(wall)
    _memory().keep(made)
    return page(
        ask,
        "wall.html",
        title="Wall" if wall.whole else "Your hosts",
        wall=wall,
        made=made,
        fresh=wall.wanted.address(FRESH),
        story=story.told(ask, tiles) if wall.whole else None,
    )


def fresh(ask: Ask) -> Reply:
    """What differs from the version that the page shows."""
    made = _for_all(ask) if _sees_all(ask) else rendering(_look(ask)[0])
    changed = _memory().difference(str(ask.query.get("since", "")), made)
    return Reply(changed, headers=HEADERS)


def _sees_all(ask: Ask) -> bool:
    """Every host, who holds it, its incidents and everybody's alarms; of others each has a view of
    their own."""
    return ask.may(LIST) and _sees_holders(ask) and ask.may(CASES) and _sees_alarms(ask)


def _sees_holders(ask: Ask) -> bool:
    return ask.caller.is_admin or ask.may(HOLDERS)


def _sees_alarms(ask: Ask) -> bool:
    """Those of all projects, as a tile counts them; who is no admin lists their own."""
    return ask.caller.is_admin and ask.may(ALARM_LIST)


def _for_all(ask: Ask) -> Rendering:
    """When something changed, all who look ask at once: it is worked out once for the state that
    things are in, and drawn once for each way in which it is wanted."""
    services, wanted, plans = ask.services, Wanted.read(ask.every), ask.may(PLAN)
    marks = services.store.changes.look()
    state = services.sim is None, *(marks[topic] for topic in SHOWN)
    shared, now = services.shared, services.clock.monotonic()

    def drawn() -> Rendering:
        tiles = shared.get(("tiles", *state), now, lambda: all_tiles(ask))
        return rendering(_wall(tiles, wanted, whole=True, plans=plans))

    return shared.get(("wall", wanted, plans, *state), now, drawn)


@cache
def _memory() -> Memory:
    return Memory()


def _look(ask: Ask) -> tuple[Wall, Sequence[Tile]]:
    wanted = Wanted.read(ask.every)
    if ask.may(LIST):
        tiles = all_tiles(ask)
        return _wall(tiles, wanted, whole=True, plans=ask.may(PLAN)), tiles
    tiles = furnish(ask.services.store.wall.own(ask.caller.project_id), {}, {}, {})
    return _wall(tiles, replace(wanted, by=LEASE), whole=False, plans=False), tiles


def _wall(tiles: Sequence[Tile], wanted: Wanted, *, whole: bool, plans: bool) -> Wall:
    near = [one for one in tiles if wanted.near(one)]
    groups = grouped([one for one in near if wanted.takes(one)], wanted)
    return Wall(wanted, len(tiles), near, groups, whole, plans)


def all_tiles(ask: Ask, *, to_judge: bool = False) -> list[Tile]:
    """With what monitors see, and guests where that is known without asking a cloud. `to_judge`:
    with incidents, which are not to be shown."""
    networks, unseen = seen(ask)
    look = _anonymous(ask, ask.services.store.wall.look()) if to_judge else looked(ask)
    return furnish(look, networks, unseen, _guests(ask))


def looked(ask: Ask, only: int | None = None) -> Look:
    """Who holds hosts, what recovery does about them and what stands out on them is not
    everybody's business who may list them."""
    look = _anonymous(ask, ask.services.store.wall.look(only))
    if not ask.may(CASES):
        look = replace(look, open=(), last={})
    return look if _sees_alarms(ask) else replace(look, alarms={})


def _anonymous(ask: Ask, look: Look) -> Look:
    if _sees_holders(ask):
        return look
    return replace(look, held={host: (SOMEBODY,) for host in look.held})


def seen(ask: Ask) -> tuple[Mapping[str, Networks], Networks]:
    """Of each host that monitors know, its networks; and what is shown of the others."""
    now, views = ask.services.store.monitors.views()
    fresh = [one for one in views if one.is_fresh(now)]
    strategy, _others = votes.in_force(fresh)
    if strategy is None:
        return {}, dict.fromkeys(ask.services.conf.hostmonitor.networks, UNKNOWN)
    return votes.everybody(fresh, strategy.networks), dict.fromkeys(strategy.networks, UNKNOWN)


def _guests(ask: Ask) -> Mapping[str, int]:
    """By the word of agents that live, or of the simulation, which has none."""
    if ask.services.sim is None:
        now, rows = ask.services.store.agents.all()
        said = {row["host"]: row["details"].get("guests") for row in rows if is_fresh(row, now)}
        return {host: count for host, count in said.items() if count is not None}
    world: Mapping[str, Any] = ask.services.sim().world()
    return {normalise(one["name"]): one["servers"] for one in world["hosts"]}


# as pieces


def rendering(wall: Wall) -> Rendering:
    words: Any = environment().get_template("wall_tiles.html").module
    states, ways = counts(wall.near)
    chips = words.chips(wall, STATES, IS, states, ways)
    lists: dict[str, Sequence[str]] = {"groups": tuple(_key(one) for one in wall.groups)}
    pieces: dict[str, str] = {"counts": chips}
    for group in wall.groups:
        key = _key(group)
        pieces[key] = words.shell(key)
        pieces[f"h-{key}"] = words.head(group, key, wall)
        lists[f"l-{key}"] = tuple(f"t-{key}-{one.id}" for one in group.tiles)
        pieces |= {f"t-{key}-{one.id}": words.tile(one, key, wall) for one in group.tiles}
    return Rendering(lists, pieces)


def _key(group: Group) -> str:
    """An id that its name does not break."""
    return f"g{hashlib.blake2b(group.name.encode(), digest_size=5).hexdigest()}"
