# SPDX-License-Identifier: Apache-2.0
"""Central alarm rules: documents with a scope, and the merged rules for a host.

    Document("base", Scope("all"), 3, text)
    merged([base, gpu], "cmp-7", {"gpu"})       # Merged(version, text, origins)

A document is a file of alarm rules with a name and a scope: all hosts, a host, a group of
hosts, or the guests of a project wherever they run. If documents define the same rule id, the
narrower scope counts: host before group before all. Rules of a project never replace other
rules, because those apply to everybody else: project rules are named `document.id` and select
only the project's guests.
"""

import functools
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from holdfast.alarms import rules_file
from holdfast.alarms.rules import BadRules, RuleSet
from holdfast.model.errors import InvalidInput, Problem
from holdfast.model.host import normalise, same
from holdfast.runtime.documents import MAX_BYTES, MAX_WORDS, MOST_ENTRIES, plain, read

ALL: Final = "all"
HOST: Final = "host"
GROUP: Final = "group"
PROJECT: Final = "project"
#: Scope kinds; a later kind overrides an earlier. Project rules only add.
KINDS: Final = (ALL, GROUP, HOST, PROJECT)
#: Version of an empty rule set.
NONE: Final = "none"
LONGEST_NAME: Final = 31
LONGEST_ID: Final = 64
_ADVICE: Final = ": take rules out, or give them to fewer hosts by a narrower scope"
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")


