# SPDX-License-Identifier: Apache-2.0
"""What is remembered of guests, as plain values: written down beside what was told, it lets a watch
go on where the one before it ended, which told everything once and overlooked nothing.

A grace time that had begun begins again; what was counted for rates is counted anew. What cannot
be read from a guest's state, that it hangs, counts for a moment only, unless it is heard again: it
may have ended while nobody listened. Who listened all the time, and only could not write, has the
tracks of before (`before`) and goes on with what they have and the disk has not: what hangs, what
was counted (also of guests that are gone, `counted`), and what is newer than a reading.
"""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from holdfast.model.errors import InvalidInput
from holdfast.model.guest_filter import Filter, Sign, Tally, Verdict
from holdfast.watch.guest_trouble import FAILED, UNSEEN, Trouble
from holdfast.watch.guests import GuestWatch, Track

FORMAT = 1
_KEPT = ("uuid", "name", "life", "closing", "persistent")


def to_plain(watch: GuestWatch) -> dict[str, Any]:
    """For JSON."""
    return {
        "format": FORMAT,
        "guests": [_track(track) for track in watch.tracks.values()],
        "dismissed": dict(watch.dismissed),
        "ill": list(watch.ill),
    }


def from_plain(
    said: Any,
    filters: Filter,
    now: float,
    before: Mapping[str, Track] | None = None,
    counted: Mapping[str, Tally] | None = None,
) -> GuestWatch:
    """InvalidInput if that was written by something else."""
    watch = GuestWatch(filters)
    watch.counted.update(counted or {})
    try:
        if said["format"] != FORMAT:
            raise ValueError(f"format {said['format']!r} is not known")
        for one in said["guests"]:
            track = _remembered(one, filters, now, before)
            watch.tracks[track.uuid] = track
        watch.dismissed.update(said.get("dismissed", {}))
        failed = [one.uuid for one in watch.tracks.values() if one.told == FAILED]
        watch.ill.update(dict.fromkeys(said.get("ill", failed), True))  # older ones wrote none
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"what was remembered of guests cannot be read: {error}") from error
    return watch


def _track(track: Track) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(track, name) for name in _KEPT}
    plain |= {"reason": track.reason, "since": track.since and track.since.isoformat()}
    plain["ended"] = track.ended
    plain["metadata"] = dict(track.metadata)
    plain["troubles"] = {name: _trouble(one) for name, one in track.troubles.items()}
    return plain


def _trouble(trouble: Trouble) -> dict[str, Any]:
    return {
        "sign": asdict(trouble.sign),
        "since": trouble.since.isoformat(),
        "lasts": trouble.lasts,
        "told": trouble.told,
        "traces": list(trouble.traces),
        "count": trouble.count,
    }


def _remembered(
    said: Mapping[str, Any], filters: Filter, now: float, before: Mapping[str, Track] | None
) -> Track:
    kept = {name: said[name] for name in _KEPT}
    old = (before or {}).get(said["uuid"], Track("", ""))
    metadata = dict(said["metadata"])
    about = {**metadata, "name": said["name"]}
    troubles = {}
    for name, one in said["troubles"].items():
        sign = Sign(**one["sign"])
        verdict, _ = filters.judge(sign, about, old.tally, now, again=True)
        sure = before is not None or sign.event not in UNSEEN
        troubles[name] = _again(one, sign, verdict, now, sure)
    since = said.get("since")  # older ones did not write it
    return Track(
        **kept,
        reason=str(said.get("reason", "")),
        ended=str(said.get("ended", "")),
        since=datetime.fromisoformat(since) if since else None,
        heard=old.heard,
        rebooted=old.rebooted,
        metadata=metadata,
        troubles=troubles,
        tally=old.tally,
    )


def _again(
    said: Mapping[str, Any], sign: Sign, verdict: Verdict, now: float, sure: bool
) -> Trouble:
    return Trouble(
        sign,
        datetime.fromisoformat(said["since"]),
        began=now,
        last=now,
        verdict=verdict,
        lasts=bool(said["lasts"]) and sure,
        told=str(said["told"]),
        traces=tuple(said["traces"]),
        count=int(said["count"]),
    )
