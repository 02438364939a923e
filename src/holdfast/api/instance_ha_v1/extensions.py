# SPDX-License-Identifier: Apache-2.0
"""/instance-ha/v1/extensions: the parts of the contract, by the names that clients may ask for."""

from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.model.errors import NotFound

_PARTS = {
    "extensions": ("Extensions", "What is served here."),
    "notifications": ("Notifications", "Reports of failures."),
    "os-hosts": ("Hosts", "Hosts of segments."),
    "segments": ("Segments", "Groups of hosts that stand in for each other."),
    "versions": ("Versions", "Version documents."),
    "vmoves": ("VMoves", "Servers on their way off a dead host."),
}


def index(_ask: Ask) -> Reply:
    return Reply({"extensions": [_view(alias) for alias in _PARTS]})


def show(ask: Ask) -> Reply:
    if ask.path["alias"] not in _PARTS:
        raise NotFound(f"No extension {ask.path['alias'][:80]}; there are {', '.join(_PARTS)}")
    return Reply({"extension": _view(ask.path["alias"])})


def _view(alias: str) -> dict[str, Any]:
    name, description = _PARTS[alias]
    return {
        "name": name,
        "alias": alias,
        "description": description,
        "namespace": "",
        "updated": "",
        "links": [],
    }
