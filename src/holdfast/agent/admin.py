# SPDX-License-Identifier: Apache-2.0
"""The agent's admin interface: commands about guests, and the Unix socket that serves them.

    admin = Admin()
    admin.add({"status": lambda args: {"host": "cmp-7"}})
    list(admin.answer(b'{"command": "status"}'))     # [b'{"answer": {"host": "cmp-7"}}\\n']

A request is one line of JSON: `{"command": "guests.list", "args": {…}}`. The response is one line
too: `answer`, or `error` with `code` and `message`. A streaming command returns an iterator; the
agent sends one `item` per line, then `end`. `Admin` dispatches commands, `GuestCommands` implements
the commands about guests, `AdminSocket` reads requests from the socket and writes responses.
"""

import contextlib
import fcntl
import json
import logging
import os
import select
import socket
import stat
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import singledispatch
from typing import Any

from holdfast.agent import guest_state as meaning
from holdfast.agent import guest_store
from holdfast.agent.agent import HostAgent, Judged, Sent, Tap, View, WatchedEvent
from holdfast.agent.guest_state import Fault, GuestEvent, GuestWatch, Track
from holdfast.agent.guest_store import Reading
from holdfast.agent.outbox import Outbox
from holdfast.model.errors import (
    Conflict,
    DriverError,
    HoldfastError,
    InvalidInput,
    NotFound,
    TooLarge,
    Unavailable,
)
from holdfast.ports.guests import Event, Guest
from holdfast.ports.reports import Answers
from holdfast.runtime.clock import Clock

LOG = logging.getLogger(__name__)

#: An iterator of items; None means that there is no item at this moment.
Items = Generator[Mapping[str, Any] | None, None, None]
Handler = Callable[[Mapping[str, Any]], Mapping[str, Any] | Items]


class Admin:
    """Command registry and dispatcher (`ports.reports.Answers`); thread-safe."""

    def __init__(self) -> None:
        self._commands: dict[str, Handler] = {"commands": lambda _: {"commands": self.names}}

    def add(self, commands: Mapping[str, Handler]) -> None:
        for name, handler in commands.items():
            if name in self._commands:
                raise ValueError(f"there are two commands called {name}")
            self._commands[name] = handler

    @property
    def names(self) -> list[str]:
        return sorted(self._commands)

    def answer(self, line: bytes) -> Generator[bytes | None, None, None]:
        try:
            name, args = _asked(line)
            if name not in self._commands:
                there = ", ".join(self.names)
                raise NotFound(f"there is no command {name[:80]!r}: there are {there}")
            found = self._commands[name](args)
            if isinstance(found, Mapping):
                yield _line({"answer": found})
                return
            with contextlib.closing(found) as items:
                for item in items:
                    yield None if item is None else _line({"item": item})
            yield _line({"end": {}})
        except HoldfastError as error:
            yield self.refusal(error)
        except Exception:  # one failed request must not end the service for the next one
            LOG.exception("asked by a socket: unforeseen")
            yield self.refusal(HoldfastError("something unforeseen: the agent's log says what"))

    def refusal(self, error: HoldfastError) -> bytes:
        return _line({"error": {"code": error.code, "message": error.message}})


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _asked(line: bytes) -> tuple[str, Mapping[str, Any]]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"a question is one line of JSON: {error}") from error
    if not isinstance(said, dict) or not isinstance(said.get("command"), str):
        raise InvalidInput('a question is written {"command": "status", "args": {}}')
    args = said.get("args", {})
    if not isinstance(args, dict):
        raise InvalidInput("`args` are written {…}")
    return said["command"], args


def only(args: Mapping[str, Any], *known: str) -> None:
    """Raise InvalidInput if `args` has a key besides `known`."""
    for name in args:
        if name not in known:
            there = ", ".join(known) or "none"
            raise InvalidInput(f"`{name[:80]}` is unknown: of `args` there are {there}")


