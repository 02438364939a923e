# SPDX-License-Identifier: Apache-2.0
"""One request over HTTP: sent, retried where that is safe, read, and its errors translated.

Only GETs are repeated, after a lost connection or a 503, a few times and with growing pauses.
A write that got no answer may have happened: the caller is told to look first.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast import __version__
from holdfast.client import clock, errors
from holdfast.client.access import Access, Session

if TYPE_CHECKING:
    import requests

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0
USER_AGENT = f"holdfast/{__version__}"


def path(*parts: object) -> str:
    """A URL path of parts, each made safe."""
    return "".join("/" + quote(str(part), safe="") for part in parts)


def _in_doubt(error: errors.ClientError) -> bool:
    return isinstance(error, errors.NotReachable) and error.in_doubt


class Wire:
    """The way to one server: `call("GET", "/readyz")` -> parsed JSON."""

    def __init__(self, url: str, access: Access, *, timeout_s: float, retries: int) -> None:
        import requests

        self.url = url
        self.timeout_s = timeout_s
        self.retries = retries
        self._own = requests.Session()
        self.session: Session = access.session or self._own
        self._keystone = hasattr(self.session, "get_auth_headers")
        self._headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        if access.token:
            self._headers["X-Auth-Token"] = access.token
        self._basic = None
        if access.basic:
            # bytes, or requests would refuse what latin-1 cannot say
            self._basic = tuple(part.encode() for part in access.basic)

    def call(
        self,
        method: str,
        where: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
        retries: int | None = None,
    ) -> Any:
        """The answer's JSON ({} if it has none), or only what is under `key`."""
        left = self.retries if retries is None else retries
        left = left if method == "GET" else 0
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self._under(key, self._once(method, where, body, query))
            except (errors.NotReachable, errors.Unavailable) as error:
                if left <= 0 or _in_doubt(error):
                    raise
            left -= 1
            clock.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _once(
        self,
        method: str,
        where: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
    ) -> Any:
        answer = self._send(method, self.url + where, body, query)
        status, headers = int(answer.status_code), answer.headers
        try:
            said = answer.json() if answer.content else {}
        except ValueError:
            said = None
        if status >= 300:
            raise errors.from_answer(status, headers, said, answer.reason or "")
        if said is None:
            raise self._stranger("in JSON")
        return said

    def _under(self, key: str | None, said: Any) -> Any:
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
        """Let the connections go, if the session is one of ours."""
        self._own.close()

    def _send(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
    ) -> Any:
        options: dict[str, Any] = {
            "headers": dict(self._headers),
            "params": query or None,
            "timeout": self.timeout_s,
        }
        if body is not None:
            options["json"] = dict(body)
        if self._keystone:
            options |= {"raise_exc": False, "redirect": False}
        else:
            # a token in a header of its own would follow a redirect anywhere
            options |= {"allow_redirects": False, "auth": self._basic}
        import requests

        try:
            return self.session.request(method=method, url=url, **options)
        except requests.RequestException as error:
            raise self._lost(method, error) from error
        except _keystone_errors() as error:
            raise self._not_let_in(error) from error

    def _lost(self, method: str, error: "requests.RequestException") -> errors.NotReachable:
        import requests
        from urllib3.exceptions import ProtocolError

        look = "" if method == "GET" else ": it may be done, look before you repeat"
        if isinstance(error, requests.ReadTimeout):
            sentence = f"{self.url} gave no answer within {self.timeout_s:g} s{look}"
            return errors.NotReachable(sentence, in_doubt=True)
        if isinstance(error, requests.exceptions.SSLError):
            sentence = f"cannot trust {self.url}: {error}: set REQUESTS_CA_BUNDLE to its CA file"
            return errors.NotReachable(sentence)
        if not isinstance(error, requests.ConnectionError):
            sentence = f"cannot reach {self.url}: {error}: set HOLDFAST_URL to its address"
            return errors.NotReachable(sentence)
        if error.args and isinstance(error.args[0], ProtocolError):
            sentence = f"{self.url} hung up in the middle{look}"
            return errors.NotReachable(sentence, in_doubt=bool(look))
        return errors.NotReachable(
            f"cannot reach {self.url}: is it running? start it with `make run` or set HOLDFAST_URL"
        )

    def _not_let_in(self, error: Exception) -> errors.ClientError:
        if isinstance(error, sys.modules["keystoneauth1.exceptions"].ConnectFailure):
            return errors.NotReachable(
                f"cannot reach {self.url} or its Keystone: {error}: is it running?"
                " set HOLDFAST_URL and OS_AUTH_URL"
            )
        return errors.Unauthorized(f"Keystone did not let us in: {error}")


def _keystone_errors() -> tuple[type[Exception], ...]:
    """What a keystoneauth1 session may raise; nothing if nobody has imported it."""
    module = sys.modules.get("keystoneauth1.exceptions")
    return (module.ClientException,) if module else ()
