# SPDX-License-Identifier: Apache-2.0
"""Request, Response and Route of API handlers; parsing and validation of bodies and queries."""

import contextlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast

import falcon
import jsonschema
from oslo_config import cfg

from holdfast.api import tokens
from holdfast.api.concurrency import ConcurrencyLimiter, FairShares, JsonCache, SingleFlight
from holdfast.db import Store
from holdfast.model.errors import HoldfastError, InvalidInput, TooLarge
from holdfast.ports.fence import UNKNOWN
from holdfast.ports.manager import Caller, Manager
from holdfast.runtime.clock import Clock

EXPORTING = "other exports are running, which take a thread each: try again"
LARGE_BODIES = "other large bodies are being read, which takes memory: try again"


@dataclass(frozen=True)
class Services:
    """Dependencies of the API handlers; created once in `holdfast.app.service`."""

    conf: cfg.ConfigOpts
    store: Store
    manager: Manager
    clock: Clock
    new_id: Callable[[], str]
    loop_age_s: Callable[[], float] | None = None  # None: no loop in this process
    wake: Callable[[], None] = lambda: None  # wakes the job loop of this process; other loops poll
    sim: Callable[[], Any] | None = None  # the drivers.cloud.sim.Simulator of a simulated cloud
    read_power: Callable[[str], str] = lambda _host: UNKNOWN  # by the host's fence
    login: Any = None  # the api.login.Login of this process
    feed: Any = None  # the console.live.Feed: changes for open pages
    lease_texts: JsonCache = field(default_factory=JsonCache)  # reservation contract, 1.0
    whole_lease_texts: JsonCache = field(default_factory=JsonCache)  # the same, from 1.1 on
    admin_lease_texts: JsonCache = field(default_factory=JsonCache)  # from 1.1 on, for admins
    shared: SingleFlight = field(
        default_factory=SingleFlight
    )  # results shared by concurrent requests
    exports: ConcurrencyLimiter = field(
        default_factory=lambda: ConcurrencyLimiter(2, 0, 0.0, EXPORTING)
    )
    large_bodies: ConcurrencyLimiter = field(
        default_factory=lambda: ConcurrencyLimiter(1, 7, 10.0, LARGE_BODIES)
    )

    @cached_property
    def shares(self) -> FairShares:
        return FairShares(self.clock, self.conf.api.threads)

    def share_of(
        self, route: "Route", caller: Caller | None
    ) -> contextlib.AbstractContextManager[None]:
        """Count the request against the shares of its project and user; TooMany above them.

        Operators, services, agents and monitors have no limit.
        """
        kind = route.share or ("reads" if route.method == "GET" else "writes")
        per_s = self.conf.api[f"{kind}_per_s"]
        if caller is None or not per_s or caller.is_admin or _is_program(caller):
            return contextlib.nullcontext()
        return self.shares.turn(kind, caller.project_id, caller.user_id, per_s)

    def room_for(self, req: falcon.Request) -> contextlib.AbstractContextManager[None]:
        """Hold one of the places for large bodies while a request with such a body is handled.

        The embedded server knows the length of every body. Under another server (gunicorn) a
        chunked body has no length, and takes a place like a large body.
        """
        length = req.content_length
        unknown = length is None and bool(req.get_header("Transfer-Encoding"))
        if unknown or (length or 0) > LARGE_BYTES:
            return self.large_bodies.turn(req.remote_addr)
        return contextlib.nullcontext()


def _is_program(caller: Caller) -> bool:
    """Tell whether the caller is one of those whose requests grow with the cloud."""
    return "service" in caller.roles or bool(tokens.own_host(caller) or tokens.own_name(caller))


@dataclass(frozen=True)
class Request:
    """An authenticated and validated API request for a handler."""

    services: Services
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, Any]  # typed if the route has a query schema
    body: Any
    base_url: str
    microversion: tuple[int, int] = (1, 0)
    every: Mapping[str, Sequence[str]] = field(default_factory=dict)  # all values by parameter
    allowed: Callable[[str], bool] = lambda _rule: False  # whether the caller may use a rule
    cookies: Mapping[str, str] = field(default_factory=dict)
    address: str = ""  # of the connected peer: the client, or a proxy
    url: str = "/"  # path and query as requested
    last_event_id: str = ""  # last event a browser received, when it reconnects
    feed_position: str = ""  # pages: feed position before the handler reads data


