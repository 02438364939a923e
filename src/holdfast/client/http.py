# SPDX-License-Identifier: Apache-2.0
"""HTTP layer of the client: sends requests, retries, parses responses, translates errors.

The client retries GETs only, after a lost connection or a 503, a few times and with growing pauses.
If a write gets no response, or only part of a response, the server may have carried out the write:
the error tells the caller to check before a repeat.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from holdfast import __version__
from holdfast.client import dates, errors
from holdfast.client.auth import Access
from holdfast.model.observation import AGENT_HEADER

if TYPE_CHECKING:  # imported at the first request: a program without requests saves the memory
    from holdfast.runtime.http import HttpClient, HttpError, Response

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0
READS = ("GET", "HEAD")
VERSION = "OpenStack-API-Version"
USER_AGENT = f"holdfast/{__version__}"
#: Maximum size of a response in bytes; a page of a long list has a few MB.
LARGEST = 256 * 2**20


def path(*parts: object) -> str:
    """Join parts into a URL path; quotes each part."""
    return "".join("/" + quote(str(part), safe="") for part in parts)


class Wire:
    """HTTP connection to a Holdfast server: `call("GET", "/readyz")` -> parsed JSON."""

    def __init__(
        self, url: Callable[[], str], access: Access, *, timeout_s: float, retries: int
    ) -> None:
        self._find_url = url
        self.timeout_s = timeout_s
        self.retries = retries
        self._session = access.session
        self._own: HttpClient | None = None
        self._advice = access.advice
        self._headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        if access.token:
            self._headers["X-Auth-Token"] = access.token
        if access.agent:
            self._headers[AGENT_HEADER] = access.agent
        if access.basic and access.session is None:
            login = base64.b64encode(":".join(access.basic).encode()).decode()
            self._headers["Authorization"] = f"Basic {login}"

    @cached_property
    def url(self) -> str:
        """Return the server's base URL; looked up on first use."""
        return self._find_url()

    def call(
        self,
        method: str,
        where: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
        retries: int | None = None,
        version: str | None = None,
    ) -> Any:
        """Send a request and return the response's JSON, or only the value under `key`.

        Returns {} for an empty body. `version` requests a version of a contract, for example
        "reservation 1.1".
        """
        left = self.retries if retries is None else retries
        left = left if method in READS else 0
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self.under(key, self._once(method, where, body, query, version))
            except (errors.NotReachable, errors.Unavailable) as error:
                if left <= 0 or (isinstance(error, errors.NotReachable) and error.timed_out):
                    raise
            left -= 1
            dates.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _once(
        self,
        method: str,
        where: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
        version: str | None,
    ) -> Any:
        answer = self._send(method, where, body, query, version)
        try:
            content = json.loads(answer.body) if answer.body else {}
        except ValueError:
            content = None
        if answer.status >= 300:
            error = errors.from_answer(answer.status, answer.headers, content, answer.reason)
            if isinstance(error, errors.Unauthorized):
                error.advise(self._advice)
            raise error
        if content is None:
            raise self._stranger("in JSON")
        return content

    def under(self, key: str | None, content: Any) -> Any:
        """Return the value under `key` of a response; ServerError if missing."""
        if key is None:
            return content
        if not isinstance(content, dict) or key not in content:
            raise self._stranger(f"with {key!r}")
        return content[key]

    def _stranger(self, how: str) -> errors.ServerError:
        return errors.ServerError(
            f"{self.url} did not answer {how}: set HOLDFAST_URL to a Holdfast server"
        )

    def close(self) -> None:
        """Close the connections, unless the caller provided the session."""
        if self._own is not None:
            self._own.close()

    def _send(
        self,
        method: str,
        where: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
        version: str | None,
    ) -> "Response":
        headers = {**self._headers, **({VERSION: version} if version else {})}
        if body is not None:
            headers["Content-Type"] = "application/json"
        encoded = None if body is None else _encode(body)
        text = urlencode(list(_pairs(query or {})))
        target = f"{where}?{text}" if text else where
        from holdfast.runtime import http

        try:
            if self._session is None:
                return self._request(method, target, headers, encoded)
            from holdfast.client import sessions

            return sessions.send(
                self._session, self.url, method, target, headers, encoded, self.timeout_s
            )
        except http.HttpError as error:
            raise self._lost(method, error) from error

    def _request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> "Response":
        """Send a request over the client's own connections."""
        from holdfast.runtime.http import Deadline, HttpClient

        if self._own is None:
            self._own = HttpClient(environment=True)
        return self._own.request(
            method,
            self.url + target,
            Deadline(self.timeout_s),
            body=body,
            headers=headers,
            most_bytes=LARGEST,
        )

    def _lost(self, method: str, error: "HttpError") -> errors.NotReachable:
        from holdfast.runtime import http

        if isinstance(error, http.TlsFailed):
            sentence = f"cannot trust {self.url}: {error}: set REQUESTS_CA_BUNDLE to its CA file"
            return errors.NotReachable(sentence)
        if isinstance(error, http.InvalidUrl):
            sentence = f"cannot reach {self.url}: {error}: set HOLDFAST_URL to its address"
            return errors.NotReachable(sentence)
        if not error.sent:
            return errors.NotReachable(
                f"cannot reach {self.url}: is it running?"
                " start it with `make run` or set HOLDFAST_URL"
            )
        timed_out = isinstance(error, http.HttpTimeout)
        how = (
            f"gave no answer within {self.timeout_s:g} s" if timed_out else "hung up in the middle"
        )
        return no_answer(method, f"{self.url} {how}", timed_out)


def no_answer(method: str, sentence: str, timed_out: bool) -> errors.NotReachable:
    """Return the error for a request that was sent but got no response."""
    if method in READS:
        return errors.NotReachable(sentence, timed_out=timed_out)
    sentence += ": it may be done, look before you repeat"
    return errors.NotReachable(sentence, in_doubt=True, timed_out=timed_out)


def _encode(body: Mapping[str, Any]) -> bytes:
    """Encode the body; refuse one that JSON cannot represent, as the server would do."""
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError as error:
        raise errors.BadRequest(
            f"cannot say this in JSON: {error}", status=400, code=errors.UNSAYABLE
        ) from error


def _pairs(query: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the query's parameters: one for each item of a list, none for None."""
    for name, value in query.items():
        for item in value if isinstance(value, list | tuple) else (value,):
            if item is not None:
                yield name, item
