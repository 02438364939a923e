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
from holdfast.console.pages import HEADERS, PREFIX, environment, page, part, whole_number
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
from holdfast.hoststatus.status import DOWN, RETURNING, SUSPECT, UP, USABLE, HostStatus
from holdfast.model import votes
from holdfast.model.errors import NotFound
from holdfast.model.host import same, short
from holdfast.model.incident import HOST, Incident, covers

# Tiles: the state of each host, the filter, and the groups. Pure.
#
#     tiles = build_tiles(snapshot, networks, default_networks, guests)
#     filter = TileFilter.read(request.every)       # ?by=segment&state=down&is=reserved&q=rack-a
#     matching = [tile for tile in tiles if filter.matches(tile)]
#     groups = grouped([tile for tile in matching if filter.has_state(tile)], filter)


STATES: Final = (DOWN, SUSPECT, RETURNING, UP)
RACK, SEGMENT, LEASE = "rack", "segment", "lease"
RESERVED, FREE, CLOSED = "reserved", "free", "closed"
MAINTENANCE, FENCED, BY_ALARMS, INCIDENT = "maintenance", "fenced", "alarms", "incident"
#: The kind of evidence of a host whose power was off before Holdfast fenced it.
POWER_OFF = "power_off"
TRAITS: Final = (RESERVED, FREE, MAINTENANCE, FENCED, BY_ALARMS, INCIDENT)
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
    maintenance_until: datetime | None = None  # end of a maintenance window over the host
    off: str = ""  # the evidence sentence of a host that is off but was not fenced

    @property
    def is_bad(self) -> bool:
        return self.state != UP or bool(self.incidents) or DOWN in self.networks.values()

    @property
    def traits(self) -> frozenset[str]:
        """Return the entries of `TRAITS` that apply to this host."""
        traits = {
            MAINTENANCE: self.maintenance or self.maintenance_until is not None,
            FENCED: bool(self.fenced),
            BY_ALARMS: self.alarms > 0,
            INCIDENT: bool(self.incidents),
        }
        return frozenset({self.use, *(name for name, applies in traits.items() if applies)})

    @property
    def text(self) -> str:
        """Return the text for the search."""
        leases = (f"{hold.lease} {hold.project_id}" for hold in self.held)
        return " ".join((self.name, self.rack, self.zone, self.segment, *leases)).lower()


def build_tiles(
    snapshot: WallSnapshot,
    networks: Mapping[str, Networks],
    default_networks: Networks,
    guests: Mapping[str, int],
) -> list[Tile]:
    """Build the tiles.

    `networks` is by host name; `default_networks` is for hosts that no monitor reports.
    """
    incidents: dict[str, list[Incident]] = {}
    for incident in snapshot.open:
        incidents.setdefault(short(incident.host), []).append(incident)
    windows = _by_host(snapshot.maintenance_windows)
    health = networks, default_networks, guests
    return [_tile(row, snapshot, health, incidents, windows) for row in snapshot.hosts]


def _by_host(windows: Sequence[Any]) -> Mapping[str, Sequence[Any]]:
    """Group maintenance windows by short host name; windows without a host under the empty name."""
    by_host: dict[str, list[Any]] = {}
    for window in windows:
        by_host.setdefault(short(str(window.matcher.get("host", ""))), []).append(window)
    return by_host


def _maintenance_until(row: Any, windows: Mapping[str, Sequence[Any]]) -> datetime | None:
    """Return the end of the last maintenance window that covers the whole host, or None."""
    near = (*windows.get("", ()), *windows.get(short(row.name), ())) if windows else ()
    ends = [
        window.expires_at
        for window in near
        if covers(window.matcher, row.service_host, row.segment_id)
    ]
    return max(ends, default=None)


