# SPDX-License-Identifier: Apache-2.0
"""Agents on compute hosts, and the token with which each speaks for its own host and no other.

The token is the host's name under a secret that only controllers have; nothing is kept of it. The
secret's file has one per line: tokens are made by the first and believed by any, so that a new
secret is put above the old one, and the old one taken away once every agent has its new token.
Stolen from one host, a token says nothing about another.
"""

import base64
import hmac
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.model.caller import Caller
from holdfast.model.errors import Conflict, Forbidden, InvalidInput, Unauthorized, Unavailable
from holdfast.model.host import normalise, same

if TYPE_CHECKING:
    from holdfast.api.request import Request


AGENT_ROLE, AGENT_PROJECT, AGENT_PREFIX = "agent", "agents", "agent@"
SHORTEST_SECRET = 32


def secrets(path: str) -> Sequence[bytes]:
    """Of the file; InvalidInput says what is wrong with it."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise InvalidInput(f"[auth] agent_secret_file: {path}: {error.strerror}") from error
    found = [line.strip() for line in lines if line.strip()]
    if not found or any(len(one) < SHORTEST_SECRET for one in found):
        raise InvalidInput(
            f"[auth] agent_secret_file: {path}: a secret of {SHORTEST_SECRET} characters or more"
            " per line is wanted, such as `openssl rand -hex 32` makes"
        )
    return found


def agent_token(host: str, secret: bytes) -> str:
    """`cmp-7:…`: what the agent of that host shows."""
    name = normalise(host)
    if not name or ":" in name:
        raise InvalidInput(f"{host!r} is no name of a host")
    sealed = hmac.digest(secret, f"agent {name}".encode(), "sha256")
    return f"{name}:{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"


def host_of(shown: str, path: str | None) -> str:
    """Whose agent it is that shows that; Unauthorized if it is nobody's."""
    if not path:
        raise Unauthorized("agents are not let in: [auth] agent_secret_file is not set")
    try:
        known = secrets(path)
    except InvalidInput as error:
        raise Unavailable(error.message) from error
    host = shown.partition(":")[0]
    try:
        good = any(
            hmac.compare_digest(agent_token(host, one).encode(), shown.encode()) for one in known
        )
    except InvalidInput:
        good = False
    if not good:
        raise Unauthorized("this is not the token of an agent: `holdfast agent token` makes one")
    return normalise(host)


def groups_of(host: str, entries: Sequence[str]) -> list[str]:
    """The groups into which `[auth] agent_groups` puts a host, whatever its agent says.

    >>> groups_of("CMP-7.example.org", ["gpu: cmp-7, x-*", "ssd: cmp-*", "web: cmp-8"])
    ['gpu', 'ssd']
    """
    name, found = normalise(host), []
    for entry in entries:
        group, _, members = entry.partition(":")
        wanted = [one for one in map(normalise, members.split(",")) if one]
        if any(same(one, name) or fnmatchcase(name, one) for one in wanted):
            found.append(group.strip())
    return found


def without_agent_role(credentials: dict[str, Any]) -> dict[str, Any]:
    """Of whoever did not come by a token of ours: what other people call a role of theirs makes
    nobody an agent, for no host is there that it would be held to."""
    if _by_agent_token(credentials["user_id"], credentials["project_id"]):
        return credentials
    return credentials | {
        "roles": [one for one in credentials["roles"] if one.lower() != AGENT_ROLE]
    }


def own_host(caller: Caller) -> str | None:
    """The one host that the caller may speak for; None: it is no agent."""
    if not _by_agent_token(caller.user_id, caller.project_id):
        return None
    return caller.user_id.removeprefix(AGENT_PREFIX)


def _by_agent_token(user_id: str, project_id: str) -> bool:
    return user_id.startswith(AGENT_PREFIX) and project_id == AGENT_PROJECT


def check_own(caller: Caller, observer: str, host: str) -> None:
    """Forbidden if an agent speaks as somebody else, or of another host than its own."""
    own = own_host(caller)
    if own is None:
        return
    if observer != f"{AGENT_PREFIX}{own}":
        raise Forbidden(
            f"the agent of {own} reports as {AGENT_PREFIX}{own}, not as {observer[:80]}"
        )
    check_host(caller, host)


