# SPDX-License-Identifier: Apache-2.0
"""Reads the configuration section [libvirt] and the hosts file."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.model.errors import DriverError, InvalidDocument
from holdfast.model.host import normalise, same
from holdfast.runtime.documents import INVENTORY, Node, Reading, Scalar

PORT = "libvirt"
_KNOWN = ("uri", "rack", "zone")


@dataclass(frozen=True)
class Host:
    name: str
    uri: str
    rack: str = ""
    zone: str = ""


@dataclass(frozen=True)
class Settings:
    hosts: tuple[Host, ...]
    state: str
    shared: tuple[str, ...] = ()
    ram_ratio: float = 1.0
    call_timeout_s: float = 10.0
    action_timeout_s: float = 120.0

    @property
    def poll_timeout_s(self) -> float:
        """Seconds that a host may take to answer a poll; others do not wait any longer."""
        return min(3.0, self.call_timeout_s / 3)


def load(conf: Any) -> Settings:
    """Read the settings; raises DriverError that names the wrong option and the remedy."""
    own = conf.libvirt
    hosts = [Host(normalise(name), uri.strip()) for name, uri in own.hosts.items()]
    if own.hosts_file:
        hosts += _of_file(own.hosts_file)
    if not hosts:
        raise wrong("there are no hosts: set [libvirt] hosts or hosts_file")
    _check(hosts)
    return Settings(
        hosts=tuple(sorted(hosts, key=lambda host: host.name)),
        state=own.state,
        shared=tuple(own.shared),
        ram_ratio=own.ram_ratio,
        call_timeout_s=conf.cloud.call_timeout_s,
        action_timeout_s=own.action_timeout_s,
    )


def wrong(message: str) -> DriverError:
    return DriverError(PORT, message, retryable=False)


def _check(hosts: Sequence[Host]) -> None:
    for number, host in enumerate(hosts):
        if not host.name or ":" not in host.uri:
            raise wrong(
                f"host {host.name!r}: {host.uri!r} is no URI, as qemu+ssh://root@kvm-1/system"
            )
        for other in hosts[:number]:
            if same(host.name, other.name):
                raise wrong(f"host {host.name} is there twice: give each host one name and URI")
            if host.uri == other.uri:
                raise wrong(
                    f"{host.name} and {other.name} have the same URI {host.uri}: which is it?"
                )


def _of_file(path: str) -> list[Host]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise wrong(f"[libvirt] hosts_file {path} cannot be read: {error.strerror}") from error
    reading = _Reading()
    because = functools.partial(InvalidDocument.because, f"[libvirt] hosts_file {path}")
    try:
        return reading.whole(data, reading.hosts, because, limits=INVENTORY)
    except InvalidDocument as error:
        raise wrong(error.message) from error


class _Reading(Reading):
    """Reader of the hosts file."""

    def hosts(self, tree: Node | None) -> list[Host] | None:
        write = "write a map: `kvm-1: {uri: …}`"
        root = self.root(tree, write, write)
        pairs = self.pairs(root, "{kvm-1: …}", "host") if root else ()
        return [self._host(key.text, node) for key, node in pairs]

    def _host(self, name: str, node: Node) -> Host:
        if isinstance(node, Scalar):
            return Host(normalise(name), self.word(node, "uri"))
        fields = self.fields(node, _KNOWN, needed=("uri",))
        return Host(normalise(name), *(self.word(fields.get(key), key) for key in _KNOWN))
