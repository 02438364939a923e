# SPDX-License-Identifier: Apache-2.0
"""HTTP layer of the client: sends requests, retries, parses responses, translates errors.

The client retries GETs only, after a lost connection or a 503, a few times and with growing pauses.
If a write gets no response, or only part of a response, the server may have carried out the write:
the error tells the caller to check before a repeat.
"""

import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast import __version__
from holdfast.client import dates, errors
from holdfast.client.auth import BY_KEYSTONE, Access, has_catalog
from holdfast.model.observation import AGENT_HEADER

if TYPE_CHECKING:
    import requests

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0
READS = ("GET", "HEAD")
VERSION = "OpenStack-API-Version"
USER_AGENT = f"holdfast/{__version__}"


def path(*parts: object) -> str:
    """Join parts into a URL path; quotes each part."""
    return "".join("/" + quote(str(part), safe="") for part in parts)


class Wire:
    """HTTP connection to a Holdfast server: `call("GET", "/readyz")` -> parsed JSON."""

    def __init__(
        self, url: Callable[[], str], access: Access, *, timeout_s: float, retries: int
    ) -> None:
        import requests

        self._find_url = url
        self.timeout_s = timeout_s
        self.retries = retries
        self.session: Any = access.session or requests.Session()
        self._own = access.session is None
        self._advice = access.advice
        self._headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        if access.token:
            self._headers["X-Auth-Token"] = access.token
        if access.agent:
            self._headers[AGENT_HEADER] = access.agent
        # requests would send a token in a custom header to any redirect target
        self._options: dict[str, Any] = {"allow_redirects": False}
        if has_catalog(self.session):
            self._options = {"raise_exc": False, "redirect": False}
        elif access.basic:
            # bytes, because requests refuses text outside latin-1
            self._options["auth"] = tuple(part.encode() for part in access.basic)
        elif self._own:
            # without auth, requests would look for a password in ~/.netrc
            self._options["auth"] = _as_it_is

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
        answer = self._send(method, self.url + where, body, query, version)
        status, headers = int(answer.status_code), answer.headers
        try:
            said = answer.json() if answer.content else {}
        except ValueError:
            said = None
        if status >= 300:
            error = errors.from_answer(status, headers, said, answer.reason or "")
            if isinstance(error, errors.Unauthorized):
                error.advise(self._advice)
            raise error
        if said is None:
            raise self._stranger("in JSON")
        return said

    def under(self, key: str | None, said: Any) -> Any:
        """Return the value under `key` of a response; ServerError if missing."""
        if key is None:
            return said
        if not isinstance(said, dict) or key not in said:
            raise self._stranger(f"with {key!r}")
        return said[key]

    def _stranger(self, how: str) -> errors.ServerError:
        return errors.ServerError(
            f"{self.url} did not answer {how}: set HOLDFAST_URL to a Holdfast server"
        )

    def close(self) -> None:
        """Close the connections, unless the caller provided the session."""
        if self._own:
            self.session.close()

    def _send(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
        version: str | None,
    ) -> Any:
        options: dict[str, Any] = {
            "headers": {**self._headers, **({VERSION: version} if version else {})},
            "params": query or None,
            "timeout": self.timeout_s,
            **self._options,
        }
        if body is not None:
            options["json"] = dict(body)
        import requests

        try:
            return self.session.request(method=method, url=url, **options)
        except requests.RequestException as error:
            raise self._lost(method, error) from error
        except _keystone_errors() as error:
            raise self._not_let_in(method, error) from error

    def _lost(self, method: str, error: "requests.RequestException") -> errors.ClientError:
        from requests import exceptions as lost

        if isinstance(error, lost.InvalidJSONError):
            # the body can never be sent: treat the request as refused by the server
            return errors.BadRequest(
                f"cannot say this in JSON: {error}", status=400, code=errors.UNSAYABLE
            )
        if isinstance(error, lost.SSLError):
            sentence = f"cannot trust {self.url}: {error}: set REQUESTS_CA_BUNDLE to its CA file"
            return errors.NotReachable(sentence)
        if isinstance(error, lost.InvalidURL | lost.MissingSchema | lost.InvalidSchema):
            sentence = f"cannot reach {self.url}: {error}: set HOLDFAST_URL to its address"
            return errors.NotReachable(sentence)
        if not _went_out(error):
            return errors.NotReachable(
                f"cannot reach {self.url}: is it running?"
                " start it with `make run` or set HOLDFAST_URL"
            )
        timed_out = _timed_out(error)
        how = (
            f"gave no answer within {self.timeout_s:g} s" if timed_out else "hung up in the middle"
        )
        return self._no_answer(method, f"{self.url} {how}", timed_out)

    def _no_answer(self, method: str, sentence: str, timed_out: bool) -> errors.NotReachable:
        """Return the error for a request that was sent but got no response."""
        if method in READS:
            return errors.NotReachable(sentence, timed_out=timed_out)
        sentence += ": it may be done, look before you repeat"
        return errors.NotReachable(sentence, in_doubt=True, timed_out=timed_out)

    def _not_let_in(self, method: str, error: Exception) -> errors.ClientError:
        """Translate a keystoneauth1 error.

        keystoneauth1 hides the error of requests, and which server failed: Keystone or Holdfast.
        """
        import requests

        theirs = sys.modules["keystoneauth1.exceptions"]
        nowhere = (theirs.ConnectionError, theirs.DiscoveryFailure, theirs.CatalogException)
        if not isinstance(error, (*nowhere, theirs.HttpServerError, theirs.RequestTimeout)):
            refused = errors.Unauthorized(f"Keystone did not let us in: {error}")
            refused.advise(BY_KEYSTONE)
            return refused
        if isinstance(error, theirs.SSLError):
            return errors.NotReachable(
                f"cannot trust {self.url} or its Keystone: {error}: set OS_CACERT to their CA file"
            )
        sentence = f"cannot reach {self.url} or its Keystone: {error}"
        cause = error.__context__
        if isinstance(cause, requests.RequestException):
            asked = (cause.request.url if cause.request is not None else None) or self.url
            if asked.startswith(self.url) and _went_out(cause):
                return self._no_answer(method, sentence, _timed_out(cause))
        elif isinstance(error, theirs.RequestTimeout | theirs.ConnectionError):
            return self._no_answer(method, sentence, isinstance(error, theirs.ConnectTimeout))
        return errors.NotReachable(
            f"{sentence}: is it running? set HOLDFAST_URL and OS_AUTH_URL",
            timed_out=isinstance(error, theirs.ConnectTimeout),
        )