def check_host(caller: Caller, host: str) -> None:
    """Forbidden if an agent speaks of another host than its own, or asks about one."""
    own = own_host(caller)
    if own is not None and not same(host, own):
        raise Forbidden(f"the agent of {own} cannot speak for {host[:80] or 'no host at all'}")


# Host monitors, and the token with which each speaks under its own name and no other.
#
# The token is the monitor's name under the secret of `[auth] agent_secret_file`, of which agents'
# tokens are made too. It counts only while the monitor is registered, which is a row. Under the
# name
# of a registered monitor nobody speaks without its token, whatever roles the caller has.


MONITOR_ROLE, MONITOR_PROJECT, MONITOR_PREFIX = "monitor", "monitors", "monitor@"
#: Monitors can be registered under such names only; those of hosts are.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def monitor_token(observer: str, secret: bytes) -> str:
    """`monitor@ctl-1:…`: what the monitor of that name shows. No agent's token begins so and has
    the same seal, for an agent's is over other words."""
    if not NAME.fullmatch(observer):
        raise InvalidInput(
            f"observer: {observer[:80]!r} cannot be registered: 1 to 128 letters, digits, '.', '-'"
            " or '_' are wanted, the first of them a letter or a digit"
        )
    sealed = hmac.digest(secret, f"monitor {observer}".encode(), "sha256")
    return f"{MONITOR_PREFIX}{observer}:{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"


def new_token(observer: str, path: str | None) -> str:
    """Of the newest secret of that file; Conflict if there is no such file to make it of."""
    if not path:
        raise Conflict(
            "[auth] agent_secret_file is not set, so that no monitor's token can be made: write"
            " what `openssl rand -hex 32` prints into a file, name it there for every API, and"
            " register the monitor again"
        )
    try:
        secret = secrets(path)[0]
    except InvalidInput as error:
        raise Unavailable(error.message) from error
    return monitor_token(observer, secret)


def is_token(shown: str) -> bool:
    """Whether a monitor shows that, rather than an agent."""
    return shown.startswith(MONITOR_PREFIX)


def observer_of(shown: str, path: str | None) -> str:
    """The name of the monitor whose token that is; Unauthorized if it is nobody's."""
    if not path:
        raise Unauthorized("monitors' tokens do not count: [auth] agent_secret_file is not set")
    try:
        known = secrets(path)
    except InvalidInput as error:
        raise Unavailable(error.message) from error
    observer = shown.removeprefix(MONITOR_PREFIX).partition(":")[0]
    try:
        good = any(
            hmac.compare_digest(monitor_token(observer, one).encode(), shown.encode())
            for one in known
        )
    except InvalidInput:
        good = False
    if not good:
        raise Unauthorized(
            "this is not the token of a monitor: `holdfast monitor register` makes one"
        )
    return observer


def without_monitor_role(credentials: dict[str, Any]) -> dict[str, Any]:
    """Of whoever did not come by a monitor's token: a role of that name makes nobody a monitor."""
    if _by_monitor_token(credentials["user_id"], credentials["project_id"]):
        return credentials
    return credentials | {
        "roles": [one for one in credentials["roles"] if one.lower() != MONITOR_ROLE]
    }


def own_name(caller: Caller) -> str | None:
    """The name of the monitor whose token the caller showed; None: it is none."""
    if not _by_monitor_token(caller.user_id, caller.project_id):
        return None
    return caller.user_id.removeprefix(MONITOR_PREFIX)


def _by_monitor_token(user_id: str, project_id: str) -> bool:
    return user_id.startswith(MONITOR_PREFIX) and project_id == MONITOR_PROJECT


def check_observer(request: "Request", observer: str) -> None:
    """Forbidden if the caller may not speak under that name: a monitor's token counts for its own
    name while that is registered, and the name of a registered monitor for its token only."""
    own = own_name(request.caller)
    if own is not None and observer != own:
        raise Forbidden(f"the token of monitor {own} cannot speak as {observer[:80]}")
    registered = request.services.store.monitors.is_registered(observer)
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
