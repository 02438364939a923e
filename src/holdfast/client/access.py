# SPDX-License-Identifier: Apache-2.0
"""How a client proves who it is: what the caller gave, else what the environment says.

The first that applies wins: the caller's session, token or user; HOLDFAST_TOKEN; HOLDFAST_USER with
HOLDFAST_PASSWORD or HOLDFAST_PASSWORD_FILE; OS_TOKEN; OS_CLOUD, or OS_AUTH_URL and its companions,
through Keystone; nothing, which a `noauth` server accepts.

Who comes by Keystone needs no address: the catalog has it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.client import keystone
from holdfast.client.errors import ClientError, Unauthorized
from holdfast.client.keystone import BY_KEYSTONE, Session

DEFAULT_URL = "http://127.0.0.1:8780"
_TOKEN_TYPES = ("", "token", "v3token", "v2token")


@dataclass(frozen=True)
class Access:
    """A session, or what to put into one of our own."""

    session: Session | None = None
    basic: tuple[str, str] | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    agent: str | None = field(default=None, repr=False)  # the token of an agent or a host monitor

    @property
    def advice(self) -> str:
        """What to do when the server does not accept it; "" if there is nothing to accept."""
        if self.session:
            return BY_KEYSTONE
        if self.agent and self.agent.startswith("monitor@"):
            return "check the token of this monitor (`holdfast monitor register NAME` prints it)"
        if self.agent:
            return "check the token of this host (`holdfast agent token HOST`, on a controller)"
        if self.token:
            return "check the token, it may have expired"
        return "check the user and the password (--user, --password-file)" if self.basic else ""


def url_from(given: str | None, access: Access, env: Mapping[str, str]) -> Callable[[], str]:
    """What tells the server's address, without a slash at the end; it may have to ask Keystone."""
    url = (given or env.get("HOLDFAST_URL") or "").strip().rstrip("/")
    if not url and access.session and keystone.has_catalog(access.session):
        return lambda: keystone.base_url(access.session, env)
    if not url and access.token and env.get("OS_AUTH_URL"):
        token = access.token
        return lambda: keystone.base_url_by_token(token, env)
    return lambda: url or DEFAULT_URL


def find(given: Access, user: str | None, env: Mapping[str, str]) -> Access:
    """What to use, from what the caller gave (`user` may come without a password)."""
    if given.session or given.token:
        return Access(session=given.session) if given.session else Access(token=given.token)
    if given.basic or given.agent:
        return given
    if user:
        return Access(basic=(user, _password(user, env)))
    if token := env.get("HOLDFAST_TOKEN"):
        return Access(token=token)
    if user := env.get("HOLDFAST_USER"):
        return Access(basic=(user, _password(user, env)))
    if (token := env.get("OS_TOKEN")) and env.get("OS_AUTH_TYPE", "") in _TOKEN_TYPES:
        return Access(token=token)
    if keystone.wanted(env):
        return Access(session=keystone.connect(env))
    return Access()


def read_password(path: str) -> str:
    """The first line of a password file."""
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"cannot read the password file {path}: {error}") from error
    if not lines or not lines[0]:
        raise ClientError(f"the first line of the password file {path} is empty")
    return lines[0]


def _password(user: str, env: Mapping[str, str]) -> str:
    if password := env.get("HOLDFAST_PASSWORD"):
        return password
    if path := env.get("HOLDFAST_PASSWORD_FILE"):
        return read_password(path)
    raise Unauthorized(f"there is no password for user {user}")
