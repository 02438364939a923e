# SPDX-License-Identifier: Apache-2.0
"""The enforcement filter `external`: an HTTP service of the site decides, with Blazar's protocol.

    POST <base>/check-create     {"context": {…}, "lease": {…}}
    POST <base>/check-update     {"context": {…}, "current_lease": {…}, "lease": {…}}
    POST <base>/on-end           {"context": {…}, "lease": {…}, "ended_at": "…"}
    X-Auth-Token: <external_service_token>

204 allows, 403 with {"message": …} refuses. No answer and any other answer are neither: a refusal
would be wrong, and an approval could cost the site. So a check then ends in 503, and the end of a
lease is sent again until the service has accepted it.
"""

import contextlib
import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import holdfast
from holdfast.model.errors import DriverError, EnforcementRefused
from holdfast.model.host import Host
from holdfast.model.lease import Allocation, Lease, Reservation
from holdfast.ports.manager import Caller
from holdfast.runtime.http import Deadline, HttpClient, HttpError, HttpTimeout, Tls

LOG = logging.getLogger(__name__)
PORT = "enforcement service"
ALLOWED, REFUSED = 204, 403
#: Bytes read of an answer; characters of its message shown to a user.
MOST_BYTES = 65_536
LONGEST_MESSAGE = 1_000


class ExternalService:
    """The enforcement filter that asks the site's HTTP service."""

    name = "external"
    wants_end = True

    def __init__(self, conf: Any) -> None:
        self._conf = conf
        self._url("check-create")  # raises at once if the URL is not set

    @property
    def longest_s(self) -> float:
        return float(self._conf.enforcement.external_service_timeout_s)

    def check_create(self, caller: Caller, lease: Lease, hosts: Mapping[int, Host]) -> None:
        self._check("check-create", lease, {"lease": _lease(lease, hosts)})

    def check_update(
        self, caller: Caller, old: Lease, new: Lease, hosts: Mapping[int, Host]
    ) -> None:
        both = {"current_lease": _lease(old, hosts), "lease": _lease(new, hosts)}
        self._check("check-update", old, both)

    def on_end(self, lease: Lease, hosts: Mapping[int, Host], ended_at: datetime) -> None:
        body = {"lease": _lease(lease, hosts), "ended_at": _date(ended_at)}
        status, _answer = self._post("on-end", lease, body)
        if not 200 <= status < 300:
            raise _failed(f"on-end of lease {lease.id}: answered {status}")

    def _check(self, check: str, lease: Lease, body: Mapping[str, Any]) -> None:
        status, answer = self._post(check, lease, body)
        if status == ALLOWED:
            return
        if status == REFUSED:
            raise EnforcementRefused(_message(answer))
        LOG.warning("%s: %s of lease %s: %d: %.200r", PORT, check, lease.id, status, answer)
        raise _failed(f"answered {status}, which is neither yes nor no")

    def _post(self, path: str, lease: Lease, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Send the request; return status and body. DriverError if there is no answer in time."""
        own = self._conf.enforcement
        url, seconds = self._url(path), self.longest_s
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"holdfast/{holdfast.__version__}",
            **({"X-Auth-Token": own.external_service_token} if own.external_service_token else {}),
        }
        text = json.dumps({"context": self._context(lease), **body})

        http = HttpClient(tls=Tls(own.external_service_cafile or ""), environment=True)
        try:
            answer = http.request(
                "POST",
                url,
                Deadline(seconds),
                body=text.encode(),
                headers=headers,
                most_bytes=MOST_BYTES,
                whole=False,
            )
        except HttpTimeout as late:
            raise _failed(f"no answer within {seconds:g} s") from late
        except HttpError as error:
            LOG.warning("%s: %s of lease %s: %s", PORT, path, lease.id, error)
            raise _failed("cannot be reached") from error
        finally:
            http.close()
        return answer.status, answer.body

    def _url(self, path: str) -> str:
        base = self._conf.enforcement.external_service_base_endpoint
        if not base:
            raise _failed("[enforcement] external_service_base_endpoint is not set")
        return f"{base.rstrip('/')}/{path}"

    def _context(self, lease: Lease) -> dict[str, str]:
        return {
            "user_id": lease.user_id,
            "project_id": lease.project_id,
            "auth_url": self._conf.enforcement.external_service_auth_url,
            "region_name": self._conf.region,
        }


def _lease(lease: Lease, hosts: Mapping[int, Host]) -> dict[str, Any]:
    return {
        "id": lease.id,
        "name": lease.name,
        "user_id": lease.user_id,
        "project_id": lease.project_id,
        "start_date": _date(lease.start),
        "end_date": _date(lease.end),
        "before_end_date": _date(lease.before_end) if lease.before_end else None,
        "status": lease.status,
        "reservations": [_reservation(reservation, hosts) for reservation in lease.reservations],
    }


def _reservation(reservation: Reservation, hosts: Mapping[int, Host]) -> dict[str, Any]:
    """Return the reservation with only its own allocations.

    Another reservation of the lease may have the same type.
    """
    return {
        **reservation.spec,
        "id": reservation.id,
        "resource_type": reservation.resource_type,
        "status": reservation.status,
        "allocations": [_allocation(allocation, hosts) for allocation in reservation.allocations],
    }


def _allocation(allocation: Allocation, hosts: Mapping[int, Host]) -> dict[str, Any]:
    if allocation.host_id is None:
        return {"id": allocation.thing}
    slots = {} if allocation.slots is None else {"slots": allocation.slots}
    own = {"id": str(allocation.host_id), **slots}
    host = hosts.get(allocation.host_id)
    if host is None:  # no longer enrolled: only its name is known
        return {**own, "hypervisor_hostname": allocation.host, "extra": {}}
    return {**host.facts(), **own, "extra": dict(host.capabilities)}


def _date(value: datetime) -> str:
    """Format a time as Blazar does: UTC without a zone."""
    return value.replace(tzinfo=None).isoformat()


def _message(answer: bytes) -> str:
    with contextlib.suppress(ValueError, LookupError, TypeError):
        message = json.loads(answer)["message"]
        if isinstance(message, str) and message.strip():
            return message.strip()[:LONGEST_MESSAGE]
    return "the enforcement service of this site refused the request, without a reason"


def _failed(why: str) -> DriverError:
    return DriverError(PORT, why, retryable=True)
