# SPDX-License-Identifier: Apache-2.0
"""The words and numbers that requests for slots share, read as the clients write them."""

import re
from collections.abc import Mapping
from typing import Any

from holdfast.model import extra_specs
from holdfast.model.errors import Conflict, InvalidInput
from holdfast.model.lease import Reservation
from holdfast.reserve.conditions import LABELS

MOST = 100_000
MAX_LABEL = 255
#: On which hosts, beyond what the contract knows.
WHERE = frozenset({*LABELS, "capabilities"})


def count(spec: Mapping[str, Any], name: str, least: int = 1, most: int = MOST) -> int:
    value = spec.get(name)
    if value is None or value == "":
        raise InvalidInput(f"Missing parameter {name}: reservations of slots need it")
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"Malformed parameter {name}: a whole number is wanted")
    if not least <= value <= most:
        raise InvalidInput(f"{name}: {value} is not between {least} and {most}")
    return value


_WORDS = {"true": True, "false": False, "none": None, "null": None, "": None}


def affinity(spec: Mapping[str, Any]) -> bool | None:
    value = spec.get("affinity")
    word = value.strip().lower() if isinstance(value, str) else value
    if word is None or isinstance(word, bool):
        return word
    if not isinstance(word, str) or word not in _WORDS:
        raise InvalidInput("Malformed parameter affinity: true, false or null is wanted")
    return _WORDS[word]


def where(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Only what is asked for: old clients never see the rest."""
    found: dict[str, Any] = {}
    for name in LABELS:
        label = spec.get(name) or ""
        if not isinstance(label, str) or len(label) > MAX_LABEL:
            raise InvalidInput(f"Malformed parameter {name}: a name is wanted")
        found[name] = label.strip()
    given = spec.get("capabilities")
    found["capabilities"] = dict(extra_specs.read(given)) if given is not None else {}
    return {name: value for name, value in found.items() if value}


def only_more(reservation: Reservation, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """What an update may do: before the start anything, later only more slots."""
    if reservation.status == "pending" or new == old:
        return
    if reservation.status != "active":
        raise Conflict(f"reservation {reservation.id} is {reservation.status}: it stays as it is")
    names = (new.keys() | old.keys()) - {"amount"}
    other = sorted(name for name in names if new.get(name) != old.get(name))
    if other:
        raise Conflict(f"{other[0]}: cannot change while the reservation is active")
    if new["amount"] < old["amount"]:
        raise Conflict(
            f"amount: an active reservation keeps its {old['amount']} slots or gets more"
        )