def _tile(
    row: Any,
    snapshot: WallSnapshot,
    health: tuple[Any, Networks, Any],
    incidents: Mapping[str, Any],
    windows: Mapping[str, Sequence[Any]],
) -> Tile:
    networks, default_networks, guests = health
    held = snapshot.held.get(row.id, ())
    since, why = snapshot.bad.get(row.id, (None, ""))
    last = snapshot.last.get(f"host:{row.name}")
    is_free = row.enrolled and row.reservable and row.state in USABLE
    return Tile(
        row.id,
        row.service_host,
        row.state,
        row.rack,
        row.segment or "",
        row.zone,
        RESERVED if held else FREE if is_free else CLOSED,
        held,
        _by_name(networks, row.name) or default_networks,
        since,
        why,
        bool(row.on_maintenance),
        bool(row.spare),
        _proof(last, FENCED) if last is not None else "",
        _by_name(guests, row.name),
        snapshot.alarms.get(row.name, 0),
        incidents.get(short(row.name), ()) if incidents else (),
        row.enrolled,
        _maintenance_until(row, windows),
        _proof(last, POWER_OFF) if last is not None else "",
    )


def _by_name(values: Mapping[str, Any], name: str) -> Any:
    """Return the value for a host name, whole or short."""
    value = values.get(name)
    return values.get(short(name)) if value is None and values else value


def _proof(last: Incident, kind: str) -> str:
    """Return the evidence sentence of this kind for a host that is off; empty after its return."""
    progress = last.host_progress
    is_so = (
        progress.evidence is not None and progress.evidence.kind == kind and not progress.back_at
    )
    return progress.evidence.sentence if progress.evidence and is_so else ""


# The filter


@dataclass(frozen=True)
class TileFilter:
    """The filter and grouping of tiles; the page's URL holds all of it."""

    by: str = RACK
    states: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
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
            tuple(state for state in STATES if state in every.get("state", ())),
            tuple(trait for trait in TRAITS if trait in every.get("is", ())),
            every.get("q", [""])[-1].strip()[:_LONGEST],
            tuple(dict.fromkeys(every.get("group", ()))),
        )

    def has_state(self, tile: Tile) -> bool:
        """Return whether a tile passes the filters by state and trait; call `matches` first."""
        if self.states and tile.state not in self.states:
            return False
        return not self.traits or tile.traits.issuperset(self.traits)

    def matches(self, tile: Tile) -> bool:
        """Return whether a tile matches text and group in any state; the counts use these tiles."""
        if self.groups and not any(name in self.groups for name in names(tile, self.by)):
            return False
        return not self.text or all(word in tile.text for word in self.text.lower().split())

    @property
    def narrows(self) -> bool:
        return bool(self.states or self.traits or self.text or self.groups)

    def address(self, path: str = "/", **changes: Any) -> str:
        """Return the URL of this filter with changes."""
        new = replace(self, **changes)
        pairs = [("by", new.by)] if new.by != RACK else []
        pairs += [("state", state) for state in new.states]
        pairs += [("is", trait) for trait in new.traits]
        pairs += [("q", new.text)] if new.text else []
        pairs += [("group", group) for group in new.groups]
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def toggled(self, *, state: str = "", trait: str = "") -> str:
        """Return the URL with a state or trait added, or removed if present."""
        return self.address(states=_toggle(self.states, state), traits=_toggle(self.traits, trait))


def _toggle(values: tuple[str, ...], value: str) -> tuple[str, ...]:
    if not value:
        return values
    return tuple(x for x in values if x != value) if value in values else (*values, value)


# Groups


@dataclass(frozen=True)
class Group:
    """A rack, segment or lease. `tiles` are the shown tiles; `states` and `traits` count all."""

    name: str
    size: int
    states: Mapping[str, int]
    traits: Mapping[str, int]
    tiles: Sequence[Tile] = ()
    is_open: bool = True

    @property
    def left_out(self) -> int:
        return self.size - len(self.tiles)

    @property
    def bar(self) -> Sequence[tuple[str, float, float]]:
        """Return state, left edge and width in percent for each state."""
        parts, at = [], 0.0
        for state in STATES:
            if count := self.states.get(state, 0):
                parts.append((state, round(at, 3), round(100 * count / self.size, 3)))
                at += 100 * count / self.size
        return parts


