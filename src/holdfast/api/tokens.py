# SPDX-License-Identifier: Apache-2.0
"""Tokens of agents and host monitors.

A token is a name plus an HMAC over the name, keyed with a secret of `[auth] agent_secret_file`.
Only controllers have the file; the database keeps no tokens. The file holds a secret per line: the
first secret signs new tokens, any of the secrets verifies tokens. To rotate, put the new secret
above the old secret, and remove the old secret when every agent has a new token.

An agent's token is valid for its own host only: a token stolen from one host is useless for others.
A monitor's token is valid for its own name only, and only while the monitor is registered (a row in
the database). Nobody reports under the name of a registered monitor without its token, whatever
roles the caller has.
"""

import base64
import hmac
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.model.errors import Conflict, Forbidden, InvalidInput, Unauthorized, Unavailable
from holdfast.model.host import normalise, same
from holdfast.ports.manager import Caller

if TYPE_CHECKING:
    from holdfast.api.request import Request


AGENT_ROLE, AGENT_PROJECT, AGENT_PREFIX = "agent", "agents", "agent@"
SHORTEST_SECRET = 32


def secrets(path: str) -> Sequence[bytes]:
    """Read the secrets from `agent_secret_file`; InvalidInput describes a problem with the file."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise InvalidInput(f"[auth] agent_secret_file: {path}: {error.strerror}") from error
    tokens = [line.strip() for line in lines if line.strip()]
    if not tokens or any(len(token) < SHORTEST_SECRET for token in tokens):
        raise InvalidInput(
            f"[auth] agent_secret_file: {path}: a secret of {SHORTEST_SECRET} characters or more"
            " per line is wanted, such as `openssl rand -hex 32` makes"
        )
    return tokens


def agent_token(host: str, secret: bytes) -> str:
    """Return the token of a host's agent: `cmp-7:…`."""
    name = normalise(host)
    if not name or ":" in name:
        raise InvalidInput(f"{host!r} is no name of a host")
    sealed = hmac.digest(secret, f"agent {name}".encode(), "sha256")
    return f"{name}:{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"


def host_of(shown: str, path: str | None) -> str:
    """Verify an agent's token and return the host name; Unauthorized if the token is invalid."""
    if not path:
        raise Unauthorized("agents are not let in: [auth] agent_secret_file is not set")
    try:
        known = secrets(path)
    except InvalidInput as error:
        raise Unavailable(error.message) from error
    host = shown.partition(":")[0]
    try:
        good = any(
            hmac.compare_digest(agent_token(host, secret).encode(), shown.encode())
            for secret in known
        )
    except InvalidInput:
        good = False
    if not good:
        raise Unauthorized("this is not the token of an agent: `holdfast agent token` makes one")
    return normalise(host)


def groups_of(host: str, entries: Sequence[str]) -> list[str]:
    """Return the groups of a host by `[auth] agent_groups`, whatever the agent reports.

    >>> groups_of("CMP-7.example.org", ["gpu: cmp-7, x-*", "ssd: cmp-*", "web: cmp-8"])
    ['gpu', 'ssd']
    """
    name, groups = normalise(host), []
    for entry in entries:
        group, _, members = entry.partition(":")
        wanted = [pattern for pattern in map(normalise, members.split(",")) if pattern]
        if any(same(pattern, name) or fnmatchcase(name, pattern) for pattern in wanted):
            groups.append(group.strip())
    return groups


def without_agent_role(credentials: dict[str, Any]) -> dict[str, Any]:
    """Remove the role `agent` from callers that did not use an agent's token.

    A Keystone role of the same name makes nobody an agent, because no host would limit the caller.
    """
    if _by_agent_token(credentials["user_id"], credentials["project_id"]):
        return credentials
    return credentials | {
        "roles": [role for role in credentials["roles"] if role.lower() != AGENT_ROLE]
    }


