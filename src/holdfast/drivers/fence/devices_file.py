# SPDX-License-Identifier: Apache-2.0
"""The device file: parses which device cuts which host's power.

    defaults:                 # for all devices that know the setting and do not override it
      user: holdfast
      password_file: /etc/holdfast/bmc/{short}
    hosts:
      cmp-1:
        driver: redfish
        address: 192.0.2.11
      "rack7-*":              # first the name itself, then the first pattern that fits
        driver: agent
        agent: fence_ipmilan
        address: "{short}.bmc.example"
        options: {lanplus: 1}

Texts are used as written: `user: no` is the user "no", `action: off` is off.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from holdfast.drivers.fence.agent import STAND_IN, needs_stand_in, stand_in
from holdfast.drivers.fence.device import HOST, PORT, SHORT, Device, pattern
from holdfast.model.errors import DriverError, NotFound

# Validation: a function per setting, and the rules between settings. Each function returns the
# value as a `Device` stores it, or raises ValueError with a sentence.


_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
#: Agent options that Holdfast sets itself, or that would write down secrets.
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
    """The fencing limits, agents and drivers of this machine."""

    longest_s: float
    agents_dir: str = "/usr/sbin"
    drivers: Set[str] = field(default_factory=lambda: {"redfish", "agent", "none", "sim"})


def read_device(one: Device, settings: Settings) -> None:
    """Check the rules between settings."""
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
    """Return scheme, host and port of a Redfish service; the default scheme is https."""
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
    """Convert true and false to 1 and 0, which agents expect."""
    return {"true": "1", "false": "0"}.get(word.lower(), word)


#: Required and optional settings of Holdfast's own drivers. Other drivers may use all settings.
_COMMON = {"driver", "timeout_s", "action"}
_KNOWS: Mapping[str, tuple[set[str], set[str]]] = {
    "redfish": (
        {"address", "user", "password_file"},
        {*_COMMON, "system", "verify_ca", "allow_http"},
    ),
    "agent": ({"agent"}, {*_COMMON, "address", "user", "password_file", "options", "secret_files"}),
    "none": ({"i_accept_that_servers_may_run_twice"}, {"driver"}),
    "sim": (set(), {*_COMMON, "fault"}),
}
_ALL = {one.name for one in fields(Device)} - {"hosts", "line", "accepted"}


class Wrong(Exception):
    """An error in the device file, with the line number."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


@dataclass(frozen=True)
class Said:
    """A setting as written: line and value."""

    line: int
    value: Any  # text, truth, or a mapping of texts


@dataclass(frozen=True)
class DeviceFile:
    """The devices of the device file."""

    devices: Sequence[Device] = ()

    def find(self, host: str) -> Device:
        """Return the device of a host: by name, else by the first matching pattern; NotFound."""
        named = [one for one in self.devices if not one.many]
        exact = [one for one in named if one.hosts == host]
        found = exact or [one for one in named if one.covers(host)]
        if len(found) > 1:
            names = ", ".join(one.hosts for one in found)
            raise DriverError(
                PORT,
                f"{host} could be any of {names}: give it a device under its own name",
                retryable=False,
            )
        for device in (*found, *(one for one in self.devices if one.many)):
            if device.covers(host):
                return device
        raise NotFound(
            f"no fence is configured for {host}: add it to the file of [fencing] devices_file"
        )

    def names(self) -> Sequence[str]:
        """Return the hosts with a device of their own name."""
        return [one.hosts for one in self.devices if not one.many]


def read(name: str, text: str, settings: Settings) -> DeviceFile:
    """Parse the device file; DriverError names the line and the correction."""
    try:
        return _book(text, settings)
    except Wrong as wrong:
        raise DriverError(PORT, f"{name}:{wrong.line}: {wrong}", retryable=False) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        why = getattr(error, "problem", None) or "it is no YAML"
        raise DriverError(PORT, f"{name}:{line}: {why}", retryable=False) from None