class Stream(Iterable[bytes], Protocol):
    """Body of a streaming response: byte chunks, and close() to end early."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Response:
    """A handler's response: JSON body, bytes or a stream."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    stream: Stream | None = None  # instead of a body
    cookies: Sequence[str] = ()  # Set-Cookie values; the API adds Secure under HTTPS

    @cached_property
    def data(self) -> bytes:
        if self.body is None:
            return b""
        if isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode()


Handler = Callable[[Request], Response]


@dataclass(frozen=True)
class Route:
    """An API route. `rule` None makes the route public: set None on purpose only."""

    method: str
    path: str
    handler: Handler
    rule: str | None
    summary: str
    schema: Mapping[str, Any] | None = None  # of the request body
    query: Mapping[str, Any] | None = None  # schema by parameter; None: not validated
    needs: Sequence[str] = ()  # required query parameters
    reply: Mapping[str, Any] | None = None  # schema of the response, for the OpenAPI document
    status: int = 200
    also: Sequence[int] = ()  # other successful statuses with the same reply, for example 200
    max_body: int = 0  # body limit in bytes, if above [api] max_body
    share: str = ""  # kind of request for `FairShares`, if neither "reads" nor "writes"
    page: bool = False  # a console page: session cookie and CSRF token, see `api.login`


# Request bodies and queries: bodies are read up to a limit and parsed strictly; bodies and queries
# are validated against schemas that are compiled once. Errors name the field.


MAX_DEPTH = 32
#: Largest number of values in a body. Each costs up to 64 bytes of memory, also an empty object.
MAX_VALUES = 100_000
#: Bodies above this size take turns.
LARGE_BYTES = 1024 * 1024
#: Longest text in such a body. A character takes up to four bytes of memory.
LARGE_TEXT = 65_536
#: Longest text of a form field or query parameter, except fields that hold whole documents.
MAX_FIELD = 16_384
_BEYOND = 2**63
#: A text of JSON without its second quote; every second match is what stands between two texts.
_JSON_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+', re.DOTALL)
_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_JSON = re.compile(r"application/(?:[\w.-]+\+)?json")


class Malformed(HoldfastError):
    """The request body is not valid JSON; no field was checked."""

    code = "holdfast.request.malformed"
    status = 400
    title = "Malformed request body"
    advice = "Send valid JSON with the content type application/json."


def read(req: falcon.Request, limit: int) -> Any:
    """Read and parse the JSON body; return {} for an empty body."""
    _check_type(req.content_type)
    found = data(req, limit)
    if not found or found.isspace():
        return {}
    # a page of another site can send a body without a type; scripts often do
    if req.content_type is None and (req.get_header("Origin") or req.get_header("Sec-Fetch-Site")):
        raise Malformed("Content-Type is missing; send application/json")
    _check_memory(found)
    try:
        value = _loads(found)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"Malformed request body: not JSON: {_short(error)}") from None
    clean(value, "")
    return value


def _check_memory(found: bytes) -> None:
    """Refuse a body that takes many times its size in memory once parsed."""
    # an upper bound: commas and brackets inside texts count too
    if sum(found.count(sign) for sign in (b",", b"[", b"{")) > MAX_VALUES:
        raise TooLarge(f"the body has more than {MAX_VALUES} values")
    if len(found) <= LARGE_BYTES:
        return
    if not found.isascii():
        raise Malformed(f"a body of more than {LARGE_BYTES} bytes is ASCII, with escapes")
    if found.count(b'"') > 4 * MAX_VALUES or any(
        text.end() - text.start() > LARGE_TEXT for text in _JSON_TEXT.finditer(found)
    ):
        raise TooLarge(f"a body of {len(found)} bytes has texts of {LARGE_TEXT} bytes at most")


def data(req: falcon.Request, limit: int) -> bytes:
    """Read the raw body; TooLarge if the body has more than `limit` bytes."""
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
    """Parse the JSON text of a query parameter, with the same checks as a body."""
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


def _stream(req: falcon.Request) -> Any:
    """Return the body stream. A chunked body has no length; the WSGI server marks the end."""
    if req.env.get("wsgi.input_terminated"):
        return req.stream
    if req.get_header("Transfer-Encoding"):  # uWSGI: the body would look empty
        raise Malformed("this server reads no chunked body; send Content-Length")
    return req.bounded_stream


