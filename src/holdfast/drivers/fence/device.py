# SPDX-License-Identifier: Apache-2.0
"""A device as the devices file describes it, and what may stand in for a host's name.

No secret is kept here, only the names of the files that hold them: what is printed, logged or
compared can give none away.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from holdfast.model.errors import DriverError, InvalidInput
from holdfast.model.host import normalise, same, short

PORT = "fence"
#: A name of RFC 1123: nothing in it means anything to a shell, a path or a URL.
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_PATTERN = re.compile(r"[a-z0-9.*?-]+")
#: What is replaced by the host's name, and by the first label of it.
HOST, SHORT = "{host}", "{short}"


def host_name(text: str) -> str:
    """The name as it is kept; InvalidInput if it is none, so that nothing else goes any further."""
    name = normalise(text)
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise InvalidInput(f"{text[:80]!r} is not the name of a host")
    return name


@dataclass(frozen=True)
class Device:
    hosts: str  # a host's name, or a pattern of names
    line: int
    driver: str
    timeout_s: float
    action: str = "off"
    address: str = ""
    user: str = ""
    password_file: str = ""
    verify_ca: bool | str = True  # or a file with the authorities' certificates
    allow_http: bool = False
    system: str = ""  # of a Redfish service: path, uuid or name
    agent: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    secret_files: Mapping[str, str] = field(default_factory=dict)
    accepted: bool = False  # that servers may run twice, in writing
    fault: str = ""  # of a simulated device

    @property
    def kind(self) -> str:
        """What it is, for people."""
        return self.agent or self.driver

    @property
    def many(self) -> bool:
        """Whether it stands for more than one host."""
        return "*" in self.hosts or "?" in self.hosts

    def covers(self, host: str) -> bool:
        if not self.many:
            return same(self.hosts, host)
        return fnmatchcase(host, self.hosts) or fnmatchcase(short(host), self.hosts)

    def of(self, host: str) -> "Device":
        """The same for one host: its name is filled in. `host` was looked at before."""

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
        """Whether what it switches depends on the host's name."""
        texts = (self.address, self.system, *self.options.values())
        return any(HOST in text or SHORT in text for text in texts)

    def switches(self) -> tuple[object, ...]:
        """What it switches: two that are equal here are one and the same outlet."""
        options = tuple(sorted(self.options.items()))
        return (self.driver, self.agent, self.address.lower(), self.system, options)


def pattern(text: str) -> str:
    """A host's name or a pattern of names, as it is kept; ValueError."""
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
    """The first line of a file, read anew each time: a new password needs no restart."""
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
    """Whether anybody on this machine may read the file; False if there is none."""
    try:
        return bool(os.stat(path).st_mode & 0o004)
    except OSError:
        return False


def without(text: str, secrets: tuple[str, ...], most: int = 300) -> str:
    """What an outside part said, on one line, short, printable, and with no secret in it."""
    for hidden in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(hidden, "***")
    line = "; ".join(filter(None, (part.strip() for part in text.splitlines())))
    shown = "".join(sign if sign.isprintable() else "?" for sign in line)
    return shown if len(shown) <= most else f"…{shown[-most:]}"
