# SPDX-License-Identifier: Apache-2.0
"""The wall at `/`: every host as a tile, updated live.

A user without permission to list hosts sees the hosts that their own reservations hold now. The
URL holds grouping and filters. An open page names the rendering it shows and gets only the
changed pieces (`live.Memory`).
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

from holdfast.api.holdfast_v1.agents import guest_counts
from holdfast.api.request import Request, Response
from holdfast.api.reservation_v1 import leases
from holdfast.console import api_calls, sim
from holdfast.console.live import Memory, Rendering
from holdfast.console.pages import HEADERS, PREFIX, environment, page, part
from holdfast.db.host_status import Seen
from holdfast.db.incident_queries import Wanted
from holdfast.db.views import (
    ALARMS,
    HOSTS,
    INCIDENTS,
    LEASES,
    NETWORKS,
    SWITCHES,
    Held,
    WallSnapshot,
)
from holdfast.hostmonitor.matrix import UNKNOWN
from holdfast.hoststatus.status import DOWN, RETURNING, SUSPECT, UP, USABLE
from holdfast.model import votes
from holdfast.model.errors import NotFound
from holdfast.model.host import same, short
from holdfast.model.incident import HOST, Incident, covers

# Tiles: the state of each host, the filter, and the groups. Pure.
#
#     tiles = furnish(look, networks, unseen, guests)
#     wanted = TileFilter.read(request.every)       # ?by=segment&state=down&is=reserved&q=rack-a
#     near = [tile for tile in tiles if wanted.near(tile)]
#     groups = grouped([tile for tile in near if wanted.takes(tile)], wanted)


STATES: Final = (DOWN, SUSPECT, RETURNING, UP)
RACK, SEGMENT, LEASE = "rack", "segment", "lease"
RESERVED, FREE, CLOSED = "reserved", "free", "closed"
MAINTENANCE, FENCED, BY_ALARMS, INCIDENT = "maintenance", "fenced", "alarms", "incident"
#: The kind of evidence of a host whose power reads off although Holdfast did not cut it.
POWER_OFF = "power_off"
IS: Final = (RESERVED, FREE, MAINTENANCE, FENCED, BY_ALARMS, INCIDENT)
#: With more tiles than this, each group is a line and only bad hosts have tiles.
MOST_TILES: Final = 400
#: The most tiles of an open group, and the most bad hosts.
MOST_OF_A_GROUP, MOST_BAD = 1000, 200
_LONGEST = 100
Networks = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Tile:
    """A host as the wall shows it."""

    id: int
    name: str
    state: str = UP
    rack: str = ""
    segment: str = ""
    zone: str = ""
    use: str = CLOSED
    held: Sequence[Held] = ()
    networks: Networks = field(default_factory=dict)
    since: datetime | None = None
    why: str = ""
    maintenance: bool = False
    spare: bool = False
    fenced: str = ""  # the sentence of the fencing evidence
    guests: int | None = None  # None: unknown
    alarms: int = 0
    incidents: Sequence[Incident] = ()
    enrolled: bool = False
    silent_until: datetime | None = None  # end of a maintenance window over the host
    off: str = ""  # the evidence sentence of a host that is off but was not fenced

    @property
    def is_bad(self) -> bool:
        return self.state != UP or bool(self.incidents) or DOWN in self.networks.values()

    @property
    def ways(self) -> frozenset[str]:
        """Return the properties in `IS` that apply to this host."""
        said = {
            MAINTENANCE: self.maintenance or self.silent_until is not None,
            FENCED: bool(self.fenced),
            BY_ALARMS: self.alarms > 0,
            INCIDENT: bool(self.incidents),
        }
        return frozenset({self.use, *(name for name, so in said.items() if so)})

    @property
    def text(self) -> str:
        """Return the text for the search."""
        leases = (f"{one.lease} {one.project_id}" for one in self.held)
        return " ".join((self.name, self.rack, self.zone, self.segment, *leases)).lower()


def furnish(
    look: WallSnapshot,
    networks: Mapping[str, Networks],
    unseen: Networks,
    guests: Mapping[str, int],
) -> list[Tile]:
    """Build the tiles. `networks` is by host name; `unseen` is for hosts no monitor knows."""
    hit: dict[str, list[Incident]] = {}
    for one in look.open:
        hit.setdefault(short(one.host), []).append(one)
    left = _by_host(look.silences)
    return [_tile(row, look, (networks, unseen, guests), hit, left) for row in look.hosts]


def _by_host(silences: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    """Group maintenance windows by short host name; windows without a host under the empty name."""
    found: dict[str, list[Any]] = {}
    for one in silences:
        found.setdefault(short(str(one.matcher.get("host", ""))), []).append(one)
    return found


def _silent(row: Any, left: Mapping[str, Sequence[Any]]) -> datetime | None:
    """Return the end of the last maintenance window that covers the whole host, or None."""
    known = (*left.get("", ()), *left.get(short(row.name), ())) if left else ()
    ends = [
        one.expires_at for one in known if covers(one.matcher, row.service_host, row.segment_id)
    ]
    return max(ends, default=None)


def _tile(
    row: Any,
    look: WallSnapshot,
    seen: tuple[Any, Networks, Any],
    hit: Mapping[str, Any],
    left: Mapping[str, Sequence[Any]],
) -> Tile:
    networks, unseen, guests = seen
    held = look.held.get(row.id, ())
    since, why = look.bad.get(row.id, (None, ""))
    last = look.last.get(f"host:{row.name}")
    open_ = row.reservable and row.state in USABLE
    return Tile(
        row.id,
        row.service_host,
        row.state,
        row.rack,
        row.segment or "",
        row.zone,
        RESERVED if held else FREE if row.enrolled and open_ else CLOSED,
        held,
        _of(networks, row.name) or unseen,
        since,
        why,
        bool(row.on_maintenance),
        bool(row.spare),
        _proof(last, FENCED) if last is not None else "",
        _of(guests, row.name),
        look.alarms.get(row.name, 0),
        hit.get(short(row.name), ()) if hit else (),
        row.enrolled,
        _silent(row, left),
        _proof(last, POWER_OFF) if last is not None else "",
    )


def _of(known: Mapping[str, Any], name: str) -> Any:
    """Return the value for a host name, whole or short."""
    found = known.get(name)
    return known.get(short(name)) if found is None and known else found


def _proof(last: Incident, kind: str) -> str:
    """Return the evidence sentence of this kind for a host that is off; empty after its return."""
    known = last.host_progress
    is_so = known.evidence is not None and known.evidence.kind == kind and not known.back_at
    return known.evidence.sentence if known.evidence and is_so else ""


# The filter


@dataclass(frozen=True)
class TileFilter:
    """The filter and grouping of tiles; the page's URL holds all of it."""

    by: str = RACK
    states: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()
    text: str = ""
    groups: tuple[str, ...] = ()

    @classmethod
    def read(cls, every: Mapping[str, Sequence[str]]) -> "TileFilter":
        """Read the filter from the URL.

        Ignores invalid values, because a URL is not worth an error.
        """
        by = every.get("by", [RACK])[-1]
        return cls(
            by if by in (RACK, SEGMENT) else RACK,
            tuple(one for one in STATES if one in every.get("state", ())),
            tuple(one for one in IS if one in every.get("is", ())),
            every.get("q", [""])[-1].strip()[:_LONGEST],
            tuple(dict.fromkeys(every.get("group", ()))),
        )

    def takes(self, tile: Tile) -> bool:
        """Return whether a tile passes the state filters; call `near` first."""
        if self.states and tile.state not in self.states:
            return False
        return not self.ways or tile.ways.issuperset(self.ways)

    def near(self, tile: Tile) -> bool:
        """Return whether a tile matches text and group in any state; the counts use these tiles."""
        if self.groups and not any(name in self.groups for name in names(tile, self.by)):
            return False
        return not self.text or all(word in tile.text for word in self.text.lower().split())

    @property
    def narrows(self) -> bool:
        return bool(self.states or self.ways or self.text or self.groups)

    def address(self, path: str = "/", **changes: Any) -> str:
        """Return the URL of this filter with changes."""
        one = replace(self, **changes)
        pairs = [("by", one.by)] if one.by != RACK else []
        pairs += [("state", state) for state in one.states] + [("is", way) for way in one.ways]
        pairs += [("q", one.text)] if one.text else []
        pairs += [("group", group) for group in one.groups]
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def toggled(self, *, state: str = "", way: str = "") -> str:
        """Return the URL with a state or property added, or removed if present."""
        return self.address(states=_toggle(self.states, state), ways=_toggle(self.ways, way))