def own_host(caller: Caller) -> str | None:
    """Return the host of the calling agent; None if the caller is no agent."""
    if not _by_agent_token(caller.user_id, caller.project_id):
        return None
    return caller.user_id.removeprefix(AGENT_PREFIX)


def _by_agent_token(user_id: str, project_id: str) -> bool:
    return user_id.startswith(AGENT_PREFIX) and project_id == AGENT_PROJECT


def check_own(caller: Caller, observer: str, host: str) -> None:
    """Raise Forbidden if an agent reports under another name or for another host."""
    own = own_host(caller)
    if own is None:
        return
    if observer != f"{AGENT_PREFIX}{own}":
        raise Forbidden(
            f"the agent of {own} reports as {AGENT_PREFIX}{own}, not as {observer[:80]}"
        )
    check_host(caller, host)


def check_host(caller: Caller, host: str) -> None:
    """Raise Forbidden if an agent reports or requests data about another host."""
    own = own_host(caller)
    if own is not None and not same(host, own):
        raise Forbidden(f"the agent of {own} cannot speak for {host[:80] or 'no host at all'}")


# Tokens of host monitors.


MONITOR_ROLE, MONITOR_PROJECT, MONITOR_PREFIX = "monitor", "monitors", "monitor@"
#: Valid names of registered monitors; host names match.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def monitor_token(observer: str, secret: bytes) -> str:
    """Return the token of a host monitor: `monitor@ctl-1:…`.

    An agent's token never has the same HMAC, because it signs other text (`agent NAME`).
    """
    if not NAME.fullmatch(observer):
        raise InvalidInput(
            f"observer: {observer[:80]!r} cannot be registered: 1 to 128 letters, digits, '.', '-'"
            " or '_' are wanted, the first of them a letter or a digit"
        )
    sealed = hmac.digest(secret, f"monitor {observer}".encode(), "sha256")
    return f"{MONITOR_PREFIX}{observer}:{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"


def new_token(observer: str, path: str | None) -> str:
    """Make a monitor's token with the newest secret; Conflict if agent_secret_file is not set."""
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
    """Return whether a token is a monitor's rather than an agent's."""
    return shown.startswith(MONITOR_PREFIX)


def observer_of(shown: str, path: str | None) -> str:
    """Verify a monitor's token and return the monitor's name; Unauthorized if invalid."""
    if not path:
        raise Unauthorized("monitors' tokens do not count: [auth] agent_secret_file is not set")
    try:
        known = secrets(path)
    except InvalidInput as error:
        raise Unavailable(error.message) from error
    observer = shown.removeprefix(MONITOR_PREFIX).partition(":")[0]
    try:
        good = any(
            hmac.compare_digest(monitor_token(observer, secret).encode(), shown.encode())
            for secret in known
        )
    except InvalidInput:
        good = False
    if not good:
        raise Unauthorized(
            "this is not the token of a monitor: `holdfast monitor register` makes one"
        )
    return observer


def without_monitor_role(credentials: dict[str, Any]) -> dict[str, Any]:
    """Remove the role `monitor` from callers that did not use a monitor's token.

    A Keystone role of the same name makes nobody a monitor.
    """
    if _by_monitor_token(credentials["user_id"], credentials["project_id"]):
        return credentials
    return credentials | {
        "roles": [role for role in credentials["roles"] if role.lower() != MONITOR_ROLE]
    }


def own_name(caller: Caller) -> str | None:
    """Return the name of the calling monitor; None if the caller is no monitor."""
    if not _by_monitor_token(caller.user_id, caller.project_id):
        return None
    return caller.user_id.removeprefix(MONITOR_PREFIX)


def _by_monitor_token(user_id: str, project_id: str) -> bool:
    return user_id.startswith(MONITOR_PREFIX) and project_id == MONITOR_PROJECT


def check_observer(request: "Request", observer: str) -> None:
    """Raise Forbidden if the caller may not report under the name `observer`.

    A monitor's token is valid for its own name while the name is registered. A registered name
    accepts its own token only.
    """
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
