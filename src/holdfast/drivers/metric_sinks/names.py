# SPDX-License-Identifier: Apache-2.0
"""Paths for statsd and graphite, made of names that strangers chose.

    Names("holdfast").path(sample)    # holdfast.cmp-7.guest.6f0c….nic.tap1.tx_bps

A part of a path has letters, digits, `_` and `-` of ASCII. Whatever else is in a name becomes `_`,
and then 16 hexadecimal digits of the hash of the whole name follow: two names never become the same
path. So do they if a name ends as if that had been done to it: nobody can choose the path of
another.

Guests go by their uuid, for names change and need not be unique. Who wants to read names gets
those with the hash of the uuid behind.
"""

import functools
import hashlib
import re
from typing import Final

from holdfast.ports.metric_sinks import ALARM, Sample
from holdfast.ports.metrics import GUEST, HOST

ID: Final = "id"
NAME: Final = "name"
#: Of a name, before its hash.
LONGEST: Final = 80
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_HASHED: Final = re.compile(r".*_[0-9a-f]{16}", re.DOTALL)
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]{1,80}")


def part(text: str) -> str:
    """One part of a path; of two different texts, two different ones."""
    if _SAFE.fullmatch(text) and not _HASHED.fullmatch(text):
        return text
    return named_part(text, text)


def host_part(host: str) -> str:
    """Names of hosts have no `_`, so their dots can become that; one that has some is hashed."""
    made = host.replace(".", "_")
    if _HOST.fullmatch(host) and not _HASHED.fullmatch(made):
        return made
    return named_part(host, host)


def named_part(name: str, identity: str) -> str:
    return f"{_clean(name)}_{_hash(identity)}"


class Names:
    def __init__(self, prefix: str = "holdfast", by: str = ID) -> None:
        """`by`: what guests are called, ID or NAME."""
        self._prefix = ".".join(part(one) for one in prefix.split(".") if one)
        self._by = by
        self._base = functools.lru_cache(maxsize=16_384)(self._base_of)

    def path(self, sample: Sample) -> str:
        entity = sample.entity
        base = self._base(sample.host, entity.kind, entity.id, entity.name)
        if sample.field == ALARM:
            return f"{base}.{ALARM}.{part(sample.about['rule'])}"
        return f"{base}.{part(sample.field)}"

    def _base_of(self, host: str, kind: str, identity: str, name: str) -> str:
        parts = [self._prefix] if self._prefix else []
        parts.append(host_part(host))
        if kind == HOST:
            parts.append(HOST)
            return ".".join(parts)
        guest, shown, rest = split(identity, name)
        parts += [GUEST, part(guest) if self._by == ID else named_part(shown, guest)]
        if kind != GUEST:
            parts += [part(kind), part(rest)]
        return ".".join(parts)


def split(identity: str, name: str) -> tuple[str, str, str]:
    """Of an entity: uuid and name of the guest that it is or belongs to, and which part of it."""
    uuid, slash, rest = identity.partition("/")
    return uuid, name.removesuffix(f"/{rest}") if slash else name, rest


def _clean(text: str) -> str:
    return _UNSAFE.sub("_", text[:LONGEST]) or "_"


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
