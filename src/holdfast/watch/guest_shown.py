# SPDX-License-Identifier: Apache-2.0
"""What an agent knows of its guests and what it goes through, as plain values for those who ask."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import singledispatch
from typing import Any

from holdfast.ports.guests import Event, Guest
from holdfast.watch import guest_meaning as meaning
from holdfast.watch import guest_record
from holdfast.watch.guest_record import Reading
from holdfast.watch.guest_trouble import Trouble
from holdfast.watch.guests import Happening, Track
from holdfast.watch.tap import Judged, Sent

_STATES = {
    meaning.RUNNING: "running",
    meaning.PAUSED: "paused",
    meaning.CRASHED: "crashed",
    meaning.OFF: "shutoff",
}


def row(track: Track, now: float) -> dict[str, Any]:
    """One row of the list."""
    about = track.metadata
    return {
        "name": track.name,
        "uuid": track.uuid,
        "life": track.life,
        "reason": track.reason,
        "since": track.since.isoformat() if track.since else None,
        "project": about.get("project_name") or about.get("project", ""),
        "flavor": about.get("flavor", ""),
        "ha": about.get("ha", ""),
        "heartbeat": about.get("heartbeat", ""),
        "persistent": track.persistent,
        "trouble": [_trouble(one, now) for one in track.troubles.values()],
        "metadata": dict(about),
    }


def _trouble(trouble: Trouble, now: float) -> dict[str, Any]:
    sign, due = trouble.sign, trouble.due
    return {
        "event": sign.event,
        "detail": sign.detail,
        "reason": sign.reason,
        "disk": sign.disk,
        "since": trouble.since.isoformat(),
        "do": trouble.verdict.do,
        "rule": trouble.verdict.rule,
        "due_s": None if due is None else round(max(0.0, due - now), 1),
        "told": trouble.told,
        "over": not trouble.lasts,
        "count": trouble.count,
        "traces": list(trouble.traces),
    }


def reading(tracks: Iterable[Track], at: datetime) -> Reading:
    """What is remembered, as if it had been read: a recording that begins so can be replayed. Why a
    guest is off is left out once that is over, or it would be told as if it were new."""
    return Reading(tuple(_guest(one) for one in tracks if one.life in _STATES), at)


def _guest(track: Track) -> Guest:
    over = track.life == meaning.OFF and not track.troubles
    guest = Guest(
        *(track.uuid, track.name, _STATES[track.life], "" if over else track.reason),
        persistent=track.persistent,
        metadata=track.metadata,
    )
    stopped = track.troubles.get("io_error pause")
    if stopped is None:
        return guest
    sign = stopped.sign
    return replace(guest, error=sign.reason, disk=sign.disk, path=sign.path)


def evidence(sent: Sent) -> Mapping[str, Any]:
    found = sent.body.get("evidence", {})
    return found if isinstance(found, Mapping) else {}


@singledispatch
def shown(news: Any) -> dict[str, Any]:
    """One line for those who watch."""
    raise TypeError(type(news))


@shown.register
def _of_event(news: Event) -> dict[str, Any]:
    return {"what": "event", "record": guest_record.plain(news)}


@shown.register
def _of_reading(news: Reading) -> dict[str, Any]:
    states = dict(Counter(one.state for one in news.guests))
    return {"what": "reading", "states": states, "record": guest_record.plain(news)}


@shown.register
def _of_judged(news: Judged) -> dict[str, Any]:
    verdict = news.verdict
    return {
        "what": "verdict",
        "uuid": news.uuid,
        "guest": news.name,
        "sign": str(news.sign),
        "do": verdict.do,
        "after_s": verdict.after_s,
        "rule": verdict.rule,
    }


@shown.register
def _of_happening(news: Happening) -> dict[str, Any]:
    about = news.evidence
    said = {name: about[name] for name in ("event", "detail", "reason", "disk", "rule")}
    return {
        "what": "told",
        "uuid": news.uuid,
        "guest": news.name,
        "state": news.state,
        "since": news.since.isoformat(),
        **said,
        "simulated": bool(about.get("simulated")),
    }


@shown.register
def _of_sent(news: Sent) -> dict[str, Any]:
    return {
        "what": "delivery",
        "subject": news.body["subject"],
        "guest": evidence(news).get("domain_name", ""),
        "state": news.body["state"],
        "outcome": news.outcome,
        "why": news.why,
    }