def _toggle(some: tuple[str, ...], one: str) -> tuple[str, ...]:
    if not one:
        return some
    return tuple(x for x in some if x != one) if one in some else (*some, one)


# Groups


@dataclass(frozen=True)
class Group:
    """A rack, segment or lease. `tiles` are the shown tiles; `states` and `ways` count all."""

    name: str
    size: int
    states: Mapping[str, int]
    ways: Mapping[str, int]
    tiles: Sequence[Tile] = ()
    is_open: bool = True

    @property
    def left_out(self) -> int:
        return self.size - len(self.tiles)

    @property
    def bar(self) -> Sequence[tuple[str, float, float]]:
        """Return state, left edge and width in percent for each state."""
        found, at = [], 0.0
        for state in STATES:
            if count := self.states.get(state, 0):
                found.append((state, round(at, 3), round(100 * count / self.size, 3)))
                at += 100 * count / self.size
        return found


def grouped(tiles: Sequence[Tile], wanted: TileFilter) -> list[Group]:
    """Group the tiles. With more than MOST_TILES tiles, closed groups show only bad hosts."""
    many = len(tiles) > MOST_TILES
    found: dict[str, list[Tile]] = {}
    for one in tiles:
        for name in names(one, wanted.by):
            found.setdefault(name, []).append(one)
    left, groups = MOST_BAD, []
    for name in sorted(found):
        is_open = not many or name in wanted.groups
        some = found[name] if is_open else [one for one in found[name] if one.is_bad]
        shown = some[: MOST_OF_A_GROUP if is_open else left]
        left -= 0 if is_open else len(shown)
        groups.append(_group(name, found[name], shown, is_open))
    return groups


