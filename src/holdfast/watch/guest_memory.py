# SPDX-License-Identifier: Apache-2.0
"""What is remembered of guests, as plain values: written down beside what was told, it lets a watch
go on where the one before it ended, which told everything once and overlooked nothing.

A grace time that had begun begins again; what was counted for rates is counted anew.
"""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from holdfast.model.errors import InvalidInput
from holdfast.model.guest_filter import Filter, Sign, Verdict
from holdfast.watch.guests import GuestWatch, Track, Trouble

FORMAT = 1
_KEPT = ("uuid", "name", "life", "closing", "persistent")


def to_plain(watch: GuestWatch) -> dict[str, Any]:
    """For JSON."""
    return {"format": FORMAT, "guests": [_track(track) for track in watch.tracks.values()]}


def from_plain(said: Any, filters: Filter, now: float) -> GuestWatch:
    """InvalidInput if that was written by something else."""
    watch = GuestWatch(filters)
    try:
        if said["format"] != FORMAT:
            raise ValueError(f"format {said['format']!r} is not known")
        for one in said["guests"]:
            track = _remembered(one, filters, now)
            watch.tracks[track.uuid] = track
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"what was remembered of guests cannot be read: {error}") from error
    return watch


def _track(track: Track) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(track, name) for name in _KEPT}
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


def _remembered(said: Mapping[str, Any], filters: Filter, now: float) -> Track:
    kept = {name: said[name] for name in _KEPT}
    metadata = dict(said["metadata"])
    about = {**metadata, "name": said["name"]}
    troubles = {}
    for name, one in said["troubles"].items():
        sign = Sign(**one["sign"])
        verdict, _ = filters.judge(sign, about, {}, now, again=True)
        troubles[name] = _again(one, sign, verdict, now)
    return Track(**kept, metadata=metadata, troubles=troubles)


def _again(said: Mapping[str, Any], sign: Sign, verdict: Verdict, now: float) -> Trouble:
    return Trouble(
        sign,
        datetime.fromisoformat(said["since"]),
        began=now,
        last=now,
        verdict=verdict,
        lasts=bool(said["lasts"]),
        told=str(said["told"]),
        traces=tuple(said["traces"]),
        count=int(said["count"]),
    )