def _as_it_is(request: Any) -> Any:
    """Authenticate nothing: auth callback for requests without credentials."""
    return request


def _went_out(error: "requests.RequestException") -> bool:
    """Return whether the server may have received the request; False only for earlier failures."""
    from requests import exceptions as lost
    from urllib3.exceptions import NewConnectionError

    never = (lost.ConnectTimeout, lost.ProxyError, lost.SSLError, lost.InvalidJSONError)
    malformed = (lost.InvalidURL, lost.MissingSchema, lost.InvalidSchema, lost.InvalidHeader)
    if isinstance(error, (*never, *malformed)):
        return False
    cause = error.args[0] if error.args else None
    return not isinstance(getattr(cause, "reason", cause), NewConnectionError)


def _timed_out(error: "requests.RequestException") -> bool:
    """Return whether a request timed out, before or within the response.

    requests reports a timeout within the response as a lost connection.
    """
    import requests
    from urllib3.exceptions import ReadTimeoutError

    inner = error.args[0] if error.args else None
    return isinstance(error, requests.Timeout) or isinstance(inner, ReadTimeoutError)


def _keystone_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes of keystoneauth1; empty if the module is not imported."""
    module = sys.modules.get("keystoneauth1.exceptions")
    return (module.ClientException,) if module else ()
