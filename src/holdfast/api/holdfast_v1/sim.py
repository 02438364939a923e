# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/sim: the hand on the simulated cloud. 404 where the cloud is a real one."""

import dataclasses
from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.model.errors import NotFound

SETTINGS: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "description": "Any of the settings that GET /holdfast/v1/sim shows.",
}


def show(ask: Ask) -> Reply:
    return Reply({"sim": _sim(ask).world()})


def change(ask: Ask) -> Reply:
    return Reply({"settings": dataclasses.asdict(_sim(ask).change(**ask.body))})


def fail_host(ask: Ask) -> Reply:
    _sim(ask).fail_host(ask.path["name"])
    return _said(f"host {ask.path['name']} lost power; its servers are dead")


def recover_host(ask: Ask) -> Reply:
    _sim(ask).recover_host(ask.path["name"])
    return _said(f"host {ask.path['name']} is powered on again")


def crash_server(ask: Ask) -> Reply:
    _sim(ask).crash_server(ask.path["ref"])
    return _said(f"server {ask.path['ref']} crashed")


def _said(sentence: str) -> Reply:
    return Reply({"said": sentence}, status=202)


def _sim(ask: Ask) -> Any:
    if ask.services.sim is None:
        raise NotFound("the cloud of this deployment is not simulated ([cloud] driver)")
    return ask.services.sim