@dataclass(frozen=True, slots=True)
class Scope:
    """Scope of a document."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind

    def holds(self, host: str, groups: Collection[str]) -> bool:
        """Tell whether the scope includes a host."""
        if self.kind == HOST:
            return same(self.name, host)
        return self.kind != GROUP or self.name in groups


@dataclass(frozen=True, slots=True)
class Document:
    """A version of a rules document."""

    name: str
    scope: Scope
    version: int
    text: str


@dataclass(frozen=True, slots=True)
class Merged:
    """Rules for a host; `origins` maps each rule id to its document."""

    version: str
    text: str
    origins: Mapping[str, str]


class Held(NamedTuple):
    """Rules that an agent fetches for its host, as a single file."""

    version: str
    text: str


def scope(text: str) -> Scope:
    """Parse `all`, `host:cmp-7`, `group:gpu` or `project:4f2c…`.

    >>> str(scope("host:CMP-7.example.org."))
    'host:cmp-7.example.org'
    """
    kind, _, name = text.partition(":")
    name = normalise(name) if kind == HOST else name.strip()
    strange = set(name) & set("*?[") or len(text) > 255
    if kind not in KINDS or (kind == ALL) == bool(name) or strange:
        raise InvalidInput(
            f"scope: {text[:80]!r} is none: write all, host:NAME, group:NAME or project:ID"
        )
    return Scope(kind, name)


def name(text: str) -> str:
    """Check the name of a document."""
    if not _NAME.fullmatch(text):
        raise InvalidInput(
            f"name: {text[:80]!r}: write up to {LONGEST_NAME} letters, digits, _ and -"
        )
    return text


def check(document: Document) -> RuleSet:
    """Parse a document and check its rules against its scope.

    BadRules lists every error with its line, also fields that no agent measures.
    """
    name, version = document.name, document.version
    rule_set = rules_file.parse(document.text, name, version, known_fields=True)
    problems = []
    if document.scope.kind == PROJECT:
        for rule in rule_set.rules:
            longest = LONGEST_ID - len(document.name) - 1
            if rule.kind == HOST:
                problems.append(Problem(rule.line, "a project has no hosts: write `on: guest`"))
            if rule.selector.projects:
                text = f"the scope is project {document.scope.name}: leave `project` out"
                problems.append(Problem(rule.line, text))
            if len(rule.id) > longest:
                text = f"id {rule.id} becomes {document.name}.{rule.id}: write up to {longest}"
                problems.append(Problem(rule.line, f"{text} letters"))
    if problems:
        raise BadRules.because(document.name, problems)
    return rule_set


def merged(documents: Iterable[Document], host: str, groups: Collection[str]) -> Merged:
    """Merge checked documents into a single text that any rules parser accepts."""
    here = held(documents, host, groups)
    rules: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    conditions: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for document in here:
        content = _content(document.text)
        own = {key: f"{document.name}.{key}" for key in content.get("conditions", {})}
        for rule in content["rules"]:
            made = _placed(rule, document, own)
            rules[made["id"]] = made
            origins[made["id"]] = document.name
        conditions |= {own[key]: value for key, value in content.get("conditions", {}).items()}
        settings |= {key: content[key] for key in ("storm", "group_wait") if key in content}
    used = {
        condition
        for rule in rules.values()
        for key in ("all", "any")
        for condition in rule.get(key, ())
    }
    named = {"conditions": {key: conditions[key] for key in sorted(used)}} if used else {}
    return Merged(version_of(here), _text({**settings, **named}, rules.values()), origins)


def _text(head: Mapping[str, Any], rules: Iterable[Mapping[str, Any]]) -> str:
    """Write a rule per line, without spaces: the agent limits the size of the text."""
    lines = ",\n".join(_compact(rule) for rule in rules)
    return f'{_compact(head)[:-1]}{"," if head else ""}"rules":[\n{lines}]}}'


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check_together(
    document: Document, others: Iterable[Document], hosts: Iterable[tuple[str, Collection[str]]]
) -> None:
    """Check the size of the merged rules on all affected hosts.

    InvalidInput if the rules for a host exceed the limits of its agent. The check includes
    known hosts with their groups, and hosts with a name or group of the documents' scopes.
    """
    documents = [document, *(other for other in others if other.name != document.name)]
    places = [*hosts, *((_host(scoped), _groups(scoped)) for scoped in documents), ("", ())]
    seen: set[str] = set()
    for host, groups in places:
        here = held(documents, host, groups)
        version = version_of(here)
        if document not in here or version in seen:
            continue
        seen.add(version)
        rules = merged(here, host, groups)
        if why := _too_much(rules):
            raise InvalidInput(f"rules {_together(document, here, host)} {why}{_ADVICE}")


def _host(document: Document) -> str:
    return document.scope.name if document.scope.kind == HOST else ""


def _groups(document: Document) -> Collection[str]:
    return (document.scope.name,) if document.scope.kind == GROUP else ()


def _too_much(merged_rules: Merged) -> str:
    """Return which limit of the rules parser the merged rules exceed (runtime.documents), or ""."""
    size, rules = len(merged_rules.text.encode(errors="surrogatepass")), len(merged_rules.origins)
    if size > MAX_BYTES:
        return f"come to {size} bytes, written out as its agent gets them, which takes {MAX_BYTES}"
    if rules > MOST_ENTRIES:
        return f"are {rules} rules, and its agent takes {MOST_ENTRIES}"
    words = _words(json.loads(merged_rules.text))
    return f"have {words} words, and its agent takes {MAX_WORDS}" if words > MAX_WORDS else ""


def _words(value: Any) -> int:
    """Count keys and scalars as the rules parser counts words."""
    if isinstance(value, dict):
        return sum(1 + _words(item) for item in value.values())
    return sum(map(_words, value)) if isinstance(value, list) else 1


def _together(document: Document, here: Sequence[Document], host: str) -> str:
    """Describe the document, the other documents and the host for an error message."""
    names = ", ".join(other.name for other in here if other is not document)
    beside = f" together with {names}" if names else ""
    return f"{document.name}{beside} on {host or 'one host'}"


def held(documents: Iterable[Document], host: str, groups: Collection[str]) -> list[Document]:
    """Return the documents for a host, in merge order."""
    here = [document for document in documents if document.scope.holds(host, groups)]
    return sorted(here, key=lambda document: (KINDS.index(document.scope.kind), document.name))


def version_of(documents: Sequence[Document]) -> str:
    """Return the version of a host's documents, given in merge order."""
    if not documents:
        return NONE
    identities = [[document.name, str(document.scope), document.version] for document in documents]
    return hashlib.sha256(json.dumps(identities).encode()).hexdigest()[:12]


def _placed(rule: Mapping[str, Any], document: Document, own: Mapping[str, str]) -> dict[str, Any]:
    """Return a rule as it appears in the merged text, with qualified names."""
    made = dict(rule)
    for key in ("all", "any"):
        if key in made:
            named = [made[key]] if isinstance(made[key], str) else made[key]
            made[key] = [own[condition.strip()] for condition in named]
    if document.scope.kind == PROJECT:
        made |= {"id": f"{document.name}.{made['id'].strip()}", "project": document.scope.name}
    made["id"] = made["id"].strip()
    return made


@functools.lru_cache(maxsize=16)
def _content(text: str) -> Mapping[str, Any]:
    """Parse a document; the result is cached for many hosts and never modified."""
    content: Mapping[str, Any] = plain(read(text, [], quick=True))
    return content
