# SPDX-License-Identifier: Apache-2.0
"""Credentials and URL of a client, from arguments or from the environment.

The first of these wins: the caller's session, token or user; HOLDFAST_TOKEN; HOLDFAST_USER with
HOLDFAST_PASSWORD or HOLDFAST_PASSWORD_FILE; OS_TOKEN; OS_CLOUD, or OS_AUTH_URL and the other OS_*
variables, through Keystone; no credentials, which a `noauth` server accepts.

With Keystone the client reads the URL of Holdfast from the catalog. The module imports
keystoneauth1 only when needed, and openstacksdk only for a cloud of clouds.yaml.

    session = connect(os.environ)
    base_url(session, os.environ)       # 'https://cloud.example.org:8780'
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.client.errors import ClientError, NotReachable, Unauthorized

#: Service type of the catalog entry that clients look for, and the suffix of its URL.
SERVICE = "reservation"
PREFIX = "/reservation/v1"
BY_KEYSTONE = "check the credentials of the session (the OS_* variables)"
TIMEOUT_S = 30
_BY_CREDENTIAL = "v3applicationcredential"
_SCOPE = ("project_", "tenant_", "domain_", "system_", "trust_", "default_")


class Session(Protocol):
    """An HTTP session: a requests session, a keystoneauth1 session or adapter."""

    def request(self, *args: Any, **kwargs: Any) -> Any: ...


def wanted(env: Mapping[str, str]) -> bool:
    """Return whether the environment names a Keystone."""
    return bool(env.get("OS_CLOUD") or env.get("OS_AUTH_URL"))


def connect(env: Mapping[str, str]) -> Session:
    """Build a keystoneauth1 adapter from the environment; sends nothing yet."""
    from keystoneauth1 import adapter

    if env.get("OS_CLOUD"):
        session, region, interface = _from_file(env)
    else:
        session, region, interface = _from_variables(env), *_place(env)
    made: Session = adapter.Adapter(
        session, service_type=SERVICE, region_name=region, interface=interface
    )
    return made


def _place(env: Mapping[str, str]) -> tuple[str | None, str]:
    """Return region and interface to look for in the catalog."""
    interface = env.get("OS_INTERFACE") or env.get("OS_ENDPOINT_TYPE") or "public"
    return env.get("OS_REGION_NAME") or None, interface.removesuffix("URL")


def _from_variables(env: Mapping[str, str]) -> Any:
    """Build a session from OS_* variables: password, application credential, or OS_AUTH_TYPE."""
    from keystoneauth1 import exceptions, loading
    from keystoneauth1 import session as keystone

    kind = env.get("OS_AUTH_TYPE")
    credential = any(env.get(f"OS_APPLICATION_CREDENTIAL_{part}") for part in ("ID", "NAME"))
    if not kind and not credential and not env.get("OS_PASSWORD"):
        raise Unauthorized("OS_AUTH_URL is set, but OS_PASSWORD is not")
    kind = kind or (_BY_CREDENTIAL if credential else "password")

    def value(option: Any) -> str | None:
        # an application credential implies its project; Keystone refuses an explicit scope
        if kind == _BY_CREDENTIAL and option.dest.startswith(_SCOPE):
            return None
        return env.get("OS_" + option.dest.upper()) or None

    try:
        loader: Any = loading.get_plugin_loader(kind)
        auth = loader.load_from_options_getter(value)
    except exceptions.ClientException as error:
        raise Unauthorized(f"the OS_* variables do not suffice: {error}") from error
    return keystone.Session(auth=auth, verify=_verify(env), timeout=TIMEOUT_S)


def _verify(env: Mapping[str, str]) -> bool | str:
    """Return the CA file, True for the system CAs, or False for no verification."""
    insecure = env.get("OS_INSECURE", "").lower() in ("1", "true", "yes")
    return False if insecure else env.get("OS_CACERT") or True


def _from_file(env: Mapping[str, str]) -> tuple[Any, str | None, str]:
    """Build a session from the clouds.yaml entry named by OS_CLOUD."""
    name = env["OS_CLOUD"]
    from keystoneauth1.exceptions import ClientException
    from openstack import config, exceptions

    file = env.get("OS_CLIENT_CONFIG_FILE")
    more: dict[str, Any] = {}
    if env.get("OS_REGION_NAME"):
        more["region_name"] = env["OS_REGION_NAME"]
    try:
        files = config.OpenStackConfig(load_envvars=False, config_files=[file] if file else None)
        cloud: Any = files.get_one(cloud=name, **more)
        session = cloud.get_session()
    except (exceptions.SDKException, ClientException) as error:
        raise ClientError(f"cloud {name} of clouds.yaml cannot be used: {error}") from error
    session.timeout = session.timeout or TIMEOUT_S
    interface = env.get("OS_INTERFACE") or cloud.get_interface(SERVICE) or "public"
    return session, cloud.get_region_name(SERVICE), interface


def has_catalog(session: object) -> bool:
    """Return whether a session is a keystoneauth1 session, which has a catalog."""
    return hasattr(session, "get_endpoint")


def base_url(session: Any, env: Mapping[str, str]) -> str:
    """Return Holdfast's base URL from the catalog, without the prefix of a contract."""
    from keystoneauth1 import exceptions

    region, interface = _place(env)
    region = getattr(session, "region_name", None) or region
    interface = getattr(session, "interface", None) or interface
    try:
        endpoint = session.get_endpoint(
            service_type=SERVICE, region_name=region, interface=interface
        )
    except exceptions.EmptyCatalog as error:
        raise Unauthorized(
            "Keystone gives this login no catalog: name a project (OS_PROJECT_NAME or _ID)"
        ) from error
    except exceptions.CatalogException:
        endpoint = None
    except exceptions.ClientException as error:
        raise translated(error) from error
    return _holdfast(endpoint, region, interface)