def grouped(tiles: Sequence[Tile], filter: TileFilter) -> list[Group]:
    """Group the tiles. With more than MOST_TILES tiles, closed groups show only bad hosts."""
    many = len(tiles) > MOST_TILES
    by_group: dict[str, list[Tile]] = {}
    for tile in tiles:
        for name in names(tile, filter.by):
            by_group.setdefault(name, []).append(tile)
    left, groups = MOST_BAD, []
    for name, members in sorted(by_group.items()):
        is_open = not many or name in filter.groups
        candidates = members if is_open else [tile for tile in members if tile.is_bad]
        shown = candidates[: MOST_OF_A_GROUP if is_open else left]
        left -= 0 if is_open else len(shown)
        groups.append(_group(name, members, shown, is_open))
    return groups


def names(tile: Tile, by: str) -> Iterable[str]:
    if by == LEASE:
        return dict.fromkeys(hold.lease for hold in tile.held)
    return (tile.segment if by == SEGMENT else tile.rack or tile.zone,)


def _group(name: str, members: Sequence[Tile], shown: Sequence[Tile], is_open: bool) -> Group:
    states, traits = counts(members)
    return Group(name, len(members), states, traits, shown, is_open)


def counts(tiles: Iterable[Tile]) -> tuple[Counter[str], Counter[str]]:
    states: Counter[str] = Counter()
    traits: Counter[str] = Counter()
    for tile in tiles:
        states[tile.state] += 1
        traits.update(tile.traits)
    return states, traits


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
    healthy = {host["name"] for host in world if host["powered"] and not host["cut"]}
    names = [host["name"] for host in world]
    victims = [
        tile for tile in tiles if tile.use == RESERVED and tile.state == UP and tile.name in healthy
    ]
    host = str(request.query.get("story", ""))
    steps = _steps(request, host) if host in names else ()
    return Story(
        next((tile for tile in victims if tile.held[0].slots is None), None),
        names,
        request.services.conf.hostmonitor.networks,
        [name for name in names if name not in healthy],
        host if steps else "",
        steps,
        bool(steps) and all(step.state == DONE for step in steps),
        urlencode({name: request.query.get(name, "") for name in ("story", "lease", "at")}),
        next((sim.heal_commands(row) for row in world if row["name"] == host), ()),
    )


def show_story(request: Request) -> Response:
    """Render only the demo's steps, for the refresh of an open wall."""
    story = story_of(request, ())
    if story is None:
        raise NotFound("the cloud of this deployment is not simulated ([cloud] driver)")
    return part(request, "story_steps.html", story=story)


def _steps(request: Request, host: str) -> Sequence[Step]:
    row = request.services.store.host_status.of(host)
    status = row.status if row is not None else None
    incident, lease = _incident(request, host), _lease(request)
    world = sim.world_of(request, host) or {}
    is_back = world.get("powered") and not world.get("cut") and incident is not None
    steps = [
        _failure(world, host),
        _detection(status, incident),
        _recovery(incident),
        *([] if lease is None else [_repair(lease, host)]),
        *([_return(status, host)] if is_back else []),
    ]
    first = next((at for at, step in enumerate(steps) if step.state != DONE), len(steps))
    return [
        step if step.state == DONE or at == first else replace(step, state=LATER)
        for at, step in enumerate(steps)
    ]


def _failure(world: Mapping[str, Any], host: str) -> Step:
    path = f"{PREFIX}/hosts/{host}"
    if not world.get("powered", True):
        return Step(DONE, f"{host} has no power; the cloud does not report it yet", path, host)
    cut = ", ".join(world.get("cut", ()))
    return Step(DONE, f"{host} lost its networks: {cut}" if cut else f"{host} failed", path, host)


