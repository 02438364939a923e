# SPDX-License-Identifier: Apache-2.0
"""An incident for people: each guard, step and server in one line; and its progress as a screen."""

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.client.commands import Lines, Moment, Table, one
from holdfast.client.commands.repair import Wrapped

OPEN = ("open", "held", "running")
#: Ways to end that somebody has to look at.
BAD = ("failed", "aborted")
_MARKS = {"done": "+", "under way": ">", "to come": " "}
#: Servers that are under way, or went wrong, are shown first.
_ORDER = ("failed", "ongoing", "pending", "ignored", "succeeded")


class Verdicts(Lines):
    """yes paused: recovery is not paused"""

    def line(self, value: Any) -> str:
        return f"{'yes' if value['passed'] else 'NO '} {value['guard']}: {value['sentence']}"


class Steps(Lines):
    """done 10:00:03 fence: cmp-7 was fenced: its power reads off"""

    def line(self, value: Any) -> str:
        at = f" {_clock(value['finished_at'])}" if value["finished_at"] else ""
        said = f": {value['sentence']}" if value["sentence"] else ""
        return f"{value['status']}{at} {value['name']}{said}"


class Servers(Lines):
    """web-1 cmp-7 -> cmp-3 succeeded, 1 attempt: runs on cmp-3"""

    def line(self, value: Any) -> str:
        return server_line(value)


class Reports(Lines):
    """10:00:01 COMPUTE_HOST event=STOPPED, host_status=NORMAL (finished)"""

    def line(self, value: Any) -> str:
        payload = ", ".join(f"{k}={v}" for k, v in sorted(value["payload"].items()))
        return f"{_clock(value['received_at'])} {value['type']} {payload} ({value['status']})"


class Timeline(Lines):
    """10:00:01 holdfast: opened: cmp-7 is reported to have stopped"""

    def line(self, value: Any) -> str:
        return f"{_clock(value['at'])} {value['actor']}: {value['sentence']}"


class Counts(Lines):
    """2 of 5 moved, 1 failed"""

    def human_readable(self) -> str:
        return counted(self._value)


def shown(incident: dict[str, Any], *, everything: bool) -> Table:
    hidden = {"details"} if incident["status"] in OPEN else {"details", "work"}
    if everything:
        hidden = set()
    values = {name: value for name, value in incident.items() if name not in hidden}
    values["sentence"] = Wrapped(incident["sentence"])
    if values.get("work") and not everything:
        values["work"] = Lines([values["work"]])
    columns, data = one(
        values,
        moves=Counts,
        verdicts=Verdicts,
        steps=Steps,
        servers=Servers,
        reports=Reports,
        timeline=Timeline,
    )
    return columns, data


def counted(moves: dict[str, int]) -> str:
    total = sum(moves.values())
    if not total:
        return ""
    said = f"{moves['succeeded']} of {total} moved"
    for status, word in (("ongoing", "on the way"), ("failed", "failed"), ("ignored", "stay")):
        if moves[status]:
            said += f", {moves[status]} {word}"
    return said


def server_line(move: dict[str, Any]) -> str:
    way = f"{move['from']} -> {move['to']}" if move["to"] else move["from"]
    tries = f", {move['attempts']} attempts" if move["attempts"] > 1 else ""
    said = f": {move['message']}" if move["message"] else ""
    return f"{move['name']} {way} {move['status']}{tries}{said}"


def paused_line(pause: dict[str, Any]) -> str:
    """What everybody should see who looks at incidents."""
    name = pause["segment"] or pause["segment_id"]
    where = f"in segment {name}" if name else "everywhere"
    until = pause["expires_at"]
    lasts = f"until {Moment(until).human_readable()} UTC" if until else "until it is resumed"
    option = f" --segment {name}" if name else ""
    return (
        f"RECOVERY IS PAUSED {where}, by {pause['author']}, {lasts}: {pause['reason']}"
        f" (end it: holdfast incident resume{option})"
    )


def screen(incident: dict[str, Any], width: int, height: int) -> Sequence[str]:
    """The progress of an incident, as many lines as there is room for."""
    lines = list(_screen(incident))
    if len(lines) > height:
        left = len(lines) - height + 1
        lines = [*lines[: height - 1], f"… {left} more lines: holdfast incident show"]
    return [line[: max(1, width)] for line in lines]


def _screen(incident: dict[str, Any]) -> Iterator[str]:
    yield f"{incident['id']}  {incident['cause']}"
    yield f"{incident['status'].upper()}: {incident['sentence']}"
    for verdict in incident["verdicts"]:
        if not verdict["passed"]:
            yield f"  NO {verdict['guard']}: {verdict['sentence']}"
    for step in incident["steps"]:
        at = _clock(step["finished_at"]) if step["finished_at"] else " " * 8
        yield f"  {_MARKS[step['status']]} {at} {step['name']:<10} {step['sentence']}".rstrip()
    if said := counted(incident["moves"]):
        yield f"  servers: {said}"
    for move in sorted(incident["servers"], key=lambda one: _ORDER.index(one["status"])):
        yield f"    {server_line(move)}"


def news(incident: dict[str, Any]) -> Iterator[str]:
    """What can be said of it, a line each; who has said one does not say it again."""
    for step in incident["steps"]:
        if step["status"] == "done":
            yield f"{_clock(step['finished_at'])} {step['name']}: {step['sentence']}"
    for move in incident["servers"]:
        if move["status"] in ("succeeded", "failed", "ignored"):
            yield server_line(move)
    yield f"{incident['status']}: {incident['sentence']}"


def _clock(moment: str | None) -> str:
    return Moment(moment).human_readable()[11:]