def text(args: Mapping[str, Any], name: str) -> str:
    """Return a text argument, or "" if the request has none."""
    value = args.get(name) or ""
    if not isinstance(value, str):
        raise InvalidInput(f"`{name}` is a text")
    return value


# Guest tracks, readings and agent events as JSON values, for the commands below.


_STATES = {
    meaning.RUNNING: "running",
    meaning.PAUSED: "paused",
    meaning.CRASHED: "crashed",
    meaning.OFF: "shutoff",
}


def row(track: Track, now: float) -> dict[str, Any]:
    """Return a guest as a row of `guests.list`."""
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


def _trouble(trouble: Fault, now: float) -> dict[str, Any]:
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
    """Return the known guests as a hypervisor reading, because a replayable recording begins so.

    A guest that is off without a fault gets no reason: the replay would report it as a new fault.
    """
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
    """Return an agent event as a line of `guests.watch`."""
    raise TypeError(type(news))


@shown.register
def _of_event(news: Event) -> dict[str, Any]:
    return {"what": "event", "record": guest_store.plain(news)}


@shown.register
def _of_reading(news: Reading) -> dict[str, Any]:
    states = dict(Counter(one.state for one in news.guests))
    return {"what": "reading", "states": states, "record": guest_store.plain(news)}


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
def _of_happening(news: GuestEvent) -> dict[str, Any]:
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


# Commands about guests: list them, watch their events live, and simulate events.


#: `watch` yields at least this often, so that the socket notices a client that has left. The
#: socket's thread checks this often whether to stop.
TICK_S = 0.25
MOST_RECORDS = 1_000


class GuestCommands:
    """The commands `status`, `guests.list`, `guests.watch` and `guests.simulate`."""

    def __init__(
        self,
        agent: HostAgent,
        spool: Outbox,
        tap: Tap,
        clock: Clock,
        about: Mapping[str, Any],
        metrics: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Take the values that `status` returns besides the agent's own.

        `about` holds facts about the process, such as its pid. `metrics` returns problems of the
        metrics (`troubles`) and the number of lost alarms (`alarms_lost`).
        """
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
        """Return the agent's status without disk access, because the disk may be slow.

        The outbox keeps its backlog in memory.
        """
        only(args)
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

    # live events

    def watch(self, args: Mapping[str, Any]) -> Items:
        """Yield the current state of the guests first, then every event."""
        only(args, "guest")
        ref = text(args, "guest")
        with self._tap.watching() as watcher:
            view = self._agent.view()
            known = [track for track in view.tracks.values() if not ref or _is(track, ref)]
            standing = reading(known, self._clock.now())
            yield {"what": "standing", "host": view.host, "record": guest_store.plain(standing)}
            while True:
                news, missed = watcher.next_event(TICK_S)
                if not news and not missed:
                    yield None
                for one in news:
                    if (said := _about(one, ref)) is not None:
                        yield shown(said)
                if missed:
                    yield {"what": "missed", "count": missed}

    # simulation

    def simulate(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Judge records with a copy of the guest state; with `for_real` report the result.

        Without `for_real` nothing changes and the agent sends no report.
        """
        only(args, "records", "guest", "for_real")
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
            self._agent.report_simulated([one for _, one in told])
        return {
            "host": view.host,
            "for_real": for_real,
            "judged": judgements,
            "told": [{"after_s": round(after_s, 3), **shown(one)} for after_s, one in told],
        }

    def _records(self, args: Mapping[str, Any], view: View) -> Sequence[Event | Reading]:
        said, ref = args.get("records"), text(args, "guest")
        if not isinstance(said, list) or not 0 < len(said) <= MOST_RECORDS:
            raise InvalidInput(f"`records` are events and readings, {MOST_RECORDS} at most")
        whole = [self._filled(one, ref, view.tracks) for one in said]
        return list(guest_store.read(map(json.dumps, whole), "record"))

    def _filled(self, said: Any, ref: str, tracks: Mapping[str, Track]) -> Any:
        """Complete a record with the date, and with uuid, name and metadata of a known guest."""
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
) -> tuple[list[dict[str, Any]], list[tuple[float, GuestEvent]]]:
    """Return the verdict on each event, and the reports with their delay in seconds.

    Reports about guests that the records do not name are left out, unless a record is a reading
    of all guests.
    """
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

    told = guest_store.go_on(copy, one_by_one(), time_of)
    mine = [(at - now, one) for at, one in told if everybody or one.uuid in events]
    return judgements, mine