def _check_type(content_type: str | None) -> None:
    """Refuse content types other than JSON: forms of other sites' pages are never sent as JSON."""
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
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the field {twice[:100]!r} is there twice")
    return found


def clean(value: Any, where: str) -> None:
    """Refuse values that the database cannot store, and nesting deeper than MAX_DEPTH."""
    _clean([(where, value)], [])


def _clean(items: Iterable[tuple[str | int, Any]], path: Sequence[str | int]) -> None:
    """Check keys and values; the keys of the path are joined only for a refusal."""
    if len(path) > MAX_DEPTH + 1:
        raise InvalidInput(f"{_joined(path)}: nested deeper than {MAX_DEPTH}")
    for key, value in items:
        if isinstance(key, str) and _UNKEEPABLE.search(key):
            check_text(key, _joined(path))
        if isinstance(value, str):
            if _UNKEEPABLE.search(value):
                check_text(value, _joined([*path, key]))
        elif isinstance(value, dict):
            _clean(value.items(), [*path, key])
        elif isinstance(value, list):
            _clean(enumerate(value), [*path, key])
        elif isinstance(value, int) and not -_BEYOND <= value < _BEYOND:
            raise InvalidInput(f"{_joined([*path, key])}: the number has more than 64 bits")


def _joined(path: Sequence[Any]) -> str:
    return _short(".".join(map(str, path)).removeprefix(".")) or "body"


def check_field(text: str, where: str, longest: int = MAX_FIELD) -> None:
    """Refuse a form field or query parameter that is too long or cannot be stored."""
    if len(text) > longest:
        raise InvalidInput(f"{_short(where)}: longer than {longest} characters")
    check_text(text, where)


def check_text(text: str, where: str) -> None:
    if _UNKEEPABLE.search(text):
        raise InvalidInput(
            f"{_short(where)}: holds characters that cannot be kept (NUL or surrogates)"
        )


#: Most errors that are compared for the one to name: each costs some 30 microseconds.
_MOST_ERRORS = 20


def _is_integer(_checker: object, value: object) -> bool:
    """Tell whether the value is an int: 0.0 is none, as databases do not cast the text."""
    return isinstance(value, int) and not isinstance(value, bool)


_Validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)


class Schema:
    """A compiled JSON schema. Methods return the valid value; InvalidInput names the field."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._validator = _Validator(schema)

    def body(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise InvalidInput("Malformed request body: a JSON object is wanted")
        missing = sorted(set(self._schema.get("required", ())) - value.keys())
        if missing:
            raise InvalidInput(f"Missing parameter {', '.join(missing)}")
        errors = itertools.islice(self._validator.iter_errors(value), _MOST_ERRORS)
        error = jsonschema.exceptions.best_match(errors)
        if error is not None:
            raise InvalidInput(_sentence(error))
        return value

    def query(self, params: Mapping[str, str]) -> Any:
        """Validate query parameters; convert text to int where the schema says integer."""
        known = self._schema["properties"]
        return self.body(
            {
                name: int(text)
                if known.get(name, {}).get("type") == "integer" and _INTEGER.fullmatch(text)
                else text
                for name, text in params.items()
            }
        )


#: Schema of a name that people give: text without control characters.
NAME = {"type": "string", "minLength": 1, "not": {"pattern": "[\\x00-\\x1f\\x7f-\\x9f]"}}


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
    elif error.validator == "not":  # of NAME
        message = "holds control characters"
    elif error.validator == "required":
        message = f"Missing parameter {_missing(error)}"
    elif error.validator == "maxLength":
        message = f"longer than {error.validator_value} characters"
    return f"{_short(field)}: {_short(message)}" if field else _short(message)


def _missing(error: jsonschema.ValidationError) -> str:
    """Return the title of the missing field, or its name."""
    known: Any = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
    required, present = cast(list[str], error.validator_value), cast(dict[str, Any], error.instance)
    name = next(name for name in required if name not in present)
    return str(known.get(name, {}).get("title", name))


def _short(text: object) -> str:
    said = str(text)
    return said if len(said) <= 300 else f"{said[:300]}…"