def names(tile: Tile, by: str) -> Iterable[str]:
    if by == LEASE:
        return dict.fromkeys(one.lease for one in tile.held)
    return (tile.segment if by == SEGMENT else tile.rack or tile.zone,)


def _group(name: str, every: Sequence[Tile], shown: Sequence[Tile], is_open: bool) -> Group:
    states, ways = counts(every)
    return Group(name, len(every), states, ways, shown, is_open)


def counts(tiles: Iterable[Tile]) -> tuple[Counter[str], Counter[str]]:
    states: Counter[str] = Counter()
    ways: Counter[str] = Counter()
    for one in tiles:
        states[one.state] += 1
        ways.update(one.ways)
    return states, ways


# The demo of a simulated cloud: break a host that a lease holds, and watch the repair of the
# reservation. Each step links to the page that shows it.


#: A monitor may report the failure slightly before the database clock says it was injected.
_EARLY = timedelta(seconds=2)
DONE, NOW, LATER = "done", "running", "later"


@dataclass(frozen=True)
class Step:
    """A step of the demo."""

    state: str  # done | running | later
    said: str
    path: str = ""
    link: str = ""


@dataclass(frozen=True)
class Story:
    """The demo: `victim` is a host to break; `host` is the broken host with its steps."""

    victim: Tile | None
    hosts: Sequence[str]
    networks: Sequence[str]
    broken: Sequence[str] = ()
    host: str = ""
    steps: Sequence[Step] = ()
    is_over: bool = False
    query: str = ""
    healing: Sequence[Sequence[str]] = ()  # commands that repair `host`


def story_of(request: Request, tiles: Sequence[Tile]) -> Story | None:
    """Return the demo; None without permission to inject faults or without a simulated cloud."""
    if request.services.sim is None or not request.allowed(sim.CHANGE):
        return None
    world = request.services.sim().world()["hosts"]
    whole = {one["name"] for one in world if one["powered"] and not one["cut"]}
    names = [one["name"] for one in world]
    fit = [one for one in tiles if one.use == RESERVED and one.state == UP and one.name in whole]
    host = str(request.query.get("story", ""))
    steps = _steps(request, host) if host in names else ()
    return Story(
        next((one for one in fit if one.held[0].slots is None), None),
        names,
        request.services.conf.hostmonitor.networks,
        [name for name in names if name not in whole],
        host if steps else "",
        steps,
        bool(steps) and all(one.state == DONE for one in steps),
        urlencode({name: request.query.get(name, "") for name in ("story", "lease", "at")}),
        next((sim.heal_commands(one) for one in world if one["name"] == host), ()),
    )


def show_story(request: Request) -> Response:
    """Render only the demo's steps, for the refresh of an open wall."""
    found = story_of(request, ())
    if found is None:
        raise NotFound("the cloud of this deployment is not simulated ([cloud] driver)")
    return part(request, "story_steps.html", story=found)


