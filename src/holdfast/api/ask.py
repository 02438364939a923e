# SPDX-License-Identifier: Apache-2.0
"""What a handler gets (`Ask`), what it gives back (`Reply`), and what a route is."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from oslo_config import cfg

from holdfast.api.rendered import Rendered
from holdfast.api.shared import Shared
from holdfast.api.turns import Turns
from holdfast.model.caller import Caller
from holdfast.ports.clock import Clock
from holdfast.ports.fence import UNKNOWN
from holdfast.ports.manager import Manager
from holdfast.store import Store

EXPORTING = "others read an export just now, which takes a thread each: try again"


@dataclass(frozen=True)
class Services:
    """Everything the API works with; made once in `holdfast.service`."""

    conf: cfg.ConfigOpts
    store: Store
    manager: Manager
    clock: Clock
    new_id: Callable[[], str]
    loop_age_s: Callable[[], float] | None = None  # None: no loop in this process
    ring: Callable[[], None] = lambda: None  # there is work; who has no loop is found by its look
    sim: Callable[[], Any] | None = None  # the drivers.cloud.sim.Simulator, where the cloud is one
    read_power: Callable[[str], str] = lambda _host: UNKNOWN  # of a host, by its fence
    login: Any = None  # the api.login.Login of this process: people come in by a form
    feed: Any = None  # the console.live.Feed: what changed, for pages that are open
    lease_texts: Rendered = field(default_factory=Rendered)  # of the reservation contract, 1.0
    whole_lease_texts: Rendered = field(default_factory=Rendered)  # and from 1.1 on
    admin_lease_texts: Rendered = field(default_factory=Rendered)  # the same, as admins see it
    shared: Shared = field(default_factory=Shared)  # what several people ask for at once
    exports: Turns = field(default_factory=lambda: Turns(2, 0, 0.0, EXPORTING))


@dataclass(frozen=True)
class Ask:
    services: Services
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, Any]  # typed where the route has a schema for it
    body: Any
    base_url: str
    microversion: tuple[int, int] = (1, 0)
    every: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of the query, if repeated
    may: Callable[[str], bool] = lambda _rule: False  # whether the caller's roles allow it
    cookies: Mapping[str, str] = field(default_factory=dict)
    address: str = ""  # of who is connected to us: a client, or a proxy before it
    here: str = "/"  # path and query, as they were asked for
    known: str = ""  # the last event that a browser heard, if it comes again for more
    at: str = ""  # of a page: where the feed was before anything was looked up for it


class Stream(Iterable[bytes], Protocol):
    def close(self) -> None: ...


@dataclass(frozen=True)
class Reply:
    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    stream: Stream | None = None  # instead of a body: goes on until it ends
    cookies: Sequence[str] = ()  # each a Set-Cookie; by HTTPS they become Secure

    @cached_property
    def data(self) -> bytes:
        if self.body is None:
            return b""
        if isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode()


Handler = Callable[[Ask], Reply]


@dataclass(frozen=True)
class Route:
    """One line of the API. `rule` None means open to everybody, and must be meant."""

    method: str
    path: str
    handler: Handler
    rule: str | None
    summary: str
    schema: Mapping[str, Any] | None = None  # of the request body
    query: Mapping[str, Any] | None = None  # schema by parameter; None: not looked at
    needs: Sequence[str] = ()  # parameters of the query that must be there
    reply: Mapping[str, Any] | None = None  # of the answer, for the OpenAPI document
    status: int = 200
    max_body: int = 0  # bytes that are taken here, if more than [api] max_body
    page: bool = False  # of the console: for people with a browser, see `api.login`, `api.forms`
