# SPDX-License-Identifier: Apache-2.0
"""YAML of which every word knows its line, so that what is wrong can be pointed at.

Words stay words: `on` is not true and `3s` is not a date. What a strategy needs nothing of is not
taken: anchors and aliases (which can make a few lines mean billions), tags, several documents, deep
nests. Built from events, not by recursion, and given up at the first line that is too much.

>>> problems = []
>>> read("when: {storage: down}", problems)
Map(pairs=((Word(text='when', line=1), Map(pairs=((Word(text='storage', line=1), \
Word(text='down', line=1)),), line=1)),), line=1)
>>> read("a: &x 1", problems), [str(one) for one in problems]
(None, ['line 1: anchors and aliases (& and *) are not taken here: write it out'])
"""

from dataclasses import dataclass, field
from typing import Any

import yaml

from holdfast.model.matrix import Problem

MAX_BYTES = 65_536
MAX_DEPTH = 8
MAX_WORDS = 12_000


@dataclass(frozen=True)
class Word:
    text: str
    line: int


@dataclass(frozen=True)
class List:
    items: tuple["Node", ...]
    line: int


@dataclass(frozen=True)
class Map:
    pairs: tuple[tuple[Word, "Node"], ...]
    line: int


Node = Word | List | Map


def decoded(data: str | bytes, problems: list[Problem]) -> str:
    """The text of a file, unless it is too large or no text."""
    if isinstance(data, str):
        data = data.encode(errors="surrogatepass")  # which YAML refuses with its line
        given_as = "surrogatepass"
    else:
        given_as = "strict"
    if len(data) > MAX_BYTES:
        text = f"it is larger than the {MAX_BYTES} bytes that are taken: write less"
        problems.append(Problem(0, text))
        return ""
    try:
        return data.decode("utf-8", errors=given_as)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.append(Problem(line, "this is not UTF-8: save it as plain text"))
        return ""


def read(text: str, problems: list[Problem], *, quick: bool = False) -> Node | None:
    """The one document, or None if it is empty or something about it had to be refused. `quick`:
    by libyaml if it is here, ten times faster; what it refuses is read again to say why."""
    if quick and (found := _quickly(text)) is not None:
        return found
    building = _Building(problems)
    before = len(problems)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if not building.take(event):
                return None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problems.append(Problem(line, "there is a character here that is not allowed in YAML"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        problems.append(Problem(line, f"this is not YAML: {error.problem or error.context}"))
    except (ValueError, OverflowError):  # numbers in escapes and directives that Python cannot take
        problems.append(Problem(building.line, "this, or a line soon after, is not YAML"))
    return building.root if len(problems) == before else None


def _quickly(text: str) -> Node | None:
    """None if it has to be read the other way. Tabs and ? libyaml takes where Python's does not."""
    loader = getattr(yaml, "CSafeLoader", None)
    if loader is None or "\t" in text or "?" in text:
        return None
    building = _Building([])
    try:
        for event in yaml.parse(text, Loader=loader):
            if not building.take(event):
                return None
    except (yaml.YAMLError, ValueError, OverflowError):
        return None
    return building.root


@dataclass
class _Building:
    """The document so far: containers that are open, innermost last."""

    problems: list[Problem]
    root: Node | None = None
    documents: int = 0
    words: int = 0
    line: int = 1
    open: list[tuple[int, list[Node]]] = field(default_factory=list)

    def take(self, event: Any) -> bool:
        """Whether to go on."""
        self.line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                return self._refuse("a second document begins: put all into one")
        if not isinstance(event, yaml.NodeEvent):
            return self._end(event)
        if event.anchor is not None:
            text = "anchors and aliases (& and *) are not taken here: write it out"
            return self._refuse(text)
        if getattr(event, "tag", None) is not None:
            return self._refuse("tags (!) are not taken here: leave it out")
        if isinstance(event, yaml.ScalarEvent):
            self._put(Word(event.value, self.line))
            self.words += 1
            if self.words > MAX_WORDS:
                return self._refuse(f"more than {MAX_WORDS} words until here: write less")
            return True
        self.open.append((self.line, []))
        if len(self.open) > MAX_DEPTH:
            return self._refuse(f"lists in lists, more than {MAX_DEPTH} deep: no strategy needs it")
        return True

    def _end(self, event: Any) -> bool:
        if isinstance(event, yaml.SequenceEndEvent):
            line, items = self.open.pop()
            self._put(List(tuple(items), line))
        elif isinstance(event, yaml.MappingEndEvent):
            line, items = self.open.pop()
            keys, values = items[::2], items[1::2]
            for key in keys:
                if not isinstance(key, Word):
                    self.line = key.line
                    return self._refuse("what stands before a colon must be a word")
            words = [key for key in keys if isinstance(key, Word)]
            self._put(Map(tuple(zip(words, values, strict=True)), line))
        return True

    def _put(self, node: Node) -> None:
        if self.open:
            self.open[-1][1].append(node)
        else:
            self.root = node

    def _refuse(self, text: str) -> bool:
        self.problems.append(Problem(self.line, text))
        return False
