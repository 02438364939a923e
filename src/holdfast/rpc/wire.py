# SPDX-License-Identifier: Apache-2.0
"""Typed commands to JSON and back, driven by the signatures of the Manager interface alone.

Requests are `{"v": 1, "name": …, "deadline": …, "args": {…}}`, answers `{"ok": …}` or
`{"error": {"code", "message", "details"}}`. Unknown keys are ignored on both sides, so that
neighbouring versions can talk.
"""

import inspect
import json
import typing
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

import cattrs

from holdfast.model.errors import HoldfastError, Unavailable, by_code
from holdfast.ports.manager import Manager

VERSION = 1

_converter = cattrs.Converter()
_converter.register_unstructure_hook(datetime, lambda value: value.isoformat())
_converter.register_structure_hook(datetime, lambda value, _type: datetime.fromisoformat(value))
_converter.register_structure_hook(Any, lambda value, _type: value)


@cache
def _hints(method: str) -> dict[str, Any]:
    return typing.get_type_hints(getattr(Manager, method))


def parameters(method: str) -> list[str]:
    """The names of a command's arguments, in their order."""
    return [name for name in _hints(method) if name != "return"]


@cache
def commands() -> frozenset[str]:
    """The names of all commands, and nothing else: only these can be called from outside."""
    functions = inspect.getmembers(Manager, inspect.isfunction)
    return frozenset(name for name, _ in functions if not name.startswith("_"))


def pack(method: str, args: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _converter.unstructure(value, _hints(method)[name]) for name, value in args.items()
    }


def unpack(method: str, args: Mapping[str, Any]) -> dict[str, Any]:
    hints = _hints(method)
    return {
        name: _converter.structure(value, hints[name])
        for name, value in args.items()
        if name in hints
    }


def pack_answer(method: str, result: Any) -> dict[str, Any]:
    return {"ok": _converter.unstructure(result, _hints(method)["return"])}


def pack_error(error: Exception) -> dict[str, Any]:
    if not isinstance(error, HoldfastError):
        message = "the manager met a defect of ours"
        return {"error": {"code": HoldfastError.code, "message": message}}
    details = json.loads(json.dumps(error.details, default=str))
    return {"error": {"code": error.code, "message": error.message, "details": details}}


def unpack_answer(method: str, answer: Mapping[str, Any]) -> Any:
    """The result, or the error the manager raised, raised again."""
    error = answer.get("error")
    if error is None:
        return _result(method, answer.get("ok"))
    cls = by_code().get(error["code"], HoldfastError)
    if str(error["code"]).startswith("holdfast.driver."):  # also of drivers not loaded here
        cls = Unavailable
    raised = cls(error["message"])
    raised.details = dict(error.get("details") or {})
    raise raised


def _result(method: str, value: Any) -> Any:
    """None is what a manager of an older version answers where this one has more to say."""
    return None if value is None else _converter.structure(value, _hints(method)["return"])