def base_url_by_token(token: str, env: Mapping[str, str]) -> str:
    """Return Holdfast's base URL for an existing token, from the token's catalog in Keystone."""
    from keystoneauth1 import exceptions, token_endpoint
    from keystoneauth1 import session as keystone
    from keystoneauth1.access.service_catalog import ServiceCatalogV3

    root = env["OS_AUTH_URL"].rstrip("/")
    root = root if root.endswith("/v3") else f"{root}/v3"
    auth = token_endpoint.Token(root, token)
    session = keystone.Session(auth, verify=_verify(env), timeout=TIMEOUT_S)
    region, interface = _place(env)
    try:
        answer = session.get(f"{root}/auth/catalog", headers={"Accept": "application/json"})
        catalog = ServiceCatalogV3(answer.json()["catalog"])
        endpoint = catalog.url_for(service_type=SERVICE, region_name=region, interface=interface)
    except exceptions.CatalogException:
        endpoint = None
    except exceptions.ClientException as error:
        raise translated(error) from error
    except (ValueError, KeyError) as error:
        raise NotReachable(f"{root} does not answer like a Keystone: set OS_AUTH_URL") from error
    return _holdfast(endpoint, region, interface)


def _holdfast(endpoint: str | None, region: str | None, interface: str) -> str:
    where = f"in region {region}" if region else "in any region"
    if not endpoint:
        raise ClientError(
            f"the catalog has no {SERVICE} service {where} (interface {interface}): an operator"
            " adds it with `holdfast keystone register`; or set HOLDFAST_URL"
        )
    endpoint = endpoint.rstrip("/")
    if not endpoint.endswith(PREFIX):
        raise ClientError(
            f"the {SERVICE} service of the catalog, {endpoint}, is not a Holdfast: its address does"
            f" not end in {PREFIX}; an operator corrects it with `holdfast keystone register`;"
            " or set HOLDFAST_URL"
        )
    return endpoint.removesuffix(PREFIX)


def translated(error: Exception) -> ClientError:
    """Convert a keystoneauth1 error, raised before any request to Holdfast, into a ClientError."""
    from keystoneauth1 import exceptions as theirs

    away = (theirs.ConnectionError, theirs.DiscoveryFailure, theirs.HttpServerError)
    if isinstance(error, (*away, theirs.RequestTimeout)):
        timed_out = isinstance(error, theirs.ConnectTimeout)
        reason = str(error).partition(": HTTP")[0]  # the rest repeats the message of requests
        if any(isinstance(each, theirs.SSLError) for each in (error, error.__context__)):
            return NotReachable(f"cannot trust Keystone: {reason}: set OS_CACERT to its CA file")
        sentence = f"cannot reach Keystone: {reason}: is it running? check OS_AUTH_URL"
        return NotReachable(sentence, timed_out=timed_out)
    refused = Unauthorized(f"Keystone did not let us in: {error}")
    refused.advise(BY_KEYSTONE)
    return refused


DEFAULT_URL = "http://127.0.0.1:8780"
_TOKEN_TYPES = ("", "token", "v3token", "v2token")


@dataclass(frozen=True)
class Access:
    """Credentials of a client: the caller's session, or credentials for a new session."""

    session: Session | None = None
    basic: tuple[str, str] | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    agent: str | None = field(default=None, repr=False)  # the token of an agent or a host monitor

    @property
    def advice(self) -> str:
        """Return advice for a refused login; "" without credentials."""
        if self.session:
            return BY_KEYSTONE
        if self.agent and self.agent.startswith("monitor@"):
            return "check the token of this monitor (`holdfast monitor register NAME` prints it)"
        if self.agent:
            return "check the token of this host (`holdfast agent token HOST`, on a controller)"
        if self.token:
            return "check the token, it may have expired"
        return "check the user and the password (--user, --password-file)" if self.basic else ""


def url_from(argument: str | None, access: Access, env: Mapping[str, str]) -> Callable[[], str]:
    """Return a function for the server's base URL, without a final slash; may ask Keystone."""
    url = (argument or env.get("HOLDFAST_URL") or "").strip().rstrip("/")
    if not url and access.session and has_catalog(access.session):
        return lambda: base_url(access.session, env)
    if not url and access.token and env.get("OS_AUTH_URL"):
        token = access.token
        return lambda: base_url_by_token(token, env)
    return lambda: url or DEFAULT_URL


def find(access: Access, user: str | None, env: Mapping[str, str]) -> Access:
    """Choose the credentials: the caller's, else the environment's.

    `user` may come without a password.
    """
    if access.session or access.token:
        return Access(session=access.session) if access.session else Access(token=access.token)
    if access.basic or access.agent:
        return access
    if user:
        return Access(basic=(user, _password(user, env)))
    if token := env.get("HOLDFAST_TOKEN"):
        return Access(token=token)
    if user := env.get("HOLDFAST_USER"):
        return Access(basic=(user, _password(user, env)))
    if (token := env.get("OS_TOKEN")) and env.get("OS_AUTH_TYPE", "") in _TOKEN_TYPES:
        return Access(token=token)
    if wanted(env):
        return Access(session=connect(env))
    return Access()


def read_password(path: str) -> str:
    """Read the first line of a password file."""
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