def _steps(request: Request, host: str) -> Sequence[Step]:
    standing = request.services.store.standings.of(host)
    incident, lease = _incident(request, host), _lease(request)
    known = sim.world_of(request, host) or {}
    is_back = known.get("powered") and not known.get("cut") and incident is not None
    steps = [
        _broken(known, host),
        _noticed(standing, incident),
        _recovered(incident),
        *([] if lease is None else [_healed(lease, host)]),
        *([_back(standing, host)] if is_back else []),
    ]
    first = next((at for at, one in enumerate(steps) if one.state != DONE), len(steps))
    return [
        one if one.state == DONE or at == first else _later(one) for at, one in enumerate(steps)
    ]


def _later(step: Step) -> Step:
    return Step(LATER, step.said, step.path, step.link)


def _broken(known: Mapping[str, Any], host: str) -> Step:
    path = f"{PREFIX}/hosts/{host}"
    if not known.get("powered", True):
        return Step(DONE, f"{host} has no power; the cloud itself does not know yet", path, host)
    cut = ", ".join(known.get("cut", ()))
    return Step(DONE, f"{host} is cut off on {cut}" if cut else f"{host} was broken", path, host)


def _noticed(standing: Seen | None, incident: Incident | None) -> Step:
    if incident is not None:
        return Step(DONE, f"noticed: {incident.cause}")
    if standing is not None and not standing.standing.usable:
        how = standing.standing
        return Step(
            DONE, f"noticed: {how.state} since {how.since:%Y-%m-%d %H:%M:%S} UTC, {how.why}"
        )
    return Step(NOW, "host monitors notice it, and wait whether it lasts (about 3 s)")


def _back(standing: Seen | None, host: str) -> Step:
    if standing is not None and standing.standing.usable:
        return Step(DONE, f"{host} is back: {standing.standing.why}")
    said = f"{host} has power again, and is used again when it has been well for a while"
    return Step(NOW, f"{said} (about 20 s)")


def _recovered(incident: Incident | None) -> Step:
    if incident is None:
        return Step(
            NOW, "an incident is opened: its power is made sure to be off, its servers move"
        )
    path = f"{PREFIX}/incidents/{incident.id}"
    said = f"incident {incident.status}: {incident.sentence}"
    return Step(NOW if incident.is_open else DONE, said, path, "its incident, step by step")


def _healed(lease: Mapping[str, Any], host: str) -> Step:
    path = f"{PREFIX}/leases/{lease['id']}"
    has = [one["name"] for r in lease["reservations"] for one in r.get("hosts", ())]
    missing = any(r["missing_resources"] for r in lease["reservations"])
    if missing or any(same(host, one) for one in has):
        return Step(NOW, f"lease {lease['name']} gets another host instead", path, "the lease")
    said = f"healed: lease {lease['name']} has {' and '.join(has)} now, and its owner was told"
    return Step(DONE, said, path, f"lease {lease['name']}")


def _incident(request: Request, host: str) -> Incident | None:
    at = str(request.query.get("at", ""))
    good = at.isascii() and at.isdigit() and len(at) < 12
    since = datetime.fromtimestamp(int(at), UTC) - _EARLY if good else None
    wanted = Wanted(kind=HOST, host=host, since=since, limit=1)
    found = request.services.store.cases.list_all(wanted)
    return found[0].incident if found else None


def _lease(request: Request) -> Mapping[str, Any] | None:
    lease_id = str(request.query.get("lease", ""))
    try:
        found: Mapping[str, Any] = api_calls.call(request, leases.show, path={"lease_id": lease_id})
    except NotFound:
        return None
    lease: Mapping[str, Any] = found["lease"]
    return lease


LIST, HOLDERS = "holdfast:host:list", "reservation:host:allocations"
CASES, ALARM_LIST = "holdfast:incident:list", "holdfast:alarm:list"
PLAN = "holdfast:repair:plan"
#: The holder shown to a user without permission to see holders.
SOMEBODY = Held("", "reserved", "")
FRESH = f"{PREFIX}/wall/tiles"
#: The topics that a tile depends on.
SHOWN = (HOSTS, NETWORKS, LEASES, INCIDENTS, ALARMS, SWITCHES)


@dataclass(frozen=True)
class Wall:
    """The contents of the wall."""

    wanted: TileFilter
    total: int
    near: Sequence[Tile]
    groups: Sequence[Group]
    whole: bool  # True: all details of hosts; False: only the caller's reserved hosts
    plans: bool = False  # whether the caller may use the what-if page

    @property
    def shown(self) -> int:
        return sum(one.size for one in self.groups)

    @property
    def left_out(self) -> int:
        return sum(one.left_out for one in self.groups)


