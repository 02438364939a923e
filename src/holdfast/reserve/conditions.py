# SPDX-License-Identifier: Apache-2.0
"""What a request wants of each host, condition by condition, so that a refusal can name them.

conditions({"vcpus": 8, "capabilities": {"gpu": ">= 4"}})   # "vcpus >= 8", "gpu >= 4"
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.model import expression, extra_specs
from holdfast.model.host import Host

#: The contract's fields; both go to one matcher.
EXPRESSIONS = ("hypervisor_properties", "resource_properties")
#: A field of the request, and what a host says of itself.
LABELS = {"region": "region", "availability_zone": "availability_zone"}
AMOUNTS = {"vcpus": "cpu_cores", "memory_mb": "free_ram_mb", "local_gb": "free_disk_gb"}
#: How much of a condition a refusal quotes.
MAX_SAID = 120


@dataclass(frozen=True)
class Condition:
    """One thing asked of a host, as a person would say it; equal when the same was asked for."""

    text: str
    test: Callable[[Host], bool] = field(compare=False)
    keys: frozenset[str] = frozenset()  # properties a host may lack
    source: str = ""  # what was asked for to the letter, where the text may be the same for two


def conditions(spec: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Of a normalised spec, also one that was stored before some fields were known."""
    return tuple(_conditions(spec))


def matches(host: Host, wanted: Sequence[Condition]) -> bool:
    return all(condition.test(host) for condition in wanted)


def _conditions(spec: Mapping[str, Any]) -> Iterator[Condition]:
    for name, fact in LABELS.items():
        if spec.get(name):
            yield _label(name, fact, str(spec[name]))
    for name, fact in AMOUNTS.items():
        if spec.get(name):
            yield _amount(name, fact, int(spec[name]))
    for key, text in (spec.get("capabilities") or {}).items():
        yield _capability(key, text)
    for name in EXPRESSIONS:
        for part in expression.parse(spec.get(name) or "", name).parts:
            yield _property(part)


def _label(name: str, fact: str, wanted: str) -> Condition:
    text = f"{name} == {wanted}"
    return Condition(text, lambda host: host.fact(fact) == wanted)


def _amount(name: str, fact: str, wanted: int) -> Condition:
    text = f"{name} >= {wanted}"
    return Condition(text, lambda host: host.amount(fact) >= wanted)


def _capability(key: str, text: str) -> Condition:
    name, test = extra_specs.path(key), extra_specs.parse(text, key)

    def passes(host: Host) -> bool:
        found = extra_specs.value(host.fact, name)
        return found is not None and test(found)

    return Condition(_short(f"{name} {text}"), passes, frozenset([name]), text)


def _property(part: expression.Expression) -> Condition:
    def passes(host: Host) -> bool:
        return part.matches(_known(host, part.keys))

    return Condition(_short(part.text), passes, part.keys, part.source)


def _known(host: Host, keys: frozenset[str]) -> expression.Facts:
    return {key: found for key in keys if (found := host.fact(key)) is not None}


def _short(text: str) -> str:
    return text if len(text) <= MAX_SAID else f"{text[: MAX_SAID - 1]}…"
