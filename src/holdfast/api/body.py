# SPDX-License-Identifier: Apache-2.0
"""Request bodies: read within the limit, parsed strictly, checked against a schema by field name."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import falcon
import jsonschema

from holdfast.model.errors import InvalidInput, TooLarge

MAX_DEPTH = 32


def read(req: falcon.Request, limit: int) -> Any:
    """The JSON body, or None when there is none."""
    if (req.content_length or 0) > limit:
        raise TooLarge(f"the body has {req.content_length} bytes; at most {limit} are taken")
    data = req.bounded_stream.read(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"the body has more than {limit} bytes")
    if not data.strip():
        return None
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"Malformed request body: not JSON: {error}") from None
    clean(value, "")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def clean(value: Any, where: str, depth: int = 0) -> None:
    """Refuse what no database can keep, and nesting without end."""
    if depth > MAX_DEPTH:
        raise InvalidInput(f"{where or 'body'}: nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        check_text(value, where or "body")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_text(key, where or "body")
            clean(item, f"{where}.{key}" if where else key, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            clean(item, f"{where}.{index}", depth + 1)


def check_text(text: str, where: str) -> None:
    if "\x00" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise InvalidInput(f"{where}: holds characters that cannot be kept (NUL or surrogates)")


def validate(body: Any, schema: Mapping[str, Any]) -> Any:
    """The body, if it keeps the schema; else InvalidInput with the field's name."""
    if not isinstance(body, dict):
        raise InvalidInput("Malformed request body: a JSON object is wanted")
    missing = sorted(set(schema.get("required", ())) - body.keys())
    if missing:
        raise InvalidInput(f"Missing parameter {', '.join(missing)}")
    error = jsonschema.exceptions.best_match(_validator(_frozen(schema)).iter_errors(body))
    if error is not None:
        raise InvalidInput(_sentence(error))
    return body


def _sentence(error: jsonschema.ValidationError) -> str:
    field = ".".join(str(part) for part in error.absolute_path)
    message = error.message
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
        unknown = sorted(set(error.instance) - set(known))
        message = f"unknown field {', '.join(unknown)}; known are {', '.join(sorted(known))}"
    elif error.validator == "maxLength":
        message = f"longer than {error.validator_value} characters"
    elif len(message) > 300:
        message = f"{message[:300]}…"
    return f"{field}: {message}" if field else message


def _frozen(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, sort_keys=True)


@functools.cache
def _validator(text: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(text))
