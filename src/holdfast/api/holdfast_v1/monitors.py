# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/monitors: what each monitor sees, and that it is there; /matrix: the strategy by
which they judge, with the hosts that are in each of its rows now. Rows: no manager is asked."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.observations import plain, when
from holdfast.model import matrix, votes
from holdfast.model.errors import InvalidInput, StaleWrite, Unavailable
from holdfast.model.matrix import ACTIONS, UNDECIDED, UNKNOWN
from holdfast.model.votes import View

KIND = {"type": "string", "enum": ["host"]}
STATE = {"type": "string", "enum": [matrix.UP, matrix.DOWN, UNKNOWN]}
ACTION = {"type": "string", "enum": [*ACTIONS, UNDECIDED]}
MOST_HOSTS, MOST_NETWORKS, MOST_ROWS = 20_000, 16, 5_000
LONGEST_NAME, LONGEST_TEXT = 255, 1000
#: Twenty thousand names, as long as they get.
MOST_BYTES = 6 * 1024 * 1024
_TEXT = {"type": "string"}
_SAID = {"type": "string", "maxLength": LONGEST_TEXT}
_DATE = {"type": "string", "format": "date-time", "maxLength": 64}
_COUNT = {"type": "integer", "minimum": 0}
_HOSTS = {"type": "array", "items": {"type": "string"}}
HEALTH = {"type": "object", "additionalProperties": STATE}


def shape(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": dict(properties)}


def _strict(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {**shape(properties), "additionalProperties": False}


def _by_network(schema: Any) -> dict[str, Any]:
    names = {"minLength": 1, "maxLength": 64}
    return {
        "type": "object",
        "maxProperties": MOST_NETWORKS,
        "propertyNames": names,
        "additionalProperties": schema,
    }


_SIGHT = {"sighted": {"type": "boolean"}, "leader": _SAID, "since": _DATE, "why": _SAID}
# What the names of hosts are is looked at by `_check_hosts`: a schema takes half a second for it.
_ROW = {
    "health": _by_network(STATE),
    "opinion": ACTION,
    "hosts": {"type": "array", "maxItems": MOST_HOSTS},
}
PUT: dict[str, Any] = _strict(
    {
        "kind": KIND,
        "at": _DATE,
        "started_at": _DATE,
        "heartbeat_s": {"type": "number", "exclusiveMinimum": 0, "maximum": 300},
        "networks": _by_network(_strict(_SIGHT)),
        "strategy": {"type": "object", "maxProperties": 16},
        "rows": {"type": "array", "maxItems": MOST_ROWS, "items": _strict(_ROW)},
    }
)
#: How the monitor itself is; what is not said is well.
_OWN: dict[str, Any] = {
    "problem": {**_SAID, "description": "Of its strategy file; an older one is in force."},
    "waiting": {**_COUNT, "description": "Reports that are not delivered yet."},
    "parked": {**_COUNT, "description": "Reports that were not taken."},
}
PUT["properties"] |= _OWN
VIEW = shape(
    {
        "observer": _TEXT,
        "kind": _TEXT,
        "seen_at": _DATE,
        "fresh": {"type": "boolean", "description": "Heard of within three heartbeats."},
        "networks": {"type": "object", "additionalProperties": shape(_SIGHT)},
        "strategy_source": _TEXT,
        "hosts": _COUNT,
        **_OWN,
    }
)
_IN_A_ROW = {"health": HEALTH, "hosts": _HOSTS, "count": _COUNT}
MATRIX = shape(
    {
        "networks": {"type": "array", "items": _TEXT},
        "source": {"type": ["string", "null"]},
        "strategy": {"type": ["object", "null"]},
        "rows": {
            "type": "array",
            "items": shape(
                {**_IN_A_ROW, "action": ACTION, "for_s": {"type": "number"}, "sentence": _TEXT}
            ),
        },
        "undecided": {"type": "array", "items": shape(_IN_A_ROW)},
        "differing": {"type": "array", "items": shape({"observer": _TEXT, "source": _TEXT})},
    }
)


def put(ask: Ask) -> Reply:
    """204, also where what came is older than what is kept."""
    observer, body = ask.path["observer"], dict(ask.body)
    if len(observer) > 128:
        raise InvalidInput("observer: longer than 128 characters")
    _check_hosts(body["rows"])
    at = when(body.pop("at"), "at")
    when(body["started_at"], "started_at")
    try:
        ask.services.store.monitors.put(observer, at, body)
    except StaleWrite as error:
        raise Unavailable("it could not be written just now, send it again") from error
    ask.services.ring()
    return Reply(status=204)


def _check_hosts(rows: Sequence[Mapping[str, Any]]) -> None:
    count, seen = 0, set()
    for place, row in enumerate(rows):
        for name in row["hosts"]:
            if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
                raise InvalidInput(
                    f"rows.{place}.hosts: the name of a host is a text of up to {LONGEST_NAME}"
                    " characters"
                )
        seen.update(row["hosts"])
        count += len(row["hosts"])
    if count > MOST_HOSTS:
        raise InvalidInput(f"rows: {count} hosts; at most {MOST_HOSTS} are taken")
    if len(seen) != count:
        raise InvalidInput("rows: a host is there twice; each is in exactly one row")


def index(ask: Ask) -> Reply:
    now, views = ask.services.store.monitors.views()
    return Reply({"monitors": [{**_monitor(one), "fresh": one.is_fresh(now)} for one in views]})


def _monitor(one: View) -> dict[str, Any]:
    seen = one.picture
    return {
        "observer": one.observer,
        "kind": one.kind,
        "seen_at": plain(one.seen_at),
        "networks": {name: vars(sight) for name, sight in seen.networks.items()},
        "strategy_source": seen.strategy.source,
        "hosts": len(seen.places),
        "problem": seen.problem,
        "waiting": seen.waiting,
        "parked": seen.parked,
    }


def show_matrix(ask: Ask) -> Reply:
    now, views = ask.services.store.monitors.views()
    return Reply({"matrix": shown([one for one in views if one.is_fresh(now)])})


def shown(views: Sequence[View]) -> dict[str, Any]:
    """Of monitors that were heard of lately; empty where there are none."""
    strategy, others = votes.in_force(views)
    if strategy is None:
        return {
            **{"networks": [], "source": None, "strategy": None},
            **{"rows": [], "undecided": [], "differing": []},
        }
    groups: dict[tuple[str, ...], list[str]] = {}
    for host, health in votes.everybody(views, strategy.networks).items():
        groups.setdefault(tuple(health.values()), []).append(host)
    rows = []
    for row in strategy.table():
        answer = row.answer
        said = {"action": answer.action, "for_s": answer.for_s, "sentence": answer.sentence}
        rows.append({**_in_a_row(strategy, row.health, groups.pop(row.health, [])), **said})
    return {
        "networks": list(strategy.networks),
        "source": strategy.source,
        "strategy": strategy.to_plain(),
        "rows": rows,
        "undecided": [_in_a_row(strategy, key, names) for key, names in sorted(groups.items())],
        "differing": [
            {"observer": one.observer, "source": one.picture.strategy.source} for one in others
        ],
    }


def _in_a_row(
    strategy: matrix.Strategy, health: Sequence[str], names: Sequence[str]
) -> dict[str, Any]:
    by_network = dict(zip(strategy.networks, health, strict=True))
    return {"health": by_network, "hosts": sorted(names), "count": len(names)}
