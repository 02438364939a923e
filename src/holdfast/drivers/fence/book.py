# SPDX-License-Identifier: Apache-2.0
"""The devices file: which device cuts which host's power. Text in, values out.

    defaults:                 # of all devices that know the setting and do not say otherwise
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

Texts are taken as they are written: `user: no` is the user "no", `action: off` is off.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import yaml

from holdfast.drivers.fence import check
from holdfast.drivers.fence.check import Settings
from holdfast.drivers.fence.device import PORT, Device, pattern
from holdfast.model.errors import DriverError, NotFound

#: What each of our own drivers must be told, and what it may be told. Others may use all.
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
    """What is wrong with the file, and in which line."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


@dataclass(frozen=True)
class Said:
    """One setting as it was written: where, and what."""

    line: int
    value: Any  # text, truth, or a mapping of texts


@dataclass(frozen=True)
class Book:
    devices: Sequence[Device] = ()

    def find(self, host: str) -> Device:
        """The device of that host: by its name, else by the first pattern; NotFound."""
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
        """The hosts that are named one by one."""
        return [one.hosts for one in self.devices if not one.many]


def read(name: str, text: str, settings: Settings) -> Book:
    """The book in that text; DriverError says the line and what to write instead."""
    try:
        return _book(text, settings)
    except Wrong as wrong:
        raise DriverError(PORT, f"{name}:{wrong.line}: {wrong}", retryable=False) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        why = getattr(error, "problem", None) or "it is no YAML"
        raise DriverError(PORT, f"{name}:{line}: {why}", retryable=False) from None


def _book(text: str, settings: Settings) -> Book:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        return Book()
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
    return Book(tuple(devices))


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
        check.device(device, settings)
    except ValueError as error:
        raise Wrong(line, f"{hosts}: {error}") from None
    return device


def _apart(devices: Sequence[Device]) -> None:
    """Two hosts on one outlet are a slip of the pen that would cut the wrong one's power."""
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
    "timeout_s": check.seconds,
    "action": check.one_of("off", "reboot"),
    "verify_ca": check.truth_or_path,
    "allow_http": check.truth,
    "i_accept_that_servers_may_run_twice": check.accepted,
    "agent": check.agent,
    "options": check.options,
    "secret_files": check.secret_files,
    "password_file": check.path,
    "fault": check.one_of("fails", "hangs", "lies"),
}


def _checked(hosts: str, key: str, said: Said) -> Any:
    try:
        look: Callable[[Any], Any] = _CHECKS.get(key, check.text)
        return look(said.value)
    except ValueError as error:
        raise Wrong(said.line, f"{hosts}: {key}: {error}") from None


def _settings(node: yaml.Node) -> dict[str, Said]:
    return {key: Said(_line(value), _value(value)) for key, value in _pairs(node, "a device")}


def _pairs(node: yaml.Node, what: str) -> Iterator[tuple[str, yaml.Node]]:
    """Keys and values of a mapping, where each key comes once."""
    if not isinstance(node, yaml.MappingNode):
        raise Wrong(_line(node), f"{what} must be a list of `name: value`")
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise Wrong(_line(key), f"{what}: a name must be a text")
        if key.value in seen:
            raise Wrong(_line(key), f"{key.value} is there twice")
        seen.add(key.value)
        value.start_mark = key.start_mark  # people look for the name
        yield key.value, value


def _value(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {key: _value(value) for key, value in _pairs(node, "a setting")}
    if not isinstance(node, yaml.ScalarNode):
        raise Wrong(_line(node), "a list is not possible here")
    return str(node.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
