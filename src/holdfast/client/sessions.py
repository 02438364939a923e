# SPDX-License-Identifier: Apache-2.0
"""Requests through a session of the caller: requests, keystoneauth1, or an object with `.request`.

The client imports this module, and with it requests and keystoneauth1, only for such a session.
"""

from collections.abc import Mapping
from typing import Any

import requests
from keystoneauth1 import exceptions as theirs
from requests import exceptions as lost
from urllib3.exceptions import NewConnectionError, ReadTimeoutError

from holdfast.client import errors
from holdfast.client.auth import BY_KEYSTONE, Session, has_catalog
from holdfast.client.http import no_answer
from holdfast.runtime.http import HttpError, HttpTimeout, InvalidUrl, Response, TlsFailed

_MALFORMED = (lost.InvalidURL, lost.MissingSchema, lost.InvalidSchema)
#: keystoneauth1's errors for a server that is away; all others are refusals.
_AWAY = (
    theirs.ConnectionError,
    theirs.DiscoveryFailure,
    theirs.CatalogException,
    theirs.HttpServerError,
    theirs.RequestTimeout,
)


def send(
    session: Session,
    base: str,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | None,
    timeout_s: float,
) -> Response:
    """Send a request to the server at `base` through the session and return the response.

    Raises HttpError, or ClientError for an error of keystoneauth1.
    """
    # requests would send a token in a custom header to any redirect target
    options: dict[str, Any] = {"allow_redirects": False}
    if has_catalog(session):
        options = {"raise_exc": False, "redirect": False}
    if body is not None:
        options["data"] = body
    try:
        answer = session.request(
            method=method, url=base + target, headers=dict(headers), timeout=timeout_s, **options
        )
    except requests.RequestException as error:
        raise _failure(error) from error
    except theirs.ClientException as error:
        raise _not_let_in(base, method, error) from error
    return Response(int(answer.status_code), answer.reason or "", answer.headers, answer.content)


def _not_let_in(base: str, method: str, error: Exception) -> errors.ClientError:
    """Translate a keystoneauth1 error.

    keystoneauth1 hides the error of requests, and which server failed: Keystone or Holdfast.
    """
    if not isinstance(error, _AWAY):
        refused = errors.Unauthorized(f"Keystone did not let us in: {error}")
        refused.advise(BY_KEYSTONE)
        return refused
    both = f"{base} or its Keystone"
    if isinstance(error, theirs.SSLError):
        return errors.NotReachable(f"cannot trust {both}: {error}: set OS_CACERT to their CA file")
    sentence = f"cannot reach {both}: {error}"
    cause = error.__context__
    if isinstance(cause, requests.RequestException):
        url = (cause.request.url if cause.request is not None else None) or base
        failure = _failure(cause)
        if url.startswith(base) and failure.sent:
            return no_answer(method, sentence, isinstance(failure, HttpTimeout))
    elif isinstance(error, theirs.RequestTimeout | theirs.ConnectionError):
        return no_answer(method, sentence, isinstance(error, theirs.ConnectTimeout))
    return errors.NotReachable(
        f"{sentence}: is it running? set HOLDFAST_URL and OS_AUTH_URL",
        timed_out=isinstance(error, theirs.ConnectTimeout),
    )


def _failure(error: requests.RequestException) -> HttpError:
    """Translate an error of requests."""
    inner = error.args[0] if error.args else None
    if isinstance(error, lost.SSLError):
        return TlsFailed(str(error))
    if isinstance(error, _MALFORMED):
        return InvalidUrl(str(error))
    never = (lost.ConnectTimeout, lost.ProxyError, lost.InvalidHeader)
    if isinstance(error, never) or isinstance(getattr(inner, "reason", inner), NewConnectionError):
        return HttpError(str(error))
    # requests reports a timeout within the response as a lost connection
    if isinstance(error, requests.Timeout) or isinstance(inner, ReadTimeoutError):
        return HttpTimeout(str(error), sent=True)
    return HttpError(str(error), sent=True)