def show(request: Request) -> Response:
    wall, tiles = _snapshot(request)
    made = rendering(wall)
    _memory().keep(made)
    return page(
        request,
        "wall.html",
        title="Wall" if wall.whole else "Your hosts",
        wall=wall,
        made=made,
        fresh=wall.wanted.address(FRESH),
        story=story_of(request, tiles) if wall.whole else None,
    )


def fresh(request: Request) -> Response:
    """Return the differences from the version that the page shows."""
    made = _for_all(request) if _sees_all(request) else rendering(_snapshot(request)[0])
    changed = _memory().difference(str(request.query.get("since", "")), made)
    return Response(changed, headers=HEADERS)


def _sees_all(request: Request) -> bool:
    """Return whether the caller sees every host with holders, incidents and all alarms.

    Only such callers share a rendering; each other caller has a view of their own.
    """
    return (
        request.allowed(LIST)
        and _sees_holders(request)
        and request.allowed(CASES)
        and _sees_alarms(request)
    )


def _sees_holders(request: Request) -> bool:
    return request.caller.is_admin or request.allowed(HOLDERS)


def _sees_alarms(request: Request) -> bool:
    """Return whether the caller sees the alarms of all projects, which a tile counts.

    A caller who is not an administrator lists only the alarms of their own project.
    """
    return request.caller.is_admin and request.allowed(ALARM_LIST)


def _for_all(request: Request) -> Rendering:
    """Return the rendering, shared between all callers with the same rights.

    After a change all open pages ask at once. So the tiles are computed once per state of the
    database, and drawn once per filter.
    """
    services, wanted, plans = (
        request.services,
        TileFilter.read(request.every),
        request.allowed(PLAN),
    )
    marks = services.store.changes.marks()
    state = services.sim is None, *(marks[topic] for topic in SHOWN)
    shared, now = services.shared, services.clock.monotonic()

    def drawn() -> Rendering:
        tiles = shared.get(("tiles", *state), now, lambda: all_tiles(request))
        return rendering(_wall(tiles, wanted, whole=True, plans=plans))

    return shared.get(("wall", wanted, plans, *state), now, drawn)


@cache
def _memory() -> Memory:
    return Memory()


def _snapshot(request: Request) -> tuple[Wall, Sequence[Tile]]:
    wanted = TileFilter.read(request.every)
    if request.allowed(LIST):
        tiles = all_tiles(request)
        return _wall(tiles, wanted, whole=True, plans=request.allowed(PLAN)), tiles
    tiles = furnish(request.services.store.wall.own(request.caller.project_id), {}, {}, {})
    return _wall(tiles, replace(wanted, by=LEASE), whole=False, plans=False), tiles


def _wall(tiles: Sequence[Tile], wanted: TileFilter, *, whole: bool, plans: bool) -> Wall:
    near = [one for one in tiles if wanted.near(one)]
    groups = grouped([one for one in near if wanted.takes(one)], wanted)
    return Wall(wanted, len(tiles), near, groups, whole, plans)


def all_tiles(request: Request) -> list[Tile]:
    """Build the tiles of all hosts, with networks and guest counts.

    Guest counts appear only if known without a cloud call.
    """
    networks, unseen = seen(request)
    return furnish(snapshot_of(request), networks, unseen, guest_counts(request))


def snapshot_of(request: Request, only: int | None = None) -> WallSnapshot:
    """Return the snapshot without details hidden from the caller: holders, incidents, alarms."""
    look = _anonymous(request, request.services.store.wall.snapshot(only))
    if not request.allowed(CASES):
        look = replace(look, open=(), last={})
    return look if _sees_alarms(request) else replace(look, alarms={})


def _anonymous(request: Request, look: WallSnapshot) -> WallSnapshot:
    if _sees_holders(request):
        return look
    return replace(look, held={host: (SOMEBODY,) for host in look.held})


def seen(request: Request) -> tuple[Mapping[str, Networks], Networks]:
    """Return the networks of each host that monitors know, and the default for other hosts."""
    now, views = request.services.store.monitors.views()
    fresh = [one for one in views if one.is_fresh(now)]
    strategy, _others = votes.in_force(fresh)
    if strategy is None:
        return {}, dict.fromkeys(request.services.conf.hostmonitor.networks, UNKNOWN)
    return votes.everybody(fresh, strategy.networks), dict.fromkeys(strategy.networks, UNKNOWN)


# Pieces


def rendering(wall: Wall) -> Rendering:
    """Render the wall as pieces with ids."""
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
    """Return an HTML id for a group name with any characters."""
    return f"g{hashlib.blake2b(group.name.encode(), digest_size=5).hexdigest()}"
