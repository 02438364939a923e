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
#: Of so many different answers of hosts a condition remembers its verdict.
MOST_REMEMBERED = 100


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
    names = [name] if ":" not in name else [name, name.split(":", 1)[0]]

    def test_facts(facts: expression.Facts) -> bool:
        found = extra_specs.value(facts.get, name)
        return found is not None and test(found)

    passes = _remembering(names, test_facts)
    return Condition(_short(f"{name} {text}"), passes, frozenset([name]), text)


def _property(part: expression.Expression) -> Condition:
    passes = _remembering(sorted(part.keys), part.matches)
    return Condition(_short(part.text), passes, part.keys, part.source)


def _remembering(
    names: Sequence[str], test: Callable[[expression.Facts], bool]
) -> Callable[[Host], bool]:
    """The test of these facts of a host. A cloud has many hosts and few makes: of hosts that say
    the same of themselves one is tested."""
    verdicts: dict[tuple[Any, ...], bool] = {}

    def passes(host: Host) -> bool:
        said = tuple([host.fact(name) for name in names])
        verdict = verdicts.get(said)
        if verdict is None:
            known = zip(names, said, strict=True)
            verdict = test({name: fact for name, fact in known if fact is not None})
            if len(verdicts) < MOST_REMEMBERED:
                verdicts[said] = verdict
        return verdict

    return passes


def _short(text: str) -> str:
    return text if len(text) <= MAX_SAID else f"{text[: MAX_SAID - 1]}…"
