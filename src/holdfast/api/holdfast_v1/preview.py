# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/alarm-rules-preview: what alarm rules would have made of the last hour of hosts that
are looked at (/hosts/HOST/samples). Nothing is changed, and nobody is told."""

from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.monitors import shape
from holdfast.api.holdfast_v1.observations import plain
from holdfast.model.host import normalise
from holdfast.watch.alarms.preview import Story, preview

#: At a time: a host with 50 guests takes a few tenths of a second.
MOST_HOSTS = 8
#: As much as holds on one host.
MOST_BYTES = 64 * 1024
#: Stories; of more the number is told.
MOST_STORIES = 500

_TEXT = {"type": "string"}
_STATE = {"type": "string", "enum": ["ok", "pending", "firing", "no_data"]}
_NAMES = {"type": "array", "items": _TEXT}
ASKED: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["text", "hosts"],
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": MOST_BYTES},
        "hosts": {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_HOSTS,
            "items": {"type": "string", "minLength": 1, "maxLength": 255},
        },
    },
}
_CHANGE = {
    "at": {"type": "string", "format": "date-time"},
    "before": _STATE,
    "state": _STATE,
    "value": {"type": ["number", "null"]},
    "threshold": {"type": "number"},
    "reason": _TEXT,
}
_STORY = {
    **dict.fromkeys(("host", "rule", "kind", "entity", "name", "project", "severity"), _TEXT),
    "state": {**_STATE, "description": "In the end."},
    "raised": {"type": "integer", "description": "How many times it fired."},
    "changes": {"type": "array", "items": shape(_CHANGE)},
}
VIEW = shape(
    {
        "hosts": {**_NAMES, "description": "Those of which something is known."},
        "stories": {"type": "array", "items": shape(_STORY)},
        "left_out": {"type": "integer", "description": "So many stories there was no room for."},
        "silent": {
            "type": "object",
            "additionalProperties": _NAMES,
            "description": "Rules about fields that are not kept: nothing is said of them.",
        },
    }
)


def show(ask: Ask) -> Reply:
    """400 with every line that is wrong, as if they were to be set."""
    store = ask.services.store
    hosts = dict.fromkeys(map(normalise, ask.body["hosts"]))
    looked = {host: store.samples.look(host).hour for host in hosts}
    hours = {host: hour for host, hour in looked.items() if hour.points}
    seen = preview(ask.body["text"], hours, {host: store.agents.groups(host) for host in hours})
    said = {
        "hosts": list(hours),
        "stories": [_story(one) for one in seen.stories[:MOST_STORIES]],
        "left_out": max(0, len(seen.stories) - MOST_STORIES),
        "silent": {rule: list(fields) for rule, fields in seen.silent.items()},
    }
    return Reply({"preview": said})


def _story(one: Story) -> dict[str, Any]:
    words = ("host", "rule", "kind", "entity", "name", "project", "severity", "state", "raised")
    changes = [{name: plain(getattr(change, name)) for name in _CHANGE} for change in one.changes]
    return {**{name: getattr(one, name) for name in words}, "changes": changes}