def _detection(status: HostStatus | None, incident: Incident | None) -> Step:
    if incident is not None:
        return Step(DONE, f"detected: {incident.cause}")
    if status is not None and not status.usable:
        since = f"{status.since:%Y-%m-%d %H:%M:%S} UTC"
        return Step(DONE, f"detected: {status.state} since {since}, {status.why}")
    return Step(NOW, "host monitors detect the failure and confirm it (about 3 s)")


def _return(status: HostStatus | None, host: str) -> Step:
    if status is not None and status.usable:
        return Step(DONE, f"{host} is back: {status.why}")
    sentence = f"{host} has power again; Holdfast uses it after a healthy period (about 20 s)"
    return Step(NOW, sentence)


def _recovery(incident: Incident | None) -> Step:
    if incident is None:
        return Step(NOW, "recovery opens an incident, fences the host and evacuates its servers")
    path = f"{PREFIX}/incidents/{incident.id}"
    sentence = f"incident {incident.status}: {incident.sentence}"
    return Step(NOW if incident.is_open else DONE, sentence, path, "incident, step by step")


def _repair(lease: Mapping[str, Any], host: str) -> Step:
    path, name = f"{PREFIX}/leases/{lease['id']}", f"lease {lease['name']}"
    hosts = [row["name"] for r in lease["reservations"] for row in r.get("hosts", ())]
    missing = any(r["missing_resources"] for r in lease["reservations"])
    if missing or any(same(host, other) for other in hosts):
        return Step(NOW, f"repair gives {name} another host", path, name)
    sentence = f"repaired: {name} has {' and '.join(hosts)} now; Holdfast notified its owner"
    return Step(DONE, sentence, path, name)


def _incident(request: Request, host: str) -> Incident | None:
    at = whole_number(str(request.query.get("at", "")), 11)
    since = None if at is None else datetime.fromtimestamp(at, UTC) - _EARLY
    wanted = Wanted(kind=HOST, host=host, since=since, limit=1)
    rows = request.services.store.incident_queries.list_all(wanted)
    return rows[0].incident if rows else None


def _lease(request: Request) -> Mapping[str, Any] | None:
    lease_id = str(request.query.get("lease", ""))
    try:
        answer = api_calls.call(request, leases.show, path={"lease_id": lease_id})
    except NotFound:
        return None
    lease: Mapping[str, Any] = answer["lease"]
    return lease


LIST, HOLDERS = "holdfast:host:list", "reservation:host:allocations"
CASES, ALARM_LIST = "holdfast:incident:list", "holdfast:alarm:list"
PLAN = "holdfast:repair:plan"
#: The holder shown to a user without permission to see holders.
HIDDEN_HOLDER = Held("", "reserved", "")
TILES_URL = f"{PREFIX}/wall/tiles"
#: The topics that a tile depends on.
TOPICS = (HOSTS, NETWORKS, LEASES, INCIDENTS, ALARMS, SWITCHES)


@dataclass(frozen=True)
class Wall:
    """The contents of the wall."""

    filter: TileFilter
    total: int
    matching: Sequence[Tile]
    groups: Sequence[Group]
    has_details: bool  # False: only names and leases of the caller's reserved hosts
    may_plan: bool = False  # whether the caller may use the what-if page


def show(request: Request) -> Response:
    wall, tiles = _snapshot(request)
    rendering = render(wall)
    _memory().keep(rendering)
    return page(
        request,
        "wall.html",
        title="Wall" if wall.has_details else "Your hosts",
        wall=wall,
        rendering=rendering,
        fresh=wall.filter.address(TILES_URL),
        story=story_of(request, tiles) if wall.has_details else None,
    )


def fresh(request: Request) -> Response:
    """Return the differences from the version that the page shows."""
    rendering = _shared(request) if _sees_all(request) else render(_snapshot(request)[0])
    changed = _memory().difference(str(request.query.get("since", "")), rendering)
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