def judgement(event: Event, watch: GuestWatch, now: float) -> dict[str, Any]:
    """Return the symptom of an event and the verdict of the filters on it."""
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
    """Return the guest with this uuid or name; NotFound if there is none, Conflict if several."""
    found = [track for track in tracks if _is(track, ref)]
    if not found:
        raise NotFound(f"the agent knows no guest {ref!r}: `holdfast guests list` shows them")
    if len(found) > 1:
        uuids = ", ".join(track.uuid for track in found)
        raise Conflict(f"{len(found)} guests are called {ref}: name one by its uuid: {uuids}")
    return found[0]


def _is(track: Track, ref: str) -> bool:
    return ref in (track.uuid, track.name)


def _about(news: WatchedEvent, ref: str) -> WatchedEvent | None:
    """Return the part of an agent event about guest `ref`; the whole event if `ref` is empty."""
    if not ref:
        return news
    if isinstance(news, Reading):
        mine = tuple(one for one in news.guests if ref in (one.uuid, one.name))
        return Reading(mine, news.at)
    if isinstance(news, Sent):
        named = (news.body["subject"].removeprefix("server:"), evidence(news).get("domain_name"))
        return news if ref in named else None
    return news if ref in (news.uuid, news.name) else None


# The Unix socket for operators on this machine: one request line, one response per connection.
#
#     AdminSocket("/run/holdfast/agent.sock", answers, clock).start()
#
# The agent works without the socket too: if it cannot open the socket it logs the error once and
# tries again every AGAIN_S seconds. The owner of the socket holds a lock file beside it. The kernel
# releases the lock when the process dies, so an agent replaces the socket of a killed process but
# never the socket of a running one.


PORT = "admin socket"
AGAIN_S = 5.0


@dataclass(frozen=True)
class Limits:
    connections: int = 32
    request_bytes: int = 256 * 1024
    request_s: float = 3.0  # until the whole request has arrived
    send_s: float = 10.0  # to send one line to a client that does not read


