# SPDX-License-Identifier: Apache-2.0
"""The fence driver `redfish`, by sushy: a short HTTP session per call.

    GET /redfish/v1/ · GET the system · for an order, POST its reset

The driver keeps nothing between calls. The password goes only to the address in the file: the
driver uses no proxy, follows no redirect and no link of the BMC to another host. All requests of a
call share its timeout, and the driver sends no order after that.
"""

import base64
from collections.abc import Callable
from typing import Any, TypeVar

import requests
import sushy
import sushy.auth
import sushy.connector
from sushy import exceptions

from holdfast.drivers.deadline_adapter import DeadlineAdapter
from holdfast.drivers.fence.device import PORT, Device, secret, without
from holdfast.drivers.fence.devices_file import base_url
from holdfast.model.errors import DriverError
from holdfast.ports.fence import OFF, ON, UNKNOWN
from holdfast.runtime.clock import Clock
from holdfast.runtime.http import Deadline

T = TypeVar("T")
_RESET = {"off": sushy.ResetType.FORCE_OFF, "reboot": sushy.ResetType.FORCE_RESTART}
_POWER = {
    sushy.PowerState.OFF: OFF,
    sushy.PowerState.ON: ON,
    sushy.PowerState.POWERING_ON: ON,
    sushy.PowerState.POWERING_OFF: ON,  # not yet
    sushy.PowerState.PAUSED: ON,
}

#: Exceptions that sushy raises by mistake when a BMC sends an unexpected answer.
_NONSENSE = (ValueError, LookupError, AttributeError, TypeError, RecursionError)


class Session(requests.Session):
    """An HTTP session with a deadline that talks to a single address and follows no redirect."""

    def __init__(self, base: str, deadline: Deadline) -> None:
        super().__init__()
        self.trust_env = False  # neither proxies nor a .netrc
        self.headers["Connection"] = "close"  # some BMCs allow few connections
        self._base = base
        for scheme in ("http://", "https://"):
            self.mount(scheme, DeadlineAdapter(lambda: deadline))

    def request(self, method: Any, url: Any, *args: Any, **options: Any) -> requests.Response:
        if not str(url).startswith(f"{self._base}/"):
            raise requests.exceptions.InvalidURL("it points to another address, which is not asked")
        answer = super().request(method, url, *args, **{**options, "allow_redirects": False})
        if 300 <= answer.status_code < 400:
            raise requests.exceptions.TooManyRedirects(
                f"answered {answer.status_code}; redirects are not followed, name the final address"
            )
        return answer


class Redfish:
    """The driver of a device with a Redfish service."""

    def __init__(self, device: Device, clock: Clock) -> None:
        self._device = device
        self._clock = clock

    def power(self, host: str) -> str:
        return self._talk(host, lambda system: _POWER.get(system.power_state, UNKNOWN))

    def off(self, host: str) -> None:
        def order(system: Any) -> None:
            if self._device.action == "reboot" or _POWER.get(system.power_state) != OFF:
                system.reset_system(_RESET[self._device.action])

        self._talk(host, order)

    def on(self, host: str) -> None:
        def order(system: Any) -> None:
            if system.power_state != sushy.PowerState.ON:
                system.reset_system(sushy.ResetType.ON)

        self._talk(host, order)

    def close(self) -> None:
        """Do nothing: no connection stays open."""

    def _talk(self, host: str, say: Callable[[Any], T]) -> T:
        """Find the system and call `say`; every error becomes a sentence without secrets."""
        device = self._device.of(host)
        password = secret(device.password_file)
        basic = base64.b64encode(f"{device.user}:{password}".encode()).decode()
        deadline = Deadline(device.timeout_s, self._clock)
        session = Session(base_url(device.address, device.allow_http), deadline)
        try:
            return say(_system(device, session, password))
        except DriverError:
            raise
        except exceptions.SushyError as error:
            why, retryable = _judged(error, device.timeout_s)
            raise _failed(host, device, without(why, (password, basic)), retryable) from None
        except OSError as error:  # the file verify_ca is gone
            raise _failed(host, device, without(str(error), (password, basic)), True) from None
        except _NONSENSE as error:
            why = f"its answer makes no sense ({type(error).__name__}): is that a Redfish service?"
            raise _failed(host, device, why, True) from None
        finally:
            session.close()


def _system(device: Device, session: Session, password: str) -> Any:
    base = base_url(device.address, device.allow_http)
    # A single attempt without pauses: the caller knows better when to retry.
    connector = sushy.connector.Connector(
        base, verify=device.verify_ca, server_side_retries=1, server_side_retries_delay=0
    )
    connector._session = session
    root = sushy.Sushy(
        base,
        auth=sushy.auth.BasicAuth(username=device.user.encode(), password=password.encode()),
        connector=connector,
    )
    if device.system.startswith("/"):
        return root.get_system(device.system)
    if not device.system:
        return root.get_system()
    return _by_name(device, root.get_system_collection())


def _by_name(device: Device, collection: Any) -> Any:
    """Return the system by id, uuid or name; if the id is in the path, no other system is read."""
    for path in collection.members_identities:
        if path.rstrip("/").rpartition("/")[2] == device.system:
            return collection.get_member(path)
    named = [
        member
        for member in collection.get_members()
        if device.system.lower() in {str(member.uuid).lower(), str(member.name).lower()}
    ]
    if len(named) != 1:
        raise DriverError(
            PORT,
            f"{device.hosts}: {device.address} has {len(named)} systems {device.system!r}: correct"
            " `system` in the devices file",
            retryable=False,
        )
    return named[0]


def _judged(error: exceptions.SushyError, seconds: float) -> tuple[str, bool]:
    """Return the error text, and whether a retry may succeed."""
    if isinstance(error, exceptions.AccessError):
        return (
            f"the BMC does not accept user and password (HTTP {error.status_code}): correct `user`,"
            " or the first line of password_file",
            False,
        )
    if isinstance(error, exceptions.ConnectionError):
        return _no_connection(error, seconds)
    if isinstance(error, exceptions.ResourceNotFoundError):
        return f"{error}: correct `system` in the devices file", False
    if isinstance(error, exceptions.UnknownDefaultError):
        return "the BMC has not exactly one system: say which in `system`", False
    if isinstance(error, exceptions.HTTPError):
        return str(error), error.status_code >= 500 or error.status_code in (408, 409, 429)
    return str(error), False


def _no_connection(error: exceptions.ConnectionError, seconds: float) -> tuple[str, bool]:
    cause: BaseException | None = error.__context__
    if isinstance(cause, requests.exceptions.Timeout):
        return f"no answer within {seconds:g} s", True
    if isinstance(cause, requests.exceptions.SSLError):
        return (
            f"its certificate cannot be verified ({cause}): name the file of its authority in"
            " verify_ca",
            False,
        )
    final = (requests.exceptions.InvalidURL, requests.exceptions.TooManyRedirects)
    return f"no answer: {cause or error}", not isinstance(cause, final)


def _failed(host: str, device: Device, why: str, retryable: bool) -> DriverError:
    return DriverError(PORT, f"{host}: Redfish at {device.address}: {why}", retryable=retryable)


def connect(device: Device, _conf: Any, clock: Clock) -> Redfish:
    return Redfish(device, clock)
