# SPDX-License-Identifier: Apache-2.0
"""What an agent told before it was killed, said again when it is back and the guest is still down.

A guest that was told of, was brought back and died once more while no agent was there is found as
it was left: nobody here can tell the two deaths apart. So it is said again, with when it was told
first (`told_before`), and Holdfast, which knows whether it brought the guest back in between, takes
it as a new failure or as the old one.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from holdfast.watch import guest_meaning as meaning
from holdfast.watch.guest_record import Reading
from holdfast.watch.guest_trouble import FAILED
from holdfast.watch.guests import GuestWatch, Happening, Track, happening

TOLD_BEFORE: Final = "told_before"


class Again:
    """Made of what was remembered, asked once, after the first reading was judged; and once more if
    what came of that could not be written down."""

    def __init__(self, watch: GuestWatch) -> None:
        self._told = {
            uuid: since for uuid, track in watch.tracks.items() if (since := _told(track))
        }
        self._was_asked = False

    def begin_again(self) -> None:
        """What was said since the last that was written down is not said."""
        self._was_asked = False

    def written(self) -> None:
        if self._was_asked:
            self._told = {}

    def after(self, reading: Reading, watch: GuestWatch) -> list[Happening]:
        if self._was_asked:
            return []
        self._was_asked, told, found = True, self._told, []
        for guest in reading.guests:
            track = watch.tracks.get(guest.uuid)
            if track is None or guest.uuid not in told or _told(track) != told[guest.uuid]:
                continue  # that is over, or something else by now
            if meaning.of_state(guest, meaning.UNKNOWN, "").sign is not None:  # by no order
                found.append(_again(track, _cause(track), reading.at))
        return found


def _cause(track: Track) -> str:
    return next((name for name, one in track.troubles.items() if one.told == FAILED), "")


def _told(track: Track) -> datetime | None:
    """Since when it is down, if that was told as a failure."""
    name = _cause(track)
    return track.troubles[name].since if name else None


def _again(track: Track, name: str, at: datetime) -> Happening:
    trouble = track.troubles[name]
    said = happening(track, name, replace(trouble, since=at), FAILED)
    before = {TOLD_BEFORE: trouble.since.isoformat()}
    return replace(said, key=f"{said.key}/again", evidence={**said.evidence, **before})
