# SPDX-License-Identifier: Apache-2.0
"""What an agent says about its guests, as lines for people."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

Said = Mapping[str, Any]
#: A report that waits for longer is a matter for people.
LATE_S = 60.0


def trouble(said: Said) -> str:
    """io_error pause vda: recover in 12 s"""
    what = _words(said, "event", "detail", "reason", "disk")
    if said["over"]:
        then = f"was {said['told']}, and is over"
    elif said["due_s"] is not None:
        then = f"{said['do']} in {said['due_s']:.0f} s"
    else:
        then = f"told as {said['told']}" if said["told"] else said["do"]
    return f"{what}: {then}"


def warnings(said: Said) -> Iterator[str]:
    host = said["host"]
    if said["deaf"]:
        yield f"the agent of {host} does not hear the hypervisor: {said['deaf']}"
    if said["stuck"]:
        yield f"the agent of {host} cannot go on: {said['stuck']}"
    if said["filters_problem"]:
        yield f"the filter file is not in force, what was before it is: {said['filters_problem']}"
    yield from losses(said)


def losses(said: Said) -> Iterator[str]:
    """Of what is measured; agents before that say nothing of it."""
    for name, why in sorted(said.get("troubles", {}).items()):
        yield f"{name} of the agent of {said['host']} does not work: {why}"
    if said.get("alarms_lost"):
        yield f"{said['alarms_lost']} alarms could not be written down and are lost"


def undelivered(said: Said) -> Iterator[str]:
    """Reports that wait for longer than a delivery takes, and those that were put aside."""
    backlog = said["spool"]
    if backlog["put_aside"] or (backlog["oldest_s"] or 0) > LATE_S:
        yield f"the agent of {said['host']}: {spool(backlog)}"


def spool(said: Said) -> str:
    aside = f"; {said['put_aside']} were not taken and put aside" if said["put_aside"] else ""
    if not said["waits"]:
        return f"all is delivered{aside}"
    return f"{said['waits']} reports wait, the oldest for {said['oldest_s'] or 0:.0f} s{aside}"


def well(said: Said) -> str:
    knows = f"the agent of {said['host']} hears the hypervisor and knows {said['guests']} guests"
    return f"{knows}; {spool(said['spool'])}"


def why_nothing(said: Said) -> Iterator[str]:
    """If nothing is told, what became of each event."""
    if said["told"]:
        return
    if not said["judged"]:
        yield "nothing would be told"
    for one in said["judged"]:
        yield f"nothing would be told of {one['guest']}: {_why_not(one)}"


def _why_not(judged: Said) -> str:
    if not judged["sign"]:
        return f"this means nothing for a guest that is {judged['life']}"
    if judged["told"]:
        return f"it was told as {judged['told']} already, and that is not over"
    return f"{judged['sign']} is {_verdict(judged)}"


def _verdict(said: Said) -> str:
    done = {"recover": "to be recovered", "report": "to be noted", "ignore": "ignored"}[said["do"]]
    later = f" after {said['after_s']:g} s" if said["after_s"] else ""
    by = f" by {said['rule']}" if said["rule"] != "no rule" else ", for no rule speaks of it"
    return f"{done}{later}{by}"


def news(item: Said, now: datetime) -> str:
    """12:00:00.123 told     web-1: failed: stopped failed, by defaults line 6: …"""
    record = item.get("record", {})
    at = datetime.fromisoformat(record["at"]).astimezone(UTC) if record else now
    line = _NEWS.get(item["what"], str)(item)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {item['what']:<8} {line}"


def _standing(item: Said) -> str:
    return f"{item['host']}: {_guests(item['record']['guests'])}"


def _event(item: Said) -> str:
    record = item["record"]
    return f"{record['name']}: {_words(record, 'kind', 'detail', 'reason', 'disk', 'path')}"


def _reading(item: Said) -> str:
    return _guests(item["record"]["guests"])


def _guests(guests: list[Said]) -> str:
    states = [one["state"] for one in guests]
    each = [f"{states.count(state)} {state}" for state in sorted(set(states))]
    return f"{len(guests)} guests" + (f": {', '.join(each)}" if each else "")


def _judged(item: Said) -> str:
    return f"{item['guest']}: {item['sign']} is {_verdict(item)}"


def _told(item: Said) -> str:
    what = _words(item, "event", "detail", "reason", "disk")
    marked = " (simulated)" if item["simulated"] else ""
    rule = f", by {item['rule']}" if item["rule"] else ""  # that it runs again is no rule's word
    return f"{item['guest']}: {item['state']}{marked}: {what}{rule}"


def _delivery(item: Said) -> str:
    why = f": {item['why']}" if item["why"] else ""
    return f"{item['guest'] or item['subject']}: {item['state']}: {item['outcome']}{why}"


_NEWS: Mapping[str, Callable[[Said], str]] = {
    "standing": _standing,
    "event": _event,
    "reading": _reading,
    "verdict": _judged,
    "told": _told,
    "delivery": _delivery,
}


def _words(said: Said, *names: str) -> str:
    return " ".join(str(said[name]) for name in names if said.get(name))
