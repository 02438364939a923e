# SPDX-License-Identifier: Apache-2.0
"""The newcomer's story, on the wall of a simulated cloud: break a host that somebody holds, and
watch the reservation heal. Told step by step, each with a link to where it can be seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from holdfast.api.ask import Ask, Reply
from holdfast.api.reservation_v1 import leases
from holdfast.console import inside, sim
from holdfast.console.pages import PREFIX, part
from holdfast.console.tiles import RESERVED, Tile
from holdfast.model.errors import NotFound
from holdfast.model.host import same
from holdfast.model.incident import HOST, Incident
from holdfast.model.standing import UP
from holdfast.store.cases import Wanted
from holdfast.store.standings import Seen

#: A monitor may have seen it a little before our clock says that it was done.
_EARLY = timedelta(seconds=2)
DONE, NOW, LATER = "done", "running", "later"


@dataclass(frozen=True)
class Step:
    state: str  # done | running | later
    said: str
    path: str = ""
    link: str = ""


@dataclass(frozen=True)
class Story:
    """`victim`: who could be broken; `host`: who was, with what followed."""

    victim: Tile | None
    hosts: Sequence[str]
    networks: Sequence[str]
    broken: Sequence[str] = ()
    host: str = ""
    steps: Sequence[Step] = ()
    is_over: bool = False
    query: str = ""
    healing: Sequence[Sequence[str]] = ()  # commands that mend `host`


def told(ask: Ask, tiles: Sequence[Tile]) -> Story | None:
    """None where nothing can be broken."""
    if ask.services.sim is None or not ask.may(sim.CHANGE):
        return None
    world = ask.services.sim().world()["hosts"]
    whole = {one["name"] for one in world if one["powered"] and not one["cut"]}
    names = [one["name"] for one in world]
    fit = [one for one in tiles if one.use == RESERVED and one.state == UP and one.name in whole]
    host = str(ask.query.get("story", ""))
    steps = _steps(ask, host) if host in names else ()
    return Story(
        next((one for one in fit if one.held[0].slots is None), None),
        names,
        ask.services.conf.hostmonitor.networks,
        [name for name in names if name not in whole],
        host if steps else "",
        steps,
        bool(steps) and all(one.state == DONE for one in steps),
        urlencode({name: ask.query.get(name, "") for name in ("story", "lease", "at")}),
        next((sim.heal_commands(one) for one in world if one["name"] == host), ()),
    )


def show(ask: Ask) -> Reply:
    """The story alone, for a wall that is open."""
    found = told(ask, ())
    if found is None:
        raise NotFound("the cloud of this deployment is not simulated ([cloud] driver)")
    return part(ask, "story_steps.html", story=found)


def _steps(ask: Ask, host: str) -> Sequence[Step]:
    standing = ask.services.store.standings.of(host)
    incident, lease = _incident(ask, host), _lease(ask)
    known = sim.world_of(ask, host) or {}
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


def _incident(ask: Ask, host: str) -> Incident | None:
    at = str(ask.query.get("at", ""))
    good = at.isascii() and at.isdigit() and len(at) < 12
    since = datetime.fromtimestamp(int(at), UTC) - _EARLY if good else None
    wanted = Wanted(kind=HOST, host=host, since=since, limit=1)
    found = ask.services.store.cases.list_all(wanted)
    return found[0].incident if found else None


def _lease(ask: Ask) -> Mapping[str, Any] | None:
    lease_id = str(ask.query.get("lease", ""))
    try:
        found: Mapping[str, Any] = inside.call(ask, leases.show, path={"lease_id": lease_id})
    except NotFound:
        return None
    lease: Mapping[str, Any] = found["lease"]
    return lease
