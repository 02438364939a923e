# SPDX-License-Identifier: Apache-2.0
"""Rule manager: the alarm rules of a host, changed while the agent runs.

    rules = RuleManager(engine, outbox, clock)   # restores the rules in force before a restart
    rules.offer(text, FILE)                      # Accepted; BadRules: nothing changed
    rules.test(text)                             # result on the last snapshot; nothing changes

Rules come from two sources, each with a layer of its own: a file on the host, and Holdfast's
manager (central rules). If both layers define the same rule id, the central rule counts, so
central rules can change a level that a file sets.

New rules are parsed, tried on the last snapshot, written to disk and prepared; the next pass
begins by putting them in force. A pass uses the old rules or the new rules and never waits:
rules are parsed between two passes.

`RulesFile` and `Heartbeat` bring rules to the rule manager's `offer`.
"""

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol

from holdfast.agent.admin import Handler, only
from holdfast.alarms import rules_file
from holdfast.alarms.engine import Applied, Engine, Outcome, Prepared, Trial
from holdfast.alarms.rules import BadRules, Rule, RuleSet
from holdfast.alarms.scopes import NONE
from holdfast.alarms.tracks import Change
from holdfast.metrics import history
from holdfast.metrics.history import Hour, Recent
from holdfast.metrics.passes import PassScheduler
from holdfast.model.errors import DriverError, InvalidInput, Problem
from holdfast.ports.metrics import Snapshot
from holdfast.ports.reports import Centre
from holdfast.runtime.clock import Clock
from holdfast.runtime.documents import Followed
from holdfast.runtime.threads import PeriodicTask

LOG = logging.getLogger(__name__)

FILE: Final = "file"
CENTRAL: Final = "central"
#: Sources of rules; a later source overrides an earlier.
SOURCES: Final = (FILE, CENTRAL)
#: Layer of rules under test, above both sources.
TRIAL: Final = "trial"
#: Name of the note in the outbox.
NOTE: Final = "alarm-rules"
#: Shortest and longest free time between two passes, in seconds, that reading of rules asks
#: for.
LEAST_ROOM_S, MOST_ROOM_S = 0.01, 0.25
_NOTHING: Final = RuleSet()


