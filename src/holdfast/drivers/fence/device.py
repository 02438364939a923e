# SPDX-License-Identifier: Apache-2.0
"""A fence device as described by the devices file, and validation of host names.

A device holds no secrets, only the names of the files with the secrets: printing, logging or
comparing a device reveals none.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from holdfast.model.errors import DriverError, InvalidInput
from holdfast.model.host import normalise, same, short

PORT = "fence"
#: A host name by RFC 1123: it has no character with a meaning in a shell, a path or a URL.
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_PATTERN = re.compile(r"[a-z0-9.*?-]+")
#: Placeholders for the host's name and for its first label.
HOST, SHORT = "{host}", "{short}"


def host_name(text: str) -> str:
    """Return the normalised host name; InvalidInput stops any other text here."""
    name = normalise(text)
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise InvalidInput(f"{text[:80]!r} is not the name of a host")
    return name


@dataclass(frozen=True)
class Device:
    """A fence device: its driver, address and settings."""

    hosts: str  # a host's name, or a pattern of names
    line: int
    driver: str
    timeout_s: float
    action: str = "off"
    address: str = ""
    user: str = ""
    password_file: str = ""
    verify_ca: bool | str = True  # or the path of a CA file
    allow_http: bool = False
    system: str = ""  # of a Redfish service: path, uuid or name
    agent: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    secret_files: Mapping[str, str] = field(default_factory=dict)
    accepted: bool = False  # the operator accepted that servers may run twice
    fault: str = ""  # of a simulated device

    @property
    def kind(self) -> str:
        """The agent or driver, for display."""
        return self.agent or self.driver

    @property
    def many(self) -> bool:
        """Whether the device has a pattern for several hosts."""
        return "*" in self.hosts or "?" in self.hosts

    def covers(self, host: str) -> bool:
        if not self.many:
            return same(self.hosts, host)
        return fnmatchcase(host, self.hosts) or fnmatchcase(short(host), self.hosts)

    def of(self, host: str) -> "Device":
        """Return the device for a host, with the placeholders filled in.

        `host` is already validated.
        """

        def fill(text: str) -> str:
            return text.replace(HOST, host).replace(SHORT, short(host))

        return replace(
            self,
            hosts=host,
            address=fill(self.address),
            user=fill(self.user),
            password_file=fill(self.password_file),
            system=fill(self.system),
            options={key: fill(value) for key, value in self.options.items()},
            secret_files={key: fill(path) for key, path in self.secret_files.items()},
        )

    def tells_hosts_apart(self) -> bool:
        """Return whether the switched outlet depends on the host's name."""
        texts = (self.address, self.system, *self.options.values())
        return any(HOST in text or SHORT in text for text in texts)

    def switches(self) -> tuple[object, ...]:
        """Return the identity of the outlet: two equal results mean the same outlet."""
        options = tuple(sorted(self.options.items()))
        return (self.driver, self.agent, self.address.lower(), self.system, options)


def pattern(text: str) -> str:
    """Return the normalised host name or pattern of names; ValueError."""
    name = normalise(text)
    if "*" not in name and "?" not in name:
        try:
            return host_name(name)
        except InvalidInput as error:
            raise ValueError(error.message) from None
    if not _PATTERN.fullmatch(name):
        raise ValueError(
            f"{text!r} is no pattern of host names: letters, digits, '.', '-', '*' and '?' only"
        )
    return name


def secret(path: str) -> str:
    """Read the first line of a file; read each time, so a new password needs no restart."""
    try:
        with open(path, encoding="utf-8") as file:
            line = file.readline(4096).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DriverError(PORT, f"{path} cannot be read: {why}", retryable=True) from None
    if not line:
        raise DriverError(PORT, f"{path} must have the password in its first line", retryable=True)
    return line


def read_by_others(path: str) -> bool:
    """Return whether all users of this machine may read the file; False if the file is missing."""
    try:
        return bool(os.stat(path).st_mode & 0o004)
    except OSError:
        return False


def without(text: str, secrets: tuple[str, ...], most: int = 300) -> str:
    """Return output of an outside component: a single short, printable line without secrets."""
    for hidden in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(hidden, "***")
    line = "; ".join(filter(None, (part.strip() for part in text.splitlines())))
    shown = "".join(sign if sign.isprintable() else "?" for sign in line)
    return shown if len(shown) <= most else f"…{shown[-most:]}"
