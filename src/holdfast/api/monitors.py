# SPDX-License-Identifier: Apache-2.0
"""Host monitors, and the token with which each speaks under its own name and no other.

The token is the monitor's name under the secret of `[auth] agent_secret_file`, of which agents'
tokens are made too. It counts only while the monitor is registered, which is a row. Under the name
of a registered monitor nobody speaks without its token, whatever roles the caller has.
"""

import base64
import hmac
import re
from typing import TYPE_CHECKING, Any

from holdfast.api import agents
from holdfast.model.caller import Caller
from holdfast.model.errors import Conflict, Forbidden, InvalidInput, Unauthorized, Unavailable

if TYPE_CHECKING:
    from holdfast.api.ask import Ask

ROLE, PROJECT, PREFIX = "monitor", "monitors", "monitor@"
#: Monitors can be registered under such names only; those of hosts are.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def token(observer: str, secret: bytes) -> str:
    """`monitor@ctl-1:…`: what the monitor of that name shows. No agent's token begins so and has
    the same seal, for an agent's is over other words."""
    if not NAME.fullmatch(observer):
        raise InvalidInput(
            f"observer: {observer[:80]!r} cannot be registered: 1 to 128 letters, digits, '.', '-'"
            " or '_' are wanted, the first of them a letter or a digit"
        )
    sealed = hmac.digest(secret, f"monitor {observer}".encode(), "sha256")
    return f"{PREFIX}{observer}:{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"


def new_token(observer: str, path: str | None) -> str:
    """Of the newest secret of that file; Conflict if there is no such file to make it of."""
    if not path:
        raise Conflict(
            "[auth] agent_secret_file is not set, so that no monitor's token can be made: write"
            " what `openssl rand -hex 32` prints into a file, name it there for every API, and"
            " register the monitor again"
        )
    try:
        secret = agents.secrets(path)[0]
    except InvalidInput as error:
        raise Unavailable(error.message) from error
    return token(observer, secret)


def is_token(shown: str) -> bool:
    """Whether a monitor shows that, rather than an agent."""
    return shown.startswith(PREFIX)


def observer_of(shown: str, path: str | None) -> str:
    """The name of the monitor whose token that is; Unauthorized if it is nobody's."""
    if not path:
        raise Unauthorized("monitors' tokens do not count: [auth] agent_secret_file is not set")
    try:
        known = agents.secrets(path)
    except InvalidInput as error:
        raise Unavailable(error.message) from error
    observer = shown.removeprefix(PREFIX).partition(":")[0]
    try:
        good = any(
            hmac.compare_digest(token(observer, one).encode(), shown.encode()) for one in known
        )
    except InvalidInput:
        good = False
    if not good:
        raise Unauthorized(
            "this is not the token of a monitor: `holdfast monitor register` makes one"
        )
    return observer


def without_role(credentials: dict[str, Any]) -> dict[str, Any]:
    """Of whoever did not come by a monitor's token: a role of that name makes nobody a monitor."""
    if _by_token(credentials["user_id"], credentials["project_id"]):
        return credentials
    return credentials | {"roles": [one for one in credentials["roles"] if one.lower() != ROLE]}


def own_name(caller: Caller) -> str | None:
    """The name of the monitor whose token the caller showed; None: it is none."""
    if not _by_token(caller.user_id, caller.project_id):
        return None
    return caller.user_id.removeprefix(PREFIX)


def _by_token(user_id: str, project_id: str) -> bool:
    return user_id.startswith(PREFIX) and project_id == PROJECT


def check_observer(ask: "Ask", observer: str) -> None:
    """Forbidden if the caller may not speak under that name: a monitor's token counts for its own
    name while that is registered, and the name of a registered monitor for its token only."""
    own = own_name(ask.caller)
    if own is not None and observer != own:
        raise Forbidden(f"the token of monitor {own} cannot speak as {observer[:80]}")
    registered = ask.services.store.monitors.is_registered(observer)
    if own is not None and not registered:
        raise Forbidden(
            f"monitor {own} is not registered, so that its token does not count: an administrator"
            f" registers it by `holdfast monitor register {own}`"
        )
    if own is None and registered:
        raise Forbidden(
            f"{observer[:80]} is a registered monitor: its own token alone speaks for it, put it"
            " into the file that [hostmonitor] token_file names"
        )
