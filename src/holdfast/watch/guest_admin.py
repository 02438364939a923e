# SPDX-License-Identifier: Apache-2.0
"""What an agent answers about its guests when it is asked (`watch/admin.py`): who they are, what
happens to them now, what would be told if something happened."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.model.errors import Conflict, InvalidInput, NotFound
from holdfast.ports.clock import Clock
from holdfast.ports.guests import Event
from holdfast.watch import guest_meaning as meaning
from holdfast.watch import guest_record
from holdfast.watch.admin import Handler, Items
from holdfast.watch.admin import only as _only
from holdfast.watch.admin import text as _text
from holdfast.watch.agent import HostAgent, View
from holdfast.watch.guest_record import Reading
from holdfast.watch.guest_shown import evidence, reading, row, shown
from holdfast.watch.guests import GuestWatch, Happening, Track
from holdfast.watch.spool import Spool
from holdfast.watch.tap import News, Sent, Tap

#: Those who watch are looked after so often, even if nothing happens.
TICK_S = 0.25
MOST_RECORDS = 1_000


class GuestCommands:
    def __init__(
        self,
        agent: HostAgent,
        spool: Spool,
        tap: Tap,
        clock: Clock,
        about: Mapping[str, Any],
        metrics: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """`about`: what else is said of the program, its pid and the like. `metrics`: what does not
        work of those (`troubles`), and what was lost (`alarms_lost`)."""
        self._agent = agent
        self._spool = spool
        self._tap = tap
        self._clock = clock
        self._about = about
        self._metrics = metrics

    def commands(self) -> Mapping[str, Handler]:
        return {
            "status": self.status,
            "guests.list": self.list_all,
            "guests.watch": self.watch,
            "guests.simulate": self.simulate,
        }

    def status(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Without a look at the disk, which may be what is slow: the spool knows its backlog."""
        _only(args)
        view = self._agent.view()
        return {
            **self._about,
            **self._metrics(),
            "host": view.host,
            "guests": len(view.tracks),
            "deaf": view.deaf,
            "stuck": view.stuck,
            "unjudged": view.waiting,
            "filters": view.filters.source,
            "filters_problem": view.problem,
            "spool": self._waiting(),
        }

    def list_all(self, args: Mapping[str, Any]) -> dict[str, Any]:
        said = self.status(args)
        now = self._clock.monotonic()
        tracks = sorted(self._agent.view().tracks.values(), key=lambda one: (one.name, one.uuid))
        return {
            **said,
            "guests": [row(track, now) for track in tracks],
        }

    def _waiting(self) -> dict[str, Any]:
        backlog, oldest_s = self._spool.backlog, None
        if backlog.oldest_at is not None:
            since = datetime.fromisoformat(backlog.oldest_at)
            oldest_s = max(0.0, (self._clock.now() - since).total_seconds())
        return {"waits": backlog.waits, "oldest_s": oldest_s, "put_aside": backlog.put_aside}

    # live

    def watch(self, args: Mapping[str, Any]) -> Items:
        """First how it stands, then everything that happens."""
        _only(args, "guest")
        ref = _text(args, "guest")
        with self._tap.watching() as watcher:
            view = self._agent.view()
            known = [track for track in view.tracks.values() if not ref or _is(track, ref)]
            standing = reading(known, self._clock.now())
            yield {"what": "standing", "host": view.host, "record": guest_record.plain(standing)}
            while True:
                news, missed = watcher.take(TICK_S)
                if not news and not missed:
                    yield None
                for one in news:
                    if (said := _about(one, ref)) is not None:
                        yield shown(said)
                if missed:
                    yield {"what": "missed", "count": missed}

    # what if

    def simulate(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Without `for_real` nothing changes and nobody is told."""
        _only(args, "records", "guest", "for_real")
        for_real = args.get("for_real", False)
        if not isinstance(for_real, bool):
            raise InvalidInput("`for_real` is true or false")
        view = self._agent.view()
        records = self._records(args, view)
        if for_real and not (len(records) == 1 and isinstance(records[0], Event)):
            raise InvalidInput("for real there is one event at a time: leave the others out")
        copy = GuestWatch(view.filters)
        copy.tracks = dict(view.tracks)
        judgements, told = _simulated(copy, records, self._clock.monotonic())
        if for_real and told:
            self._agent.tell_simulated([one for _, one in told])
        return {
            "host": view.host,
            "for_real": for_real,
            "judged": judgements,
            "told": [{"after_s": round(after_s, 3), **shown(one)} for after_s, one in told],
        }

    def _records(self, args: Mapping[str, Any], view: View) -> Sequence[Event | Reading]:
        said, ref = args.get("records"), _text(args, "guest")
        if not isinstance(said, list) or not 0 < len(said) <= MOST_RECORDS:
            raise InvalidInput(f"`records` are events and readings, {MOST_RECORDS} at most")
        whole = [self._filled(one, ref, view.tracks) for one in said]
        return list(guest_record.read(map(json.dumps, whole), "record"))

    def _filled(self, said: Any, ref: str, tracks: Mapping[str, Track]) -> Any:
        """With what the agent knows better than who asks."""
        if not isinstance(said, dict):
            return said
        said = {"at": self._clock.now().isoformat(), **said}
        if "guests" in said or {"uuid", "name"} <= said.keys():
            if ref and ref not in (said.get("uuid"), said.get("name")):
                raise InvalidInput(f"the record says itself who is meant: leave {ref!r} out")
            return said
        ref = ref or said.get("uuid") or said.get("name") or ""
        if not isinstance(ref, str) or not ref:
            raise InvalidInput("which guest? name it, or give its uuid and name")
        track = find(tracks.values(), ref)
        known = {"uuid": track.uuid, "name": track.name, "metadata": dict(track.metadata)}
        return {**known, **said}


def _simulated(
    copy: GuestWatch, records: Sequence[Event | Reading], now: float
) -> tuple[list[dict[str, Any]], list[tuple[float, Happening]]]:
    """What each event means, and what would be told after how many seconds. Whatever else goes on
    with guests that are not spoken of is left out."""
    first = records[0].at
    judgements = []
    events = {one.uuid for one in records if isinstance(one, Event)}
    everybody = any(isinstance(one, Reading) for one in records)

    def time_of(at: datetime) -> float:
        return now + max(0.0, (at - first).total_seconds())

    def one_by_one() -> Iterator[Event | Reading]:
        for record in records:
            if isinstance(record, Event):
                judgements.append(judgement(record, copy, time_of(record.at)))
            yield record

    told = guest_record.go_on(copy, one_by_one(), time_of)
    mine = [(at - now, one) for at, one in told if everybody or one.uuid in events]
    return judgements, mine


def judgement(event: Event, watch: GuestWatch, now: float) -> dict[str, Any]:
    """What an event would mean, and what the filters say to that."""
    track = watch.tracks.get(event.uuid) or Track(event.uuid, event.name)
    sign = meaning.of_event(event, track.life, track.closing).sign
    said = {"uuid": event.uuid, "guest": event.name, "life": track.life, "told": track.told}
    if sign is None:
        return {**said, "sign": "", "do": "", "rule": "", "after_s": 0.0}
    about = {**track.metadata, **event.metadata, "name": event.name}
    verdict, _ = watch.filters.judge(sign, about, track.tally, now)
    return {
        **said,
        "sign": str(sign),
        "do": verdict.do,
        "rule": verdict.rule,
        "after_s": verdict.after_s,
    }


def find(tracks: Iterable[Track], ref: str) -> Track:
    """By its uuid or its name."""
    found = [track for track in tracks if _is(track, ref)]
    if not found:
        raise NotFound(f"the agent knows no guest {ref!r}: `holdfast guests list` shows them")
    if len(found) > 1:
        uuids = ", ".join(track.uuid for track in found)
        raise Conflict(f"{len(found)} guests are called {ref}: name one by its uuid: {uuids}")
    return found[0]


def _is(track: Track, ref: str) -> bool:
    return ref in (track.uuid, track.name)


def _about(news: News, ref: str) -> News | None:
    """What of it concerns that guest; all of it if none is named."""
    if not ref:
        return news
    if isinstance(news, Reading):
        mine = tuple(one for one in news.guests if ref in (one.uuid, one.name))
        return Reading(mine, news.at)
    if isinstance(news, Sent):
        named = (news.body["subject"].removeprefix("server:"), evidence(news).get("domain_name"))
        return news if ref in named else None
    return news if ref in (news.uuid, news.name) else None


# what is asked
