# SPDX-License-Identifier: Apache-2.0
"""What a request brings along: its body read within the limit and parsed strictly, body and query
checked against schemas that are compiled once, refusals that name the field.
"""

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import falcon
import jsonschema

from holdfast.model.errors import HoldfastError, InvalidInput, TooLarge

MAX_DEPTH = 32
_BEYOND = 2**63
_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_JSON = re.compile(r"application/(?:[\w.-]+\+)?json")


class Malformed(HoldfastError):
    """The body could not be read as JSON at all, so no field of it was looked at."""

    code = "holdfast.request.malformed"
    status = 400
    title = "Malformed request body"


def read(req: falcon.Request, limit: int) -> Any:
    """The JSON body; {} when there is none."""
    _check_type(req.content_type)
    found = data(req, limit)
    if not found.strip():
        return {}
    try:
        value = _loads(found)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"Malformed request body: not JSON: {_short(error)}") from None
    clean(value, "")
    return value


def data(req: falcon.Request, limit: int) -> bytes:
    """The body as it came; TooLarge if it is longer."""
    if (req.content_length or 0) > limit:
        raise TooLarge(f"the body has {req.content_length} bytes; at most {limit} are taken")
    try:
        found: bytes = _stream(req).read(limit + 1)
    except (OSError, ValueError) as error:
        raise Malformed(f"Malformed request body: it did not arrive whole: {error}") from error
    if len(found) > limit:
        raise TooLarge(f"the body has more than {limit} bytes")
    return found


def parse(text: str, where: str) -> Any:
    """JSON that a parameter holds, as strictly as if it were the body."""
    try:
        value = _loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: not JSON: {_short(error)}") from None
    clean(value, where)
    return value


def _loads(data: str | bytes) -> Any:
    return json.loads(
        data, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_distinct
    )


def drain(req: falcon.Request, limit: int) -> None:
    """Take what is left of a chunked body off the connection: the next request begins after it."""
    if req.env.get("wsgi.input_terminated"):
        with contextlib.suppress(OSError, ValueError):
            req.stream.read(limit + 1)


def _stream(req: falcon.Request) -> Any:
    """A chunked body has no length, but a server that says so ends it for us."""
    return req.stream if req.env.get("wsgi.input_terminated") else req.bounded_stream


def _check_type(content_type: str | None) -> None:
    """JSON only. A form of another site's page, which browsers send unasked, never is."""
    kind = (content_type or "application/json").partition(";")[0].strip().lower()
    if not _JSON.fullmatch(kind):
        raise Malformed(f"Content-Type: {kind[:100]!r} is not supported; send application/json")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice[:100]!r} is there twice")
    return found


def clean(value: Any, where: str, depth: int = 0) -> None:
    """Refuse what no database can keep, and nesting without end."""
    if depth > MAX_DEPTH:
        raise InvalidInput(f"{_short(where) or 'body'}: nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        check_text(value, where or "body")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_text(key, where or "body")
            clean(item, f"{where}.{key}" if where else key, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            clean(item, f"{where}.{index}", depth + 1)
    elif isinstance(value, int) and not -_BEYOND <= value < _BEYOND:
        raise InvalidInput(f"{_short(where) or 'body'}: the number has more than 64 bits")


def check_text(text: str, where: str) -> None:
    if _UNKEEPABLE.search(text):
        raise InvalidInput(
            f"{_short(where)}: holds characters that cannot be kept (NUL or surrogates)"
        )


class Schema:
    """A schema compiled once. What keeps it is given back; InvalidInput names the field."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._validator = jsonschema.Draft202012Validator(schema)

    def body(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise InvalidInput("Malformed request body: a JSON object is wanted")
        missing = sorted(set(self._schema.get("required", ())) - value.keys())
        if missing:
            raise InvalidInput(f"Missing parameter {', '.join(missing)}")
        error = jsonschema.exceptions.best_match(self._validator.iter_errors(value))
        if error is not None:
            raise InvalidInput(_sentence(error))
        return value

    def query(self, params: Mapping[str, str]) -> Any:
        """Parameters are text on the wire; those meant as numbers become numbers."""
        known = self._schema["properties"]
        return self.body(
            {
                name: int(text)
                if known.get(name, {}).get("type") == "integer" and _INTEGER.fullmatch(text)
                else text
                for name, text in params.items()
            }
        )


def query_schema(parameters: Mapping[str, Any], needs: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(needs),
        "properties": dict(parameters),
    }


def _sentence(error: jsonschema.ValidationError) -> str:
    field = ".".join(str(part) for part in error.absolute_path)
    message = error.message
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
        unknown = sorted(set(error.instance) - set(known))
        message = (
            f"unknown field {_short(', '.join(unknown))}; known are {', '.join(sorted(known))}"
        )
    elif error.validator == "maxLength":
        message = f"longer than {error.validator_value} characters"
    return f"{_short(field)}: {_short(message)}" if field else _short(message)


def _short(text: object) -> str:
    said = str(text)
    return said if len(said) <= 300 else f"{said[:300]}…"
