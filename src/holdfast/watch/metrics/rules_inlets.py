# SPDX-License-Identifier: Apache-2.0
"""The roads by which alarm rules come to the desk: a file that is watched, the centre by the answer
to our heartbeat, people on this machine. All end at `RulesDesk.offer`."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from holdfast.model import samples
from holdfast.model.alarm_rules import BadRules, Rule
from holdfast.model.alarm_rules_scope import NONE
from holdfast.model.errors import InvalidInput
from holdfast.model.samples import Hour
from holdfast.ports.agents import Centre
from holdfast.ports.clock import Clock
from holdfast.watch.admin import Handler, only
from holdfast.watch.alarms.engine import Trial
from holdfast.watch.errand import Rounds
from holdfast.watch.followed import Followed
from holdfast.watch.metrics.recent import Recent
from holdfast.watch.metrics.rules import CENTRAL, FILE, SOCKET, SOURCES, Accepted, RulesDesk

#: How often the file is looked at, and how often the centre hears of us.
FILE_EVERY_S: Final = 1.0
BEAT_EVERY_S: Final = 10.0
#: In the place of a file that is not configured any more.
NO_RULES: Final = "rules: []\n"


class RulesFile:
    """Offered when it changed, until the desk has taken or refused it, and when somebody asks for
    it by SIGHUP. One that was gone back from is not offered again by itself, not after a restart
    either; one that was refused is after a restart, for that may be another program."""

    def __init__(self, path: str | None, desk: RulesDesk) -> None:
        self._desk = desk
        self._path = path
        self._file: Followed[bytes] | None = None
        self._is_due = False  # it has something that the desk has not decided about

    def look(self) -> None:
        """Now and then. BadRules says what is wrong with it, DriverError that the disk is: then it
        is offered again by the next look."""
        if self._path is None:
            if FILE in self._desk.state.layers and not self._was_offered(NO_RULES):
                self._desk.offer(NO_RULES, FILE)
        elif self._file is None:
            self._file = self._followed()
            self._is_due |= not self._was_offered(self._file.value.decode(errors="replace"))
        elif self._file.follow():
            self._is_due = True
        self._offer()

    def again(self) -> None:
        """The file as it is now, whatever became of it before."""
        if self._path is not None:
            self._file, self._is_due = None, True
            self.look()

    def _offer(self) -> None:
        if self._file is None or not self._is_due:
            return
        try:
            self._desk.offer(self._file.value, FILE)
        except BadRules:
            self._is_due = False
            raise
        self._is_due = False

    def _followed(self) -> Followed[bytes]:
        return Followed(self._path, "alarm rules", bytes, lambda data, _: data)

    def _was_offered(self, text: str) -> bool:
        """As the last, whatever became of it."""
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
        return digest == self._desk.tried(FILE).digest


class Heartbeat:
    """Tells the centre that we live and by which rules we go; fetches those that it has for us
    when their version is one that we have not seen. What we refuse is told by the next one. While
    somebody looks at this host, the numbers that are not known there are sent."""

    def __init__(
        self,
        host: str,
        centre: Centre,
        desk: RulesDesk,
        about: Callable[[], Mapping[str, Any]],
        recent: Recent | None = None,
        every_s: float = BEAT_EVERY_S,
    ) -> None:
        """`about`: started_at, and what else is known of the agent (api/holdfast_v1/agents).
        `recent`: what is sent while somebody looks."""
        self._host = host
        self._centre = centre
        self._desk = desk
        self._about = about
        self._recent = recent
        self._every_s = every_s

    def look(self) -> None:
        heard = self._centre.beat(self._host, self.body())
        if heard.rules != self._seen():
            self._fetch()
        if heard.samples_after is not None and self._recent is not None:
            self._send(self._recent.hour(heard.samples_after))

    def _send(self, hour: Hour) -> None:
        if hour.points:
            self._centre.samples(self._host, samples.plain(hour))

    def _fetch(self) -> None:
        held = self._centre.rules(self._host)
        try:
            self._desk.offer(held.text, CENTRAL, held.version)
        except BadRules:  # which the desk logged, and remembers
            self._centre.beat(self._host, self.body())

    def _seen(self) -> str:
        """What came last from there, whatever became of it."""
        return self._desk.tried(CENTRAL).version or NONE

    def body(self) -> dict[str, Any]:
        desk = self._desk
        layer = desk.state.layers.get(CENTRAL)
        tried = desk.tried(CENTRAL)
        error = tried.error
        if not error and layer is not None and layer.version != tried.version:
            error = f"{tried.version} was gone back from on the host"
        rules = {
            "version": desk.rules.version,
            "central": layer.version if layer is not None else NONE,
            "error": error[:2000],
        }
        said = {"heartbeat_s": self._every_s, "rules": rules, "firing": desk.firing}
        return {**said, **self._about()}


class RulesPart:
    """The threads behind the file and the heartbeat; `holdfast.daemon.Part`."""

    def __init__(self, file: RulesFile, beat: Heartbeat | None, clock: Clock) -> None:
        self._file = file
        self._hup = False
        self._rounds = [Rounds("alarm-rules", FILE_EVERY_S, self._look, clock)]
        if beat is not None:
            self._rounds.append(Rounds("agent-heartbeat", BEAT_EVERY_S, beat.look, clock))

    def start(self) -> None:
        for one in self._rounds:
            one.start()
            one.ring()

    def stop(self) -> None:
        for one in reversed(self._rounds):
            one.stop()

    def reload(self) -> None:
        """SIGHUP: read the file now, and hear of the centre."""
        self._hup = True
        for one in self._rounds:
            one.ring()

    def _look(self) -> None:
        look = self._file.look
        if self._hup:
            self._hup, look = False, self._file.again
        with suppress(BadRules):  # which the desk logged: it is not tried again until it changes
            look()


class RuleCommands:
    """What people ask by the socket: `metrics.rules.*`."""

    def __init__(self, desk: RulesDesk) -> None:
        self._desk = desk

    def commands(self) -> Mapping[str, Handler]:
        return {
            "metrics.rules.list": self.list,
            "metrics.rules.set": self.set,
            "metrics.rules.test": self.test,
            "metrics.rules.rollback": self.roll_back,
        }

    def list(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        only(args)
        desk = self._desk
        sources = []
        for name in SOURCES:
            layer, tried = desk.state.layers.get(name), desk.tried(name)
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
            "version": desk.rules.version,
            "before": desk.before(),
            "sources": sources,
            "rules": [shown(rule, desk.origin(rule.id)) for rule in desk.rules.rules],
        }

    def set(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        only(args, "text")
        return accepted(self._desk.offer(_text(args), SOCKET))

    def test(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        only(args, "text")
        merged, trials = self._desk.test(_text(args))
        return {"rules": len(merged.rules), "trials": _trials(trials)}

    def roll_back(self, args: Mapping[str, Any]) -> Mapping[str, Any]:
        only(args)
        return accepted(self._desk.roll_back())


def accepted(one: Accepted) -> dict[str, Any]:
    return {
        "version": one.rules.version,
        **{name: list(getattr(one.applied, name)) for name in ("kept", "tuned", "begun", "ended")},
        "trials": _trials(one.trials),
    }


def shown(rule: Rule, source: str = "") -> dict[str, Any]:
    first = rule.conditions[0]
    return {
        "id": rule.id,
        "source": source,
        "on": rule.kind,
        "field": ", ".join(one.field for one in rule.conditions),
        "when": f"{first.compare} {first.level:g}",
        "for_s": rule.for_s,
        "severity": rule.severity,
        "actions": list(rule.actions),
    }


def _trials(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    return [asdict(one) for one in trials]


def _text(args: Mapping[str, Any]) -> str:
    text = args.get("text")
    if not isinstance(text, str):
        raise InvalidInput("`text` is a file of alarm rules")
    return text
