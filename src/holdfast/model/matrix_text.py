# SPDX-License-Identifier: Apache-2.0
"""A strategy as a file of our format would say it, wherever it came from: for somebody who wants to
change it.

>>> from holdfast.model.matrix import default
>>> print(written(default(("manage", "tenant", "storage"))), end="")
networks: [manage, tenant, storage]
rules:
  - {when: {storage: down}, do: recovery, for: 3s}
otherwise: none
"""

from collections.abc import Iterator, Sequence

from holdfast.model.matrix import ANY, DEFAULT_FOR_S, NONE, UP, Rule, Strategy


def written(strategy: Strategy) -> str:
    """Read again it says the same of every host (`Strategy.agrees`)."""
    used = _used(strategy)
    last = used[-1] if used and set(used[-1].health) == {ANY} else None
    rules = used[:-1] if last is not None else used
    return "\n".join(_lines(strategy.networks, rules, last)) + "\n"


def _used(strategy: Strategy) -> Sequence[Rule]:
    """In their order, those that ever have their turn: a file with others is refused."""
    turns = {id(row.answer.rule) for row in strategy.table() if set(row.health) != {UP}}
    return [rule for rule in strategy.rules if id(rule) in turns]


def _lines(networks: Sequence[str], rules: Sequence[Rule], last: Rule | None) -> Iterator[str]:
    yield f"networks: [{', '.join(map(_quoted, networks))}]"
    if last is not None and last.action != NONE and last.for_s != DEFAULT_FOR_S:
        yield f"for: {_span(last.for_s)}"
    yield "rules:" if rules else "rules: []"
    for rule in rules:
        named = zip(networks, rule.health, strict=True)
        when = ", ".join(f"{_quoted(name)}: {state}" for name, state in named if state != ANY)
        lasts = "" if rule.action == NONE else f", for: {_span(rule.for_s)}"
        yield f"  - {{when: {{{when}}}, do: {rule.action}{lasts}}}"
    # of what no rule speaks nothing is done, and a file has to say so
    yield f"otherwise: {NONE if last is None else last.action}"


def _quoted(name: str) -> str:
    """A name that YAML would take for something else, or for nothing, stays a name."""
    return name if name[0].isalpha() else f"'{name}'"


def _span(for_s: float) -> str:
    return f"{for_s:.9f}".rstrip("0").rstrip(".") + "s" if for_s else "0"
