# SPDX-License-Identifier: Apache-2.0
"""The devices file: parses which device cuts which host's power.

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

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.drivers.fence.agent import STAND_IN, needs_stand_in, stand_in
from holdfast.drivers.fence.device import HOST, PORT, SHORT, Device, pattern
from holdfast.model.errors import DriverError, InvalidDocument, NotFound
from holdfast.runtime import documents
from holdfast.runtime.documents import INVENTORY, Map, Node, Reading, Scalar, either, plain

# Validation: a function per setting, and the rules between settings. Each function returns the
# value as a `Device` stores it, or raises ValueError with a sentence.


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


def read_device(device: Device, settings: Settings) -> None:
    """Check the rules between settings."""
    if not 0 < device.timeout_s <= settings.longest_s:
        raise ValueError(
            f"timeout_s must be between 0 and {settings.longest_s:g}: [fencing] call_timeout_s is"
            " 2 seconds more than the most"
        )
    if device.many and device.driver not in ("none", "sim") and not device.tells_hosts_apart():
        raise ValueError(
            f"a pattern needs {SHORT} or {HOST} in its address, system or options; as it is, all"
            " of its hosts would have one device"
        )
    for path in (device.password_file, *device.secret_files.values()):
        if path and "{" not in path and not os.access(path, os.R_OK):
            raise ValueError(f"{path} cannot be read")
    if device.driver == "redfish":
        base_url(device.address, device.allow_http)
    if device.driver == "agent":
        _installed(device, settings)


def _installed(device: Device, settings: Settings) -> None:
    if not os.access(Path(settings.agents_dir) / device.agent, os.X_OK):
        raise ValueError(
            f"there is no {device.agent} in {settings.agents_dir}: install fence-agents, or set"
            " [fencing] agents_dir"
        )
    if needs_stand_in(device) and not stand_in():
        raise ValueError(
            f"{STAND_IN} is not beside {sys.executable}, and without it {device.agent} would show"
            " the password: install Holdfast with its programs"
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
    flag = documents.truth(text(value))
    if flag is None:
        raise ValueError("must be true or false")
    return flag


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
    def check(value: Any) -> str:
        choice = text(value).lower()
        if choice not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return choice

    return check


def agent(value: Any) -> str:
    name = text(value)
    if not re.fullmatch(r"fence_[a-z0-9_]+", name):
        raise ValueError("must be the name of a fence agent: fence_ipmilan, fence_apc, …")
    return name


def options(value: Any) -> Mapping[str, str]:
    texts = _texts(value)
    for key in texts:
        if key in _OURS:
            raise ValueError(f"{key} is given by Holdfast or would tell secrets: leave it out")
        if _SECRET.search(key):
            raise ValueError(f"{key} is a secret: put it in a file, and that in secret_files")
    return {key: _switch(text_) for key, text_ in texts.items()}


def secret_files(value: Any) -> Mapping[str, str]:
    texts = _texts(value)
    return {key: path(name) for key, name in texts.items()}


def _texts(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must be a list of `name: value`")
    for key in value:
        if not _OPTION.fullmatch(key):
            raise ValueError(f"{key!r} is no option of an agent")
    return {key: text(item) for key, item in value.items()}


def _switch(value: str) -> str:
    """Convert true and false to 1 and 0, which agents expect."""
    return {"true": "1", "false": "0"}.get(value.lower(), value)


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
_ALL = {device_field.name for device_field in fields(Device)} - {"hosts", "line", "accepted"}


class BadDevices(InvalidDocument):
    """A devices file is invalid; `problems` lists every problem with its line."""

    code = "holdfast.fences.invalid"
    title = "The devices file cannot be used"


@dataclass(frozen=True)
class DeviceFile:
    """The devices of the devices file."""

    devices: Sequence[Device] = ()

    def find(self, host: str) -> Device:
        """Return the device of a host: by name, else by the first matching pattern; NotFound."""
        named = [device for device in self.devices if not device.many]
        exact = [device for device in named if device.hosts == host]
        devices = exact or [device for device in named if device.covers(host)]
        if len(devices) > 1:
            names = ", ".join(device.hosts for device in devices)
            raise DriverError(
                PORT,
                f"{host} could be any of {names}: give it a device under its own name",
                retryable=False,
            )
        for device in (*devices, *(device for device in self.devices if device.many)):
            if device.covers(host):
                return device
        raise NotFound(
            f"no fence is configured for {host}: add it to the file of [fencing] devices_file"
        )

    def names(self) -> Sequence[str]:
        """Return the hosts with a device of their own name."""
        return [device.hosts for device in self.devices if not device.many]


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


def parse(data: str | bytes, source: str, settings: Settings) -> DeviceFile:
    """Parse a devices file; raise BadDevices with all problems."""
    reading = _Reading(settings)
    because = functools.partial(BadDevices.because, source)
    return reading.whole(data, reading.devices, because, quick=True, limits=INVENTORY)


#: Settings as written, each with the line of its key.
Written = dict[str, tuple[int, Node]]


class _Reading(Reading):
    """Reader of a devices file."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    def devices(self, tree: Node | None) -> DeviceFile | None:
        root = self.root(tree, "", "a devices file begins with `defaults:` or `hosts:`")
        parts = self.fields(root, ("defaults", "hosts")) if root else {}
        defaults = self._written(parts["defaults"]) if "defaults" in parts else {}
        hosts = self.pairs(parts["hosts"], "{cmp-1: …}", "host") if "hosts" in parts else ()
        parsed = [self._device(key, node, defaults) for key, node in hosts]
        devices = tuple(device for device in parsed if device is not None)
        self._check_outlets(devices)
        return DeviceFile(devices)

    def _written(self, node: Node) -> Written:
        pairs = self.pairs(node, "{driver: …}", "setting")
        return {key.text: (key.line, value) for key, value in pairs}

    def _device(self, key: Scalar, node: Node, defaults: Written) -> Device | None:
        before, own = len(self.problems), self._written(node)
        hosts = self.attempt(key.line, "", pattern, key.text) or key.text
        settings = self._known_settings(hosts, key.line, own, defaults)
        values = {
            _FIELD.get(name, name): self._setting(hosts, name, settings[name]) for name in settings
        }
        if len(self.problems) > before:
            return None
        values.setdefault("timeout_s", self._settings.longest_s)
        device = Device(hosts=hosts, line=key.line, **values)
        check = functools.partial(read_device, settings=self._settings)
        self.attempt(key.line, f"{hosts}: ", check, device)
        return device

    def _known_settings(self, hosts: str, line: int, own: Written, defaults: Written) -> Written:
        """Return the settings of a device and its defaults, if its driver knows all of them."""
        drivers = sorted(self._settings.drivers)
        _, node = own.get("driver") or defaults.get("driver") or (0, None)
        if node is None:
            self.say(line, f"{hosts}: `driver` is missing: write {either(drivers)}")
        driver = self.choice(node, drivers, "driver")
        if not driver:
            return {}
        must, may = _KNOWS.get(driver, (set(), _ALL))
        settings = {name: setting for name, setting in defaults.items() if name in must | may} | own
        for name in settings.keys() - must - may:
            self.say(settings[name][0], f"{hosts}: {name} is no setting of driver {driver}")
        for name in sorted(must - settings.keys()):
            self.say(line, f"{hosts}: {name} is missing, driver {driver} needs it")
        return {name: setting for name, setting in settings.items() if name in must | may}

    def _setting(self, hosts: str, name: str, written: tuple[int, Node]) -> Any:
        line, node = written
        check: Callable[[Any], Any] = _CHECKS.get(name, text)
        if isinstance(node, Map):
            value = {key.text: plain(option) for key, option in self.pairs(node, "", "option")}
            return self.attempt(line, f"{hosts}: {name}: ", check, value)
        return self.attempt(line, f"{hosts}: {name}: ", check, plain(node))

    def _check_outlets(self, devices: Sequence[Device]) -> None:
        """Refuse two hosts on the same outlet: the typing error would fence the wrong host."""
        first_uses: dict[tuple[object, ...], Device] = {}
        for device in devices:
            if device.many or device.driver in ("none", "sim"):
                continue
            first = first_uses.setdefault(device.of(device.hosts).switches(), device)
            if first is not device:
                self.say(
                    device.line,
                    f"{device.hosts} has the same device as {first.hosts} in line {first.line}: to"
                    " cut the one's power would cut the other's; correct one of them",
                )