def _book(text: str, settings: Settings) -> DeviceFile:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return DeviceFile()
    parts = dict(_pairs(root, "the file"))
    for part, node in parts.items():
        if part not in ("defaults", "hosts"):
            raise Wrong(_line(node), f"{part}: the file has `defaults` and `hosts`, nothing else")
    defaults = _settings(parts["defaults"]) if "defaults" in parts else {}
    devices = []
    for key, node in _pairs(parts["hosts"], "hosts") if "hosts" in parts else ():
        try:
            hosts = pattern(key)
        except ValueError as error:
            raise Wrong(_line(node), str(error)) from None
        devices.append(_device(hosts, node, defaults, settings))
    _apart(devices)
    return DeviceFile(tuple(devices))


def _device(
    hosts: str, node: yaml.Node, defaults: Mapping[str, Said], settings: Settings
) -> Device:
    own, line = _settings(node), _line(node)
    driver = own.get("driver") or defaults.get("driver")
    if driver is None:
        raise Wrong(line, f"{hosts}: say which driver: {', '.join(sorted(settings.drivers))}")
    if driver.value not in settings.drivers:
        there = ", ".join(sorted(settings.drivers))
        raise Wrong(driver.line, f"{hosts}: no driver {driver.value!r}; there are {there}")
    must, may = _KNOWS.get(driver.value, (set(), _ALL))
    said = {key: value for key, value in defaults.items() if key in must | may} | own
    for key in said.keys() - must - may:
        raise Wrong(said[key].line, f"{hosts}: {key} is no setting of driver {driver.value}")
    for key in sorted(must - said.keys()):
        raise Wrong(line, f"{hosts}: {key} is missing, driver {driver.value} needs it")
    values = {_FIELD.get(key, key): _checked(hosts, key, said[key]) for key in said}
    values.setdefault("timeout_s", settings.longest_s)
    device = Device(hosts=hosts, line=line, **values)
    try:
        read_device(device, settings)
    except ValueError as error:
        raise Wrong(line, f"{hosts}: {error}") from None
    return device


def _apart(devices: Sequence[Device]) -> None:
    """Refuse two hosts on the same outlet: a typing error that would cut the wrong host's power."""
    seen: dict[tuple[object, ...], Device] = {}
    for device in devices:
        if device.many or device.driver in ("none", "sim"):
            continue
        first = seen.setdefault(device.of(device.hosts).switches(), device)
        if first is not device:
            raise Wrong(
                device.line,
                f"{device.hosts} has the same device as {first.hosts} in line {first.line}: to cut"
                " the one's power would cut the other's; correct one of them",
            )


_FIELD = {"i_accept_that_servers_may_run_twice": "accepted"}
_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "timeout_s": seconds,
    "action": one_of("off", "reboot"),
    "verify_ca": truth_or_path,
    "allow_http": truth,
    "i_accept_that_servers_may_run_twice": accepted,
    "agent": agent,
    "options": options,
    "secret_files": secret_files,
    "password_file": path,
    "fault": one_of("fails", "hangs", "lies"),
}


def _checked(hosts: str, key: str, said: Said) -> Any:
    try:
        look: Callable[[Any], Any] = _CHECKS.get(key, text)
        return look(said.value)
    except ValueError as error:
        raise Wrong(said.line, f"{hosts}: {key}: {error}") from None


def _settings(node: yaml.Node) -> dict[str, Said]:
    return {key: Said(_line(value), _value(value)) for key, value in _pairs(node, "a device")}


def _pairs(node: yaml.Node, what: str) -> Iterator[tuple[str, yaml.Node]]:
    """Yield keys and values of a mapping; each key must be unique."""
    if not isinstance(node, yaml.MappingNode):
        raise Wrong(_line(node), f"{what} must be a list of `name: value`")
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise Wrong(_line(key), f"{what}: a name must be a text")
        if key.value in seen:
            raise Wrong(_line(key), f"{key.value} is there twice")
        seen.add(key.value)
        value.start_mark = key.start_mark  # error messages point to the key
        yield key.value, value


def _value(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {key: _value(value) for key, value in _pairs(node, "a setting")}
    if not isinstance(node, yaml.ScalarNode):
        raise Wrong(_line(node), "a list is not possible here")
    return str(node.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
