# SPDX-License-Identifier: Apache-2.0
"""Holdfast as nova-api asks it: where it is, and whether it takes a lease. One call, no retries.

Whoever asks holds up somebody's server create, so both timeouts are short; what gets no answer is
made later by Holdfast's own sweep of servers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import requests

from holdfast.nova.options import LeaseOptions

#: Answers that another try would get again; after all others somebody may look again later.
LASTING = frozenset((400, 403, 409, 413))
SERVICE_TYPE = "reservation"


class NoEndpoint(Exception):
    """Nobody says where Holdfast is; the sentence says where to write it."""


@dataclass(frozen=True)
class Answer:
    """What Holdfast said; status 0: nothing."""

    status: int
    message: str = ""
    lease_id: str = ""

    @property
    def taken(self) -> bool:
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        return self.status in LASTING


def endpoint(options: LeaseOptions, environ: Mapping[str, Any]) -> str:
    """Where the reservation API is: as configured, else by the catalog of the request's token."""
    if options.endpoint:
        return options.endpoint.rstrip("/")
    found = _in_catalog(environ.get("HTTP_X_SERVICE_CATALOG") or "[]", options)
    if len(found) > 1:
        raise NoEndpoint(
            f"the catalog has {len(found)} endpoints of type {SERVICE_TYPE}:"
            " set region_name in [holdfast] of nova.conf"
        )
    for url in found:
        return url.rstrip("/")
    where = f" in region {options.region}" if options.region else ""
    raise NoEndpoint(
        f"the catalog has no endpoint of type {SERVICE_TYPE}{where}:"
        " register one, or set endpoint in [holdfast] of nova.conf"
    )


def ask(
    url: str, body: Mapping[str, Any], environ: Mapping[str, Any], options: LeaseOptions
) -> Answer:
    """POST a lease in the name of whoever makes the request."""
    headers = {"Accept": "application/json"}
    for header, key in (
        ("X-Auth-Token", "HTTP_X_AUTH_TOKEN"),
        ("X-OpenStack-Request-ID", "openstack.request_id"),
    ):
        if environ.get(key):
            headers[header] = environ[key]
    try:
        said = requests.post(
            f"{url}/leases",
            json=body,
            headers=headers,
            timeout=options.timeouts,
            verify=options.cafile or True,
            allow_redirects=False,
        )
    except (requests.RequestException, OSError) as error:  # OSError: a cafile that is not there
        return Answer(0, f"Holdfast does not answer ({type(error).__name__})")
    return _answer(said.status_code, said.text)


def _answer(status: int, text: str) -> Answer:
    try:
        said = json.loads(text)
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    if 200 <= status < 300:
        lease = said.get("lease")
        return Answer(status, lease_id=str(lease.get("id", "")) if isinstance(lease, dict) else "")
    message = said.get("error_message") or said.get("message") or f"Holdfast answers {status}"
    return Answer(status, str(message)[:1000])


def _in_catalog(text: str, options: LeaseOptions) -> list[str]:
    """The endpoint's different addresses; the catalog is in the form that Keystone's filter gives
    to the services behind it."""
    found: list[str] = []
    for service in json.loads(text):
        if service.get("type") != SERVICE_TYPE:
            continue
        for one in service.get("endpoints", ()):
            url = one.get(f"{options.interface}URL") or one.get("publicURL")
            fits = not options.region or one.get("region") == options.region
            if url and fits and url not in found:
                found.append(url)
    return found
