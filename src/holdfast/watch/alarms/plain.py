# SPDX-License-Identifier: Apache-2.0
"""What an engine remembers as plain data, for a file, and back after a restart.

Monotonic times mean nothing to another process, so ages are kept. What waits for its `for` goes on:
the time that nobody looked counts as long as it is a short one, as a restart is. Windows of rates
are not kept; until they are filled again, alarms stand as they were. What was told and has no rule
any more ends with the first pass, for whoever heard of it waits for its end.

Of thousands of alarms few change in a pass: `part` is what is remembered of one rule, to be written
when that changed, and `head` is all the rest.
"""

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

from holdfast.model.alarm_rules import NONE, Condition, Rule, Selector
from holdfast.ports.metrics import Entity
from holdfast.watch.alarms.change import OK, PENDING, STATES, change_from
from holdfast.watch.alarms.engine import RULE_CHANGED, RULE_REMOVED, Engine
from holdfast.watch.alarms.telling import Storm, is_capped
from holdfast.watch.alarms.track import Track
from holdfast.watch.alarms.watcher import Watcher

FORMAT: Final = 2
_KNOWN: Final = (1, FORMAT)
#: Of the time between the last writing and the first pass so much counts as seen.
UNSEEN_S: Final = 120.0
_AGES: Final = frozenset({"began", "lapsed", "gap", "cleared", "told_now"})
_DATES: Final = frozenset({"first_at", "last_at", "told_first_at"})
_ENTITY: Final = ("kind", "id", "name", "project", "guest")
#: Most alarms have nothing to say of these.
_AT_REST: Final = {
    **dict.fromkeys(("lapsed", "gap", "cleared")),
    **{"reason": "", "flaps": 0, "which": 0},
}
_TOLD: Final = ("told", "told_first_at", "told_as", "told_now")
_ALWAYS: Final = ("state", "began", "first_at", "last_at", "samples", "value")
#: What is said of an alarm and stands in its rule.
_SAID: Final = ("severity", "topic", "summary", "no_data", "for_s")


def plain(engine: Engine, at: datetime, now: float) -> dict[str, Any]:
    """JSON can hold it."""
    parts = {
        name: part(watcher, at, now)
        for name, watcher in engine.watchers.items()
        if watcher.remembers
    }
    return {**head(engine, at, now), "rules": parts}


def head(engine: Engine, at: datetime, now: float) -> dict[str, Any]:
    """Without `rules`, the parts by their ids."""
    teller = engine.teller
    storm = teller.storm
    return {
        "format": FORMAT,
        "saved_at": at.isoformat(),
        "version": engine.rules.version,
        "ended": [[reason, part(watcher, at, now)] for watcher, reason in engine.retired],
        "open": {
            project: {"age_s": now - opened, "changes": [one.plain() for one in changes]}
            for project, (opened, changes) in teller.open.items()
        },
        "storm": {
            "told": storm.told,
            "worst": storm.worst,
            "first": storm.first.plain() if storm.first else None,
            "calm_s": now - storm.calm_since,
        },
    }


def part(watcher: Watcher, at: datetime, now: float) -> dict[str, Any]:
    """What is remembered of one rule."""
    rule = watcher.rule
    return {
        "id": rule.id,
        "saved_at": at.isoformat(),
        "memory": rule.memory,
        "said": {
            **{name: getattr(rule, name) for name in _SAID},
            "level": rule.conditions[0].level,
            "actions": list(rule.actions),
        },
        "levels": [one.level for one in rule.conditions],
        "tracks": [_track(one, now) for one in watcher.tracks.values()],
        "hits": [judge.hits for judge in watcher.judges],
        "spent": [judge.spent for judge in watcher.judges],
    }


def restore(engine: Engine, saved: Mapping[str, Any], at: datetime, now: float) -> bool:
    """Into an engine that has seen nothing yet; whether there was anything it can use. A rule that
    is about other numbers now begins anew, and its alarms end."""
    if saved.get("format") not in _KNOWN:
        return False
    gap_s = _since(saved["saved_at"], at)
    ended = list(saved.get("ended", ()))
    for name, kept in saved["rules"].items():
        watcher = engine.watchers.get(name)
        if watcher is None or watcher.rule.memory != kept["memory"]:
            reason = RULE_REMOVED if watcher is None else RULE_CHANGED
            ended.append([reason, {"id": name, **kept}])
            continue
        _remember(engine, watcher, {"saved_at": saved["saved_at"], **kept}, at, now)
        for judge, hits, spent in zip(watcher.judges, kept["hits"], kept["spent"], strict=True):
            judge.hits, judge.spent = dict(hits), dict(spent)
        if said := kept.get("said"):
            watcher.renew(said["severity"], said["actions"])
    for reason, kept in ended:
        watcher = _without_rule(kept)
        _remember(engine, watcher, {"saved_at": saved["saved_at"], **kept}, at, now)
        engine.retired.append((watcher, reason))
    for project, group in saved["open"].items():
        changes = [change_from(one) for one in group["changes"]]
        engine.teller.open[project] = (now - group["age_s"] - gap_s, changes)
    storm = saved["storm"]
    first = change_from(storm["first"]) if storm["first"] else None
    calm_since = now - storm["calm_s"] - gap_s
    worst = storm.get("worst", first.severity if first else NONE)
    engine.teller.storm = Storm(storm["told"], worst, first, calm_since)
    return True


def _remember(
    engine: Engine, watcher: Watcher, kept: Mapping[str, Any], at: datetime, now: float
) -> None:
    gap_s = _since(kept["saved_at"], at)
    tracks = {one["entity"]["id"]: _restored(one, gap_s, now) for one in kept["tracks"]}
    for track in tracks.values():
        if track.told != OK:
            track.told_as = track.told_as or watcher.rule.severity
            engine.teller.standing[track.told_as] += is_capped(track)
    watcher.remember(tracks, now)


def _without_rule(kept: Mapping[str, Any]) -> Watcher:
    """Of a rule that is not there any more as much as it takes to say that its alarms are over."""
    said = dict(kept.get("said", {}))
    level, actions = said.pop("level", 0.0), tuple(said.pop("actions", ("notify",)))
    levels = kept.get("levels", [level])
    conditions = tuple(Condition("", ">", one, one) for one in levels)
    return Watcher(Rule(kept["id"], Selector(""), conditions, actions=actions, **said))


def _since(saved_at: str, at: datetime) -> float:
    return max(0.0, (at - datetime.fromisoformat(saved_at)).total_seconds())


def _track(track: Track, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(track, name) for name in _ALWAYS}
    if track.told != OK:
        found |= {name: getattr(track, name) for name in _TOLD}
    for name, rest in _AT_REST.items():
        if (value := getattr(track, name)) != rest:
            found[name] = value
    for name in _AGES & found.keys():
        found[name] = now - found[name]
    for name in _DATES & found.keys():
        found[name] = found[name].isoformat()
    found["entity"] = {name: getattr(track.entity, name) for name in _ENTITY}
    return found


def _restored(saved: Mapping[str, Any], gap_s: float, now: float) -> Track:
    found = {one.name: saved[one.name] for one in fields(Track) if one.name in saved}
    for name in _AGES & found.keys():
        found[name] = None if found[name] is None else now - found[name] - gap_s
    for name in _DATES & found.keys():
        found[name] = datetime.fromisoformat(found[name])
    if found["state"] not in STATES:
        raise ValueError(f"{found['state']!r} is no state of an alarm")
    if found["state"] == PENDING:
        found["began"] += max(0.0, gap_s - UNSEEN_S)
    return Track(**{**found, "entity": Entity(**saved["entity"])})