def _shared(request: Request) -> Rendering:
    """Return the rendering, shared between all callers with the same rights.

    After a change all open pages ask at once. So the tiles are computed once per state of the
    database, and drawn once per filter.
    """
    services, filter = request.services, TileFilter.read(request.every)
    may_plan = request.allowed(PLAN)
    marks = services.store.changes.marks()
    state = services.sim is None, *(marks[topic] for topic in TOPICS)
    shared, now = services.shared, services.clock.monotonic()

    def drawn() -> Rendering:
        tiles = shared.get(("tiles", *state), now, lambda: all_tiles(request))
        return render(_wall(tiles, filter, has_details=True, may_plan=may_plan))

    return shared.get(("wall", filter, may_plan, *state), now, drawn)


@cache
def _memory() -> Memory:
    return Memory()


def _snapshot(request: Request) -> tuple[Wall, Sequence[Tile]]:
    filter = TileFilter.read(request.every)
    if request.allowed(LIST):
        tiles = all_tiles(request)
        return _wall(tiles, filter, has_details=True, may_plan=request.allowed(PLAN)), tiles
    tiles = build_tiles(request.services.store.wall.own(request.caller.project_id), {}, {}, {})
    return _wall(tiles, replace(filter, by=LEASE), has_details=False, may_plan=False), tiles


def _wall(tiles: Sequence[Tile], filter: TileFilter, *, has_details: bool, may_plan: bool) -> Wall:
    matching = [tile for tile in tiles if filter.matches(tile)]
    groups = grouped([tile for tile in matching if filter.has_state(tile)], filter)
    return Wall(filter, len(tiles), matching, groups, has_details, may_plan)


def all_tiles(request: Request) -> list[Tile]:
    """Build the tiles of all hosts, with networks and guest counts.

    Guest counts appear only if known without a cloud call.
    """
    networks, default_networks = network_health(request)
    return build_tiles(snapshot_of(request), networks, default_networks, guest_counts(request))


def snapshot_of(request: Request, only: int | None = None) -> WallSnapshot:
    """Return the snapshot without details hidden from the caller: holders, incidents, alarms."""
    snapshot = _anonymous(request, request.services.store.wall.snapshot(only))
    if not request.allowed(CASES):
        snapshot = replace(snapshot, open=(), last={})
    return snapshot if _sees_alarms(request) else replace(snapshot, alarms={})


def _anonymous(request: Request, snapshot: WallSnapshot) -> WallSnapshot:
    if _sees_holders(request):
        return snapshot
    return replace(snapshot, held={host: (HIDDEN_HOLDER,) for host in snapshot.held})


def network_health(request: Request) -> tuple[Mapping[str, Networks], Networks]:
    """Return the networks of each host that monitors know, and the default for other hosts."""
    now, views = request.services.store.monitors.views()
    fresh = [view for view in views if view.is_fresh(now)]
    matrix, _others = votes.in_force(fresh)
    if matrix is None:
        return {}, dict.fromkeys(request.services.conf.hostmonitor.networks, UNKNOWN)
    return votes.everybody(fresh, matrix.networks), dict.fromkeys(matrix.networks, UNKNOWN)


# Pieces


def render(wall: Wall) -> Rendering:
    """Render the wall as pieces with ids."""
    macros: Any = environment().get_template("wall_tiles.html").module
    states, traits = counts(wall.matching)
    chips = macros.chips(wall, STATES, TRAITS, states, traits)
    lists: dict[str, Sequence[str]] = {"groups": tuple(_key(group) for group in wall.groups)}
    pieces: dict[str, str] = {"counts": chips}
    for group in wall.groups:
        key = _key(group)
        pieces[key] = macros.shell(key)
        pieces[f"h-{key}"] = macros.head(group, key, wall)
        lists[f"l-{key}"] = tuple(f"t-{key}-{tile.id}" for tile in group.tiles)
        pieces |= {f"t-{key}-{tile.id}": macros.tile(tile, key, wall) for tile in group.tiles}
    return Rendering(lists, pieces)


def _key(group: Group) -> str:
    """Return an HTML id for a group name with any characters."""
    return f"g{hashlib.blake2b(group.name.encode(), digest_size=5).hexdigest()}"
