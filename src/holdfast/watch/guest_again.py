# SPDX-License-Identifier: Apache-2.0
"""What an agent told before it was killed, said again when it is back and the guest is still down.

A guest that was told of, was brought back and died once more while no agent was there is found as
it was left: nobody here can tell the two deaths apart. So it is said again, with when it was told
first (`told_before`), and Holdfast, which knows whether it brought the guest back in between, takes
it as a new failure or as the old one.

Not at once: who was ordered to run again may just not be up yet, and would be brought back twice.
So it is said if a reading some seconds later still finds it down and nothing was heard of its start
between, and with the date of the first reading: an order that was given after that is about it.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from holdfast.ports.guests import Guest
from holdfast.watch import guest_meaning as meaning
from holdfast.watch.guest_record import Reading
from holdfast.watch.guest_trouble import FAILED
from holdfast.watch.guests import GuestWatch, Happening, Track, happening

TOLD_BEFORE: Final = "told_before"
#: So long after the first reading one that is still down is not just about to be up.
SURE_S: Final = 10.0


class Again:
    """Made of what was remembered, asked after each reading was judged, until something is said of
    it; and once more if what came of that could not be written down."""

    def __init__(self, watch: GuestWatch) -> None:
        self._told = {
            uuid: since for uuid, track in watch.tracks.items() if (since := _told(track))
        }
        self._left = self._told
        self._first: tuple[float, datetime] | None = None
        self._said = False

    def begin_again(self) -> None:
        """What was said since the last that was written down is not said."""
        self._left, self._said = self._told, False

    def written(self) -> None:
        self._told = {} if self._said else self._left

    def after(self, reading: Reading, watch: GuestWatch, when: float) -> list[Happening]:
        """`when` reading began, by the clock that does not jump."""
        if self._said or not self._told:
            return []
        down = [one for guest in reading.guests if (one := self._still(guest, watch)) is not None]
        self._left = {track.uuid: self._told[track.uuid] for track in down}
        first, at = self._first = self._first or (when, reading.at)
        self._said = when - first >= SURE_S
        return [_again(track, _cause(track), at) for track in down] if self._said else []

    def _still(self, guest: Guest, watch: GuestWatch) -> Track | None:
        """What is known of it, if it is down as it was left; otherwise that is over, or something
        else by now."""
        track = watch.tracks.get(guest.uuid)
        if track is None or guest.uuid not in self._told or _told(track) != self._told[guest.uuid]:
            return None
        by_order = meaning.of_state(guest, meaning.UNKNOWN, "").sign is None
        return None if by_order else track


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
