# SPDX-License-Identifier: Apache-2.0
"""What the devices file may say: one function per setting, and the rules between settings.

Each gives the value as a `Device` keeps it, or raises ValueError with a sentence.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.drivers.fence.agent import STAND_IN, needs_stand_in, stand_in
from holdfast.drivers.fence.device import HOST, SHORT, Device

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
#: Options of agents that are ours to give, or that would write down what is secret.
_OURS = {
    *("action", "method", "ip", "ipaddr", "login", "username", "nodename", "verbose"),
    *("verbose_level", "debug", "debug_file", "password_script", "passwd_script"),
    "snmp_priv_passwd_script",
}
_SECRET = re.compile(r"passw|secret|token|api_?key|community|_key$|_kg$|^kg$")
_ADDRESS = "address must be [https://]host[:port], without user name, password and path"
_OPTION = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class Settings:
    """What there is on this machine."""

    longest_s: float
    agents_dir: str = "/usr/sbin"
    drivers: Set[str] = field(default_factory=lambda: {"redfish", "agent", "none", "sim"})


def device(one: Device, settings: Settings) -> None:
    """The rules between settings."""
    if not 0 < one.timeout_s <= settings.longest_s:
        raise ValueError(
            f"timeout_s must be between 0 and {settings.longest_s:g}: [fencing] call_timeout_s is"
            " 2 seconds more than the most"
        )
    if one.many and one.driver not in ("none", "sim") and not one.tells_hosts_apart():
        raise ValueError(
            f"a pattern needs {SHORT} or {HOST} in its address, system or options; as it is, all"
            " of its hosts would have one device"
        )
    for path in (one.password_file, *one.secret_files.values()):
        if path and "{" not in path and not os.access(path, os.R_OK):
            raise ValueError(f"{path} cannot be read")
    if one.driver == "redfish":
        base_url(one.address, one.allow_http)
    if one.driver == "agent":
        _installed(one, settings)


def _installed(one: Device, settings: Settings) -> None:
    if not os.access(Path(settings.agents_dir) / one.agent, os.X_OK):
        raise ValueError(
            f"there is no {one.agent} in {settings.agents_dir}: install fence-agents, or set"
            " [fencing] agents_dir"
        )
    if needs_stand_in(one) and not stand_in():
        raise ValueError(
            f"{STAND_IN} is not beside {sys.executable}, and without it {one.agent} would show the"
            " password: install Holdfast with its programs"
        )


def base_url(address: str, allow_http: bool) -> str:
    """Scheme, host and port of a Redfish service; https unless something else is said."""
    url = address if "://" in address else f"https://{address}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(_ADDRESS) from None
    more = parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc
    if not host or more or not url.isascii() or any(map(str.isspace, url)):
        raise ValueError(_ADDRESS)
    if parts.scheme == "http" and not allow_http:
        raise ValueError(
            "address: http shows the password to whoever listens; use https, or allow_http: true"
        )
    if parts.scheme not in ("https", "http"):
        raise ValueError(_ADDRESS)
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + (f":{port}" if port else "")


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text")
    if not value.isprintable():
        raise ValueError("must be one line of printable text")
    return value.strip()


def path(value: Any) -> str:
    name = text(value)
    if not os.path.isabs(name):
        raise ValueError("must be a path that begins with /")
    return name


def truth(value: Any) -> bool:
    word = text(value).lower()
    if word not in _TRUE | _FALSE:
        raise ValueError("must be true or false")
    return word in _TRUE


def truth_or_path(value: Any) -> bool | str:
    name = text(value)
    if not name.startswith("/"):
        return truth(value)
    if not os.access(name, os.R_OK):
        raise ValueError(f"{name} cannot be read")
    return name


def accepted(value: Any) -> bool:
    if not truth(value):
        raise ValueError("driver none is possible only with true here; else give a device")
    return True


def seconds(value: Any) -> float:
    try:
        return float(text(value))
    except ValueError:
        raise ValueError("must be a number of seconds") from None


def one_of(*words: str) -> Callable[[Any], str]:
    def look(value: Any) -> str:
        word = text(value).lower()
        if word not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return word

    return look


def agent(value: Any) -> str:
    name = text(value)
    if not re.fullmatch(r"fence_[a-z0-9_]+", name):
        raise ValueError("must be the name of a fence agent: fence_ipmilan, fence_apc, …")
    return name


def options(value: Any) -> Mapping[str, str]:
    found = _texts(value)
    for key in found:
        if key in _OURS:
            raise ValueError(f"{key} is given by Holdfast or would tell secrets: leave it out")
        if _SECRET.search(key):
            raise ValueError(f"{key} is a secret: put it in a file, and that in secret_files")
    return {key: _switch(text_) for key, text_ in found.items()}


def secret_files(value: Any) -> Mapping[str, str]:
    found = _texts(value)
    return {key: path(name) for key, name in found.items()}


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must be a list of `name: value`")
    for key in value:
        if not _OPTION.fullmatch(key):
            raise ValueError(f"{key!r} is no option of an agent")
    return {key: text(one) for key, one in value.items()}


def _switch(word: str) -> str:
    """Agents know 1 and 0, YAML's people write true and false."""
    return {"true": "1", "false": "0"}.get(word.lower(), word)
