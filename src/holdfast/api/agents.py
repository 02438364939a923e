# SPDX-License-Identifier: Apache-2.0
"""Agents on compute hosts, and the token with which each speaks for its own host and no other.

The token is the host's name under a secret that only controllers have; nothing is kept of it. The
secret's file has one per line: tokens are made by the first and believed by any, so that a new
secret is put above the old one, and the old one taken away once every agent has its new token.
Stolen from one host, a token says nothing about another.
"""

import base64
import hmac
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from holdfast.model.caller import Caller
from holdfast.model.errors import Forbidden, InvalidInput, Unauthorized, Unavailable
from holdfast.model.host import normalise, same

ROLE, PROJECT, PREFIX = "agent", "agents", "agent@"
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


def token(host: str, secret: bytes) -> str:
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
        good = any(hmac.compare_digest(token(host, one).encode(), shown.encode()) for one in known)
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


def without_role(credentials: dict[str, Any]) -> dict[str, Any]:
    """Of whoever did not come by a token of ours: what other people call a role of theirs makes
    nobody an agent, for no host is there that it would be held to."""
    if _by_token(credentials["user_id"], credentials["project_id"]):
        return credentials
    return credentials | {"roles": [one for one in credentials["roles"] if one.lower() != ROLE]}


def own_host(caller: Caller) -> str | None:
    """The one host that the caller may speak for; None: it is no agent."""
    if not _by_token(caller.user_id, caller.project_id):
        return None
    return caller.user_id.removeprefix(PREFIX)


def _by_token(user_id: str, project_id: str) -> bool:
    return user_id.startswith(PREFIX) and project_id == PROJECT


def check_own(caller: Caller, observer: str, host: str) -> None:
    """Forbidden if an agent speaks as somebody else, or of another host than its own."""
    own = own_host(caller)
    if own is None:
        return
    if observer != f"{PREFIX}{own}":
        raise Forbidden(f"the agent of {own} reports as {PREFIX}{own}, not as {observer[:80]}")
    check_host(caller, host)


def check_host(caller: Caller, host: str) -> None:
    """Forbidden if an agent speaks of another host than its own, or asks about one."""
    own = own_host(caller)
    if own is not None and not same(host, own):
        raise Forbidden(f"the agent of {own} cannot speak for {host[:80] or 'no host at all'}")
