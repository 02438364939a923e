# SPDX-License-Identifier: Apache-2.0
"""What monitors and reports said of an incident is theirs: it is read without taking its shape for
granted. Values in, values out."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.console.words import read_time
from holdfast.model.incident_history import LEFT_OUT


def votes(said: Any) -> Sequence[Mapping[str, Any]]:
    """Each a map, with a map of evidence; what is none is left out, and so is the count of votes
    that are not kept."""
    maps = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    found = [one for one in maps if LEFT_OUT not in one]
    return [{**one, "evidence": known(one.get("evidence"))} for one in found]


def networks(vote: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """What it says of each network, by name."""
    said = known(vote["evidence"].get("networks"))
    return {str(name): one for name, one in said.items() if isinstance(one, dict)}


def time(said: Any) -> datetime | None:
    """None for what is no time."""
    try:
        return read_time(said) if said else None
    except ValueError:
        return None


def known(said: Any) -> Mapping[str, Any]:
    """An empty one of what is no map."""
    return said if isinstance(said, dict) else {}
