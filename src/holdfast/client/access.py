# SPDX-License-Identifier: Apache-2.0
"""How a client proves who it is: what the caller gave, else what the environment says.

The first that applies wins: the caller's session, token or user; HOLDFAST_TOKEN; HOLDFAST_USER with
HOLDFAST_PASSWORD or HOLDFAST_PASSWORD_FILE; OS_TOKEN; OS_AUTH_URL and its companions, through
keystoneauth1 (imported only then); nothing, which a `noauth` server accepts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.client.errors import ClientError, Unauthorized

DEFAULT_URL = "http://127.0.0.1:8780"
BY_KEYSTONE = "check the credentials of the session (the OS_* variables)"


class Session(Protocol):
    """What carries requests: a requests session, a keystoneauth1 session or adapter."""

    def request(self, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True)
class Access:
    """A session, or what to put into one of our own."""

    session: Session | None = None
    basic: tuple[str, str] | None = None
    token: str | None = None

    @property
    def advice(self) -> str:
        """What to do when the server does not accept it; "" if there is nothing to accept."""
        if self.session:
            return BY_KEYSTONE
        if self.token:
            return "check the token, it may have expired"
        return "check the user and the password (--user, --password-file)" if self.basic else ""


def url_from(given: str | None, env: Mapping[str, str]) -> str:
    """The server's address without a slash at the end."""
    return (given or env.get("HOLDFAST_URL") or DEFAULT_URL).strip().rstrip("/")


def find(given: Access, user: str | None, env: Mapping[str, str]) -> Access:
    """What to use, from what the caller gave (`user` may come without a password)."""
    if given.session or given.token:
        return Access(session=given.session) if given.session else Access(token=given.token)
    if given.basic:
        return given
    if user:
        return Access(basic=(user, _password(user, env)))
    if token := env.get("HOLDFAST_TOKEN"):
        return Access(token=token)
    if user := env.get("HOLDFAST_USER"):
        return Access(basic=(user, _password(user, env)))
    if token := env.get("OS_TOKEN"):
        return Access(token=token)
    if env.get("OS_AUTH_URL"):
        return Access(session=keystone_session(env))
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


def keystone_session(env: Mapping[str, str]) -> Session:
    """A keystoneauth1 session from OS_* variables: a password or an application credential."""
    from keystoneauth1 import exceptions, loading
    from keystoneauth1 import session as keystone

    by_credential = "OS_APPLICATION_CREDENTIAL_ID" in env or (
        "OS_APPLICATION_CREDENTIAL_NAME" in env
    )
    if not by_credential and not env.get("OS_AUTH_TYPE") and not env.get("OS_PASSWORD"):
        raise Unauthorized("OS_AUTH_URL is set, but OS_PASSWORD is not")
    fallback = "v3applicationcredential" if by_credential else "password"
    try:
        loader: Any = loading.get_plugin_loader(env.get("OS_AUTH_TYPE") or fallback)
        auth = loader.load_from_options_getter(
            lambda option: env.get("OS_" + option.dest.upper()) or None
        )
    except exceptions.ClientException as error:
        raise Unauthorized(f"the OS_* variables do not suffice: {error}") from error
    insecure = env.get("OS_INSECURE", "").lower() in ("1", "true", "yes")
    verify: bool | str = False if insecure else env.get("OS_CACERT") or True
    session: Session = keystone.Session(auth=auth, verify=verify)
    return session