class Notes(Protocol):
    """Durable storage for the rules, implemented by `holdfast.agent.outbox.Outbox`."""

    def put(
        self,
        items: Iterable[tuple[str, str, Mapping[str, Any]]],
        notes: Mapping[str, Any] | None = None,
    ) -> None: ...

    def note(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Layer:
    """Last accepted rules of a source; `version` is the source's own version."""

    text: str
    version: str
    at: str


@dataclass(frozen=True)
class State:
    """Rules in force, by source."""

    number: int = 0
    layers: Mapping[str, Layer] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of all layers."""
        texts = [f"{name}\0{self.layers[name].text}" for name in SOURCES if name in self.layers]
        return hashlib.sha256("\0\0".join(texts).encode(errors="surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True)
class Tried:
    """Last offer of a source; `error` says why the offer is not in force."""

    digest: str = ""
    version: str = ""
    error: str = ""
    at: str = ""


@dataclass(frozen=True)
class Accepted:
    """Result of an accepted offer."""

    rules: RuleSet
    applied: Applied
    trials: tuple[Trial, ...] = ()  # new or changed rules on the last snapshot


class RuleManager:
    """Owner of the alarm engine and its rules; threads may share a rule manager.

    Passes go through the rule manager too.
    """

    def __init__(
        self, engine: Engine, notes: Notes, clock: Clock, *, known_fields: bool = True
    ) -> None:
        """With `known_fields`, rules on fields that no agent measures are refused.

        Rules that were accepted once stay in force, because another version of Holdfast may
        have known the field.
        """
        self._known_fields = known_fields
        self._engine = engine
        self._notes = notes
        self._clock = clock
        self.scheduler = PassScheduler(clock)
        self._needs_s = LEAST_ROOM_S
        self._piece_at = self._longest_s = 0.0  # work of the current offer between two passes
        self._offering = threading.Lock()
        self._passing = threading.Lock()
        self._ready: deque[Prepared] = deque(maxlen=1)  # for the next pass
        self._rules = engine.rules
        self.firing = 0  # firing alarms after the last pass
        self._parsed: dict[str, tuple[str, RuleSet]] = {}  # by source: text and parsed rules
        self._state = State()
        self._tried: dict[str, Tried] = {}
        self._recall()

    # called by the pass thread

    def apply(self, snapshot: Snapshot) -> Outcome:
        """Run a pass: put prepared rules in force, then evaluate the snapshot."""
        with self._passing:
            self._swap()
            outcome = self._engine.evaluate(snapshot)
            if outcome.changes:
                self.firing = self._engine.firing
            return outcome

    def _swap(self) -> None:
        """Put prepared rules in force, if any, between two passes."""
        with suppress(IndexError):
            self._engine.apply(self._ready.pop())

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """Lock the engine to save its state; a pass waits meanwhile."""
        with self._passing:
            yield self._engine

    @contextmanager
    def restoring(self) -> Iterator[Engine]:
        """Lock the engine to restore its state."""
        with self.engine() as engine:
            yield engine
            self.firing = engine.firing

    # queries; any thread may call them

    @property
    def rules(self) -> RuleSet:
        """Rules in force, at the latest from the next pass on."""
        return self._rules

    @property
    def state(self) -> State:
        return self._state

    def alarms(self) -> list[Change]:
        with self._passing:
            return self._engine.alarms()

    def tried(self, source: str) -> Tried:
        return self._tried.get(source, Tried())

    def origin(self, rule: str) -> str:
        """Return the source of a rule in force."""
        sources = [
            name
            for name in SOURCES
            if (parsed := self._parsed.get(name)) is not None and rule in parsed[1].by_id
        ]
        return sources[-1] if sources else ""

    # changes of rules

    def offer(self, text: str | bytes, source: str, version: str = "") -> Accepted:
        """Replace the rules of a source.

        BadRules lists the errors in the text; DriverError reports a failing disk. In both cases
        nothing changes.
        """
        if source not in SOURCES:
            raise InvalidInput(f"rules come from {', '.join(SOURCES)}, not from {source[:40]!r}")
        with self._offering, self._between_passes():
            return self._offer(text, source, version)

    def test(self, text: str | bytes) -> tuple[RuleSet, tuple[Trial, ...]]:
        """Return the merged rules, and their result on the last snapshot, without any change."""
        with self._offering, self._between_passes():
            own = rules_file.parse(text, TRIAL, known_fields=self._known_fields)
            merged = self._merged({**self._sets(), TRIAL: own}, self._state)
            return merged, self._try(replace(merged, rules=own.rules))

    @contextmanager
    def _between_passes(self) -> Iterator[None]:
        """Do work between two passes.

        A pass must not share the interpreter with the parsing of rules. The longest piece of
        work is assumed to take about as long as it took the last time.
        """
        self._longest_s = 0.0
        self.scheduler.room(self._needs_s)
        self._piece_at = self._clock.monotonic()
        try:
            yield
        finally:
            self._end_piece()
            longest_s = max(LEAST_ROOM_S, self._longest_s, 0.9 * self._needs_s)
            self._needs_s = min(MOST_ROOM_S, longest_s)

    def _give_way(self) -> None:
        """Let a due pass run between two pieces of work."""
        self._end_piece()
        self.scheduler.room(self._needs_s)
        self._piece_at = self._clock.monotonic()

    def _end_piece(self) -> None:
        self._longest_s = max(self._longest_s, self._clock.monotonic() - self._piece_at)

    def _offer(self, text: str | bytes, source: str, version: str) -> Accepted:
        """Parse, try, store and prepare the rules of a source."""
        decoded = _text(text)
        digest = hashlib.sha256(decoded.encode(errors="surrogatepass")).hexdigest()[:12]
        now = self._clock.now().isoformat()
        try:
            own = self._read(text, decoded, source)
            self._give_way()
            layers = {**self._state.layers, source: Layer(decoded, version or digest, now)}
            state = State(self._state.number + 1, layers)
            if state.digest == self._state.digest:  # same rules, at most under another version
                state = replace(state, number=self._state.number)
            merged = self._merged({**self._sets(), source: own}, state)
            trials = self._try(replace(merged, rules=self._changed(merged)))
            self._give_way()
        except BadRules as error:
            LOG.error("alarm rules of %s are not taken: %s", source, error.message)
            self._remember(source, Tried(digest, version, error.message, now))
            raise
        tried = {**self._tried, source: Tried(digest, version, "", now)}
        again = state.number == self._state.number
        applied = self._put_in_force(state, merged, tried)
        self._parsed[source] = (decoded, own)
        if not again:
            LOG.info("alarm rules: %s in force, by %s", merged.version, source)
        return Accepted(merged, applied, trials)

    def _read(self, text: str | bytes, decoded: str, source: str) -> RuleSet:
        parsed = self._parsed.get(source)
        if parsed is not None and parsed[0] == decoded:
            return parsed[1]
        return rules_file.parse(text, source, known_fields=self._known_fields)

    def _put_in_force(self, state: State, merged: RuleSet, tried: Mapping[str, Tried]) -> Applied:
        """Write the rules to disk, then prepare them for the next pass.

        The disk comes first: if the agent is killed in between, the next agent starts with the
        new rules. Writing may last until the next pass, so everything that needs computing is
        done before.
        """
        engine = self._engine
        ready = engine.prepare(merged) if merged.version != self.rules.version else None
        self._write(_plain(state, tried))
        if ready is None:
            applied = Applied(merged.version, kept=tuple(merged.by_id))
        else:
            if ready.base is not engine.watchers:  # a pass put other rules in force meanwhile
                ready = engine.prepare(merged)
            applied = ready.applied
            self._ready.append(ready)
        self._rules = merged
        self._state, self._tried = state, dict(tried)
        return applied

    def _remember(self, source: str, tried: Tried) -> None:
        """Record a refused offer; a failing disk does not hide the reason of the refusal."""
        self._tried = {**self._tried, source: tried}
        try:
            self._write(_plain(self._state, self._tried))
        except DriverError as error:
            LOG.error("the refusal of rules of %s is not written to disk: %s", source, error)

    def _write(self, note: Mapping[str, Any]) -> None:
        """Write to disk; only the caller that brings rules waits for the disk."""
        self._end_piece()
        self._notes.put((), {NOTE: note})
        self._piece_at = self._clock.monotonic()

    # merging and trying

    def _sets(self) -> dict[str, RuleSet]:
        return {name: rule_set for name, (_, rule_set) in self._parsed.items()}

    def _merged(self, sets: Mapping[str, RuleSet], state: State) -> RuleSet:
        """Merge the layers; for equal ids the later source counts."""
        there = [name for name in (*SOURCES, TRIAL) if name in sets]
        rules: dict[str, Rule] = {}
        rule_set = _NOTHING
        for name in there:
            layer = sets[name]
            rules |= layer.by_id
            if layer.storm != _NOTHING.storm:
                rule_set = replace(rule_set, storm=layer.storm)
            if layer.group_wait_s != _NOTHING.group_wait_s:
                rule_set = replace(rule_set, group_wait_s=layer.group_wait_s)
        return replace(
            rule_set,
            rules=tuple(rules.values()),
            number=state.number,
            digest=state.digest,
            source=", ".join(there),
        )

    def _changed(self, merged: RuleSet) -> tuple[Rule, ...]:
        """Return new and changed rules; every pass since has tried the unchanged rules."""
        rules = self.rules.by_id
        return tuple(rule for rule in merged.rules if rules.get(rule.id) != rule)

    def _try(self, rules: RuleSet) -> tuple[Trial, ...]:
        """Evaluate rules on the last snapshot. BadRules if they fail."""
        try:
            return tuple(self._engine.try_out(rules))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            LOG.exception("alarm rules: the last pass cannot be judged by them")
            why = f"the last pass cannot be judged by these rules: {type(error).__name__}: {error}"
            raise BadRules.because("rules", [Problem(0, why)]) from error

    # after a restart

    def _recall(self) -> None:
        """Restore the rules in force before a restart."""
        note = self._notes.note(NOTE)
        if note is None:
            return
        state = _state(note["now"])
        offers = {name: Tried(**offer) for name, offer in note["tried"].items()}
        # refused rules are offered again, because this program may accept them
        self._tried = {name: offer for name, offer in offers.items() if not offer.error}
        kept = {}
        for name, layer in state.layers.items():
            try:
                kept[name] = rules_file.parse(layer.text, name)
            except BadRules as error:  # written by another version of Holdfast
                LOG.error("alarm rules of %s cannot be used any more: %s", name, error.message)
                self._tried[name] = Tried(error=error.message, at=self._clock.now().isoformat())
        layers = {name: state.layers[name] for name in kept}
        self._state = replace(state, layers=layers)
        self._parsed = {name: (layers[name].text, kept[name]) for name in kept}
        self._rules = self._merged(kept, self._state)
        self._engine.apply(self._rules)


def _text(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode(errors="replace")


def _plain(state: State, tried: Mapping[str, Tried]) -> dict[str, Any]:
    return {
        "now": asdict(state),
        "tried": {name: asdict(offer) for name, offer in tried.items()},
    }


def _state(note: Mapping[str, Any]) -> State:
    layers = {name: Layer(**note["layers"][name]) for name in SOURCES if name in note["layers"]}
    return State(note["number"], layers)


# Sources of rules: a file that is followed, and the manager's answer to a heartbeat. Both call
# `RuleManager.offer`.


#: Interval of polling the rules file, and of heartbeats to the manager, in seconds.
FILE_EVERY_S: Final = 1.0
BEAT_EVERY_S: Final = 10.0
#: Rules offered in place of a file that is not configured any more.
NO_RULES: Final = "rules: []\n"


class RulesFile:
    """The rules file of the host; offered when it changed, and on SIGHUP.

    An offer is repeated until the rule manager accepts or refuses the rules. A refused file is
    offered again after a restart, because the new program may accept the rules.
    """

    def __init__(self, path: str | None, rule_manager: RuleManager) -> None:
        self._rule_manager = rule_manager
        self._path = path
        self._file: Followed[bytes] | None = None
        self._is_due = False  # the rule manager has not accepted or refused the file yet

    def poll(self) -> None:
        """Offer the file if it changed.

        BadRules lists the errors in the file; DriverError reports a failing disk, and the next
        poll offers the file again.
        """
        if self._path is None:
            if FILE in self._rule_manager.state.layers and not self._was_offered(NO_RULES):
                self._rule_manager.offer(NO_RULES, FILE)
        elif self._file is None:
            self._file = self._followed()
            self._is_due |= not self._was_offered(self._file.value.decode(errors="replace"))
        elif self._file.follow():
            self._is_due = True
        self._offer()

    def again(self) -> None:
        """Offer the current file again, also after a refusal."""
        if self._path is not None:
            self._file, self._is_due = None, True
            self.poll()

    def _offer(self) -> None:
        if self._file is None or not self._is_due:
            return
        try:
            self._rule_manager.offer(self._file.value, FILE)
        except BadRules:
            self._is_due = False
            raise
        self._is_due = False

    def _followed(self) -> Followed[bytes]:
        return Followed(self._path, "alarm rules", bytes, lambda data, _: data)

    def _was_offered(self, text: str) -> bool:
        """Tell whether this text was the last offer, accepted or not."""
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
        return digest == self._rule_manager.tried(FILE).digest


class Heartbeat:
    """Sends heartbeats with the rule versions to the manager, and fetches new central rules.

    The agent fetches rules when the manager announces an unknown version; the next heartbeat
    reports a refusal. While somebody views this host, the heartbeat also sends the points of
    the history that the manager does not have.
    """

    def __init__(
        self,
        host: str,
        centre: Centre,
        rule_manager: RuleManager,
        about: Callable[[], Mapping[str, Any]],
        recent: Recent | None = None,
        interval_s: float = BEAT_EVERY_S,
    ) -> None:
        """`about` returns `started_at` and other facts about the agent (api/holdfast_v1/agents).

        `recent` is the history that is sent while somebody views the host.
        """
        self._host = host
        self._centre = centre
        self._rule_manager = rule_manager
        self._about = about
        self._recent = recent
        self._every_s = interval_s

    def poll(self) -> None:
        """Send a heartbeat; fetch rules or send history if the manager asks for them."""
        reply = self._centre.beat(self._host, self.body())
        if reply.rules != self._last_version():
            self._fetch()
        if reply.samples_after is not None and self._recent is not None:
            self._send(self._recent.hour(reply.samples_after))

    def _send(self, hour: Hour) -> None:
        if hour.points:
            self._centre.samples(self._host, history.plain(hour))

    def _fetch(self) -> None:
        held = self._centre.rules(self._host)
        try:
            self._rule_manager.offer(held.text, CENTRAL, held.version)
        except BadRules:  # the rule manager logged and recorded the refusal
            self._centre.beat(self._host, self.body())

    def _last_version(self) -> str:
        """Return the version of the last central rules, accepted or not."""
        return self._rule_manager.tried(CENTRAL).version or NONE

    def body(self) -> dict[str, Any]:
        """Return the body of a heartbeat."""
        rule_manager = self._rule_manager
        layer = rule_manager.state.layers.get(CENTRAL)
        tried = rule_manager.tried(CENTRAL)
        rules = {
            "version": rule_manager.rules.version,
            "central": layer.version if layer is not None else NONE,
            "error": tried.error[:2000],
        }
        status = {"heartbeat_s": self._every_s, "rules": rules, "firing": rule_manager.firing}
        return {**status, **self._about()}


class RulesPart:
    """Threads that poll the rules file and send heartbeats (`holdfast.app.daemon.Part`)."""

    def __init__(self, file: RulesFile, beat: Heartbeat | None, clock: Clock) -> None:
        self._file = file
        self._hup = False
        self._tasks = [PeriodicTask("alarm-rules", FILE_EVERY_S, self._poll_file, clock)]
        if beat is not None:
            self._tasks.append(PeriodicTask("agent-heartbeat", BEAT_EVERY_S, beat.poll, clock))

    def start(self) -> None:
        for task in self._tasks:
            task.start()
            task.wake()

    def stop(self) -> None:
        for task in reversed(self._tasks):
            task.stop()

    def reload(self) -> None:
        """Handle SIGHUP: read the file and send a heartbeat now."""
        self._hup = True
        for task in self._tasks:
            task.wake()

    def _poll_file(self) -> None:
        poll = self._file.poll
        if self._hup:
            self._hup, poll = False, self._file.again
        with suppress(BadRules):  # logged by the rule manager; retried when the file changes
            poll()


class RuleCommands:
    """Handlers of the socket commands `metrics.rules.*`."""

    def __init__(self, rule_manager: RuleManager) -> None:
        self._rule_manager = rule_manager

    def commands(self) -> Mapping[str, Handler]:
        return {
            "metrics.rules.list": self.list,
            "metrics.rules.test": self.test,
        }

    def list(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        only(args)
        rule_manager = self._rule_manager
        sources = []
        for name in SOURCES:
            layer, tried = rule_manager.state.layers.get(name), rule_manager.tried(name)
            if layer is not None or tried.error:
                sources.append(
                    {
                        "source": name,
                        "version": layer.version if layer else "",
                        "at": layer.at if layer else "",
                        "offered": tried.version or tried.digest,
                        "error": tried.error,
                    }
                )
        return {
            "version": rule_manager.rules.version,
            "sources": sources,
            "rules": [
                shown(rule, rule_manager.origin(rule.id)) for rule in rule_manager.rules.rules
            ],
        }

    def test(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        only(args, "text")
        merged, trials = self._rule_manager.test(_rules_text(args))
        return {"rules": len(merged.rules), "trials": [asdict(trial) for trial in trials]}


def shown(rule: Rule, source: str = "") -> dict[str, Any]:
    """Return the summary of a rule as JSON."""
    first = rule.conditions[0]
    return {
        "id": rule.id,
        "source": source,
        "on": rule.kind,
        "field": ", ".join(condition.field for condition in rule.conditions),
        "when": f"{first.compare} {first.level:g}",
        "for_s": rule.for_s,
        "severity": rule.severity,
        "actions": list(rule.actions),
    }


def _rules_text(args: Mapping[str, Any]) -> str:
    text = args.get("text")
    if not isinstance(text, str):
        raise InvalidInput("`text` is a file of alarm rules")
    return text