class AdminSocket:
    """The thread that accepts connections on the admin socket; each connection gets a thread."""

    def __init__(
        self, path: str, answers: Answers, clock: Clock, limits: Limits | None = None
    ) -> None:
        self._path = path
        self._answers = answers
        self._clock = clock
        self._limits = limits or Limits()
        self._stop = threading.Event()
        self._place: _Place | None = None
        self._complained = ""
        self._talking: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._forever, name="admin", daemon=True)

    def start(self) -> None:
        """Open the socket and start the thread; if opening fails, log why and go on."""
        self._open()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        for talk in list(self._talking):
            talk.join(timeout=2)
        if self._place is not None:
            self._place.leave()

    # accepting connections

    def _forever(self) -> None:
        while not self._stop.is_set():
            try:
                if self._place is None and not self._open():
                    self._clock.wait(self._stop, AGAIN_S)
                else:
                    self._let_in()
            except Exception:  # the top of the thread: the loop must go on
                LOG.exception("%s %s: unforeseen", PORT, self._path)
                self._clock.wait(self._stop, TICK_S)

    def _open(self) -> bool:
        try:
            self._place = _Place(self._path)
        except HoldfastError as error:
            if error.message != self._complained:
                LOG.error("nobody can ask us, all else goes on: %s", error.message)
            self._complained = error.message
            return False
        if self._complained:
            LOG.info("%s %s: is there now", PORT, self._path)
        self._complained = ""
        return True

    def _let_in(self) -> None:
        assert self._place is not None
        try:
            caller, _ = self._place.listener.accept()
        except TimeoutError:
            return
        except OSError as error:  # for example no file descriptor left
            LOG.warning("%s %s: %s", PORT, self._path, error)
            self._clock.wait(self._stop, TICK_S)
            return
        self._talking = {one for one in self._talking if one.is_alive()}
        if len(self._talking) >= self._limits.connections:
            with caller, contextlib.suppress(OSError):
                caller.settimeout(0)
                full = f"{self._limits.connections} are being answered: try again in a moment"
                caller.sendall(self._answers.refusal(Unavailable(full)))
            return
        talk = threading.Thread(target=self._talk, args=(caller,), name="admin-talk", daemon=True)
        self._talking.add(talk)
        talk.start()

    # one connection

    def _talk(self, caller: socket.socket) -> None:
        with caller:
            try:
                self._converse(caller)
            except TimeoutError:
                LOG.warning(
                    "%s: one who read nothing for %g s is cut off", PORT, self._limits.send_s
                )
            except OSError as error:  # the client went away
                LOG.debug("%s: %s", PORT, error)
            except Exception:  # the top of the thread
                LOG.exception("%s: unforeseen", PORT)

    def _converse(self, caller: socket.socket) -> None:
        try:
            line = self._question(caller)
        except HoldfastError as error:
            self._send(caller, self._answers.refusal(error))
            return
        answer = self._answers.answer(line)
        with contextlib.closing(answer):
            for said in answer:
                if self._stop.is_set():
                    self._send(caller, self._answers.refusal(Unavailable("the agent stops")))
                    return
                if said is not None:
                    self._send(caller, said)
                elif _gone(caller):
                    return

    def _question(self, caller: socket.socket) -> bytes:
        """Return the first line that the client sends; end of file ends the line too."""
        limits, said = self._limits, bytearray()
        until = self._clock.monotonic() + limits.request_s
        late = InvalidInput(
            f"no question came within {limits.request_s:g} s: end it with a new line"
        )
        while b"\n" not in said:
            left = until - self._clock.monotonic()
            if left <= 0:
                raise late
            caller.settimeout(left)
            try:
                got = caller.recv(64 * 1024)
            except TimeoutError:
                raise late from None
            if not got:
                break
            said += got
            if len(said) > limits.request_bytes:
                raise TooLarge(f"a question has at most {limits.request_bytes} bytes")
        return bytes(said.partition(b"\n")[0])

    def _send(self, caller: socket.socket, line: bytes) -> None:
        caller.settimeout(self._limits.send_s)
        caller.sendall(line)


def _gone(caller: socket.socket) -> bool:
    """Whether the client hung up; a client that only shut down its sending side has not."""
    poll = select.poll()
    poll.register(caller, 0)  # poll reports hang-ups and errors in any case
    return bool(poll.poll(0))


class _Place:
    """The socket file and its lock file, while this agent owns them."""

    def __init__(self, path: str) -> None:
        self._path = path
        with contextlib.ExitStack() as undo:
            try:
                os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
                self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                undo.callback(os.close, self._lock)
                self._claim()
                self.listener = undo.enter_context(socket.socket(socket.AF_UNIX))
                self.listener.bind(path)
                os.chmod(path, 0o600)  # before `listen`, so that no client can connect earlier
                self.listener.listen(128)
                self.listener.settimeout(TICK_S)
            except OSError as error:
                why = f"{path}: {error.strerror or error}: name another file by [agent] socket"
                raise DriverError(PORT, why, retryable=True) from error
            undo.pop_all()

    def _claim(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(
                f"another agent that runs is asked at {self._path}: stop it, or name another file "
                "by [agent] socket"
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self._path).st_mode):
                raise Conflict(f"{self._path} is no socket: name another file by [agent] socket")
            os.unlink(self._path)  # left by a process that died

    def leave(self) -> None:
        self.listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._lock)
