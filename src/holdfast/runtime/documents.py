# SPDX-License-Identifier: Apache-2.0
"""YAML documents with line numbers: read, checked and followed as their file changes."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import yaml

from holdfast.hostmonitor.matrix import LONGEST_FOR_S, MOST_RULES, InvalidDocument, Problem
from holdfast.model.errors import InvalidInput

# YAML of which every word knows its line, so that what is wrong can be pointed at.
#
# Words stay words: `on` is not true and `3s` is not a date. What a strategy needs nothing of is
# not
# taken: anchors and aliases (which can make a few lines mean billions), tags, several documents,
# deep
# nests. Built from events, not by recursion, and given up at the first line that is too much.
#
# >>> problems = []
# >>> read("when: {storage: down}", problems)
# Map(pairs=((Word(text='when', line=1), Map(pairs=((Word(text='storage', line=1),
# Word(text='down', line=1)),), line=1)),), line=1)
# >>> read("a: &x 1", problems), [str(one) for one in problems]
# (None, ['line 1: anchors and aliases (& and *) are not taken here: write it out'])


MAX_BYTES = 65_536
MAX_DEPTH = 8
MAX_WORDS = 12_000


@dataclass(frozen=True)
class Scalar:
    text: str
    line: int


@dataclass(frozen=True)
class List:
    items: tuple["Node", ...]
    line: int


@dataclass(frozen=True)
class Map:
    pairs: tuple[tuple[Scalar, "Node"], ...]
    line: int


Node = Scalar | List | Map


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
            self._put(Scalar(event.value, self.line))
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
                if not isinstance(key, Scalar):
                    self.line = key.line
                    return self._refuse("what stands before a colon must be a word")
            words = [key for key in keys if isinstance(key, Scalar)]
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


# Maps, lists, words and lengths of time out of `yaml_lines`, each problem named with its line.
#
# What could not be read is said once, and something harmless takes its place, so that the rest of
# the file is looked at too.


T = TypeVar("T")

_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|h)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass
class Reading:
    """One file being read; problems are collected on the way."""

    problems: list[Problem] = field(default_factory=list)

    def say(self, line: int, text: str) -> None:
        self.problems.append(Problem(line, text))

    def whole(
        self,
        data: str | bytes,
        take: Callable[[Node | None], T | None],
        refused: Callable[[Sequence[Problem]], InvalidDocument],
        *,
        quick: bool = False,
    ) -> T:
        """What `take` makes of a file, or `refused` with all that is wrong with it."""
        text = decoded(data, self.problems)
        tree = None if self.problems else read(text, self.problems, quick=quick)
        found = None if self.problems else take(tree)
        if found is None or self.problems:
            raise refused(self.problems)
        return found

    def fields(
        self, node: Node, known: Sequence[str], *, needed: Sequence[str] = (), of: str = "key"
    ) -> dict[str, Node]:
        """Of a map what is known; what is not, or twice, or missing, is a problem."""
        if not isinstance(node, Map):
            self.say(node.line, f"{shown(node)} should be a map: write {{{known[0]}: …}}")
            return {}
        found: dict[str, Node] = {}
        for key, value in node.pairs:
            if key.text not in known:
                text = f"{of} {quoted(key.text)} is unknown: there are {', '.join(known)}"
                self.say(key.line, text)
            elif key.text in found:
                self.say(key.line, f"{of} {key.text} is there twice: keep one of them")
            else:
                found[key.text] = value
        for name in needed:
            if name not in {key.text for key, _ in node.pairs}:
                self.say(node.line, f"`{name}` is missing: add `{name}: …`")
        return found

    def items(self, node: Node | None, what: str) -> tuple[Node, ...]:
        """Of a list, none if there is no such thing (which was said already)."""
        if node is None:
            return ()
        if not isinstance(node, List):
            self.say(node.line, f"`{what}` is {shown(node)} and should be a list: write [ … ]")
            return ()
        if len(node.items) > MOST_RULES:
            self.say(node.line, f"`{what}` has more than {MOST_RULES} entries: write fewer")
            return ()
        return node.items

    def words(self, node: Node | None, what: str) -> tuple[str, ...]:
        """A word, or a list of them."""
        if node is None:
            return ()
        if isinstance(node, List) and not node.items:
            self.say(node.line, f"`{what}` is an empty list: name something, or leave it out")
        found = [node] if isinstance(node, Scalar) else self.items(node, what)
        texts = []
        for one in found:
            if isinstance(one, Scalar) and one.text.strip():
                texts.append(one.text.strip())
            else:
                self.say(one.line, f"`{what}`: {shown(one)} should be a word")
        return tuple(texts)

    def choice(self, node: Node | None, allowed: Sequence[str], what: str) -> str:
        """One of these words."""
        if node is None:
            return ""
        if isinstance(node, Scalar) and node.text in allowed:
            return node.text
        self.say(node.line, f"{shown(node)} is no {what}: write {either(allowed)}")
        return ""

    def span(self, node: Node | None, otherwise_s: float) -> float:
        """A length of time, in seconds."""
        if node is None:
            return otherwise_s
        lasts_s = seconds(node.text) if isinstance(node, Scalar) else None
        if lasts_s is None:
            text = f"{shown(node)} is no length of time: write 500ms, 3s, 2m, 1h or 0"
            self.say(node.line, text)
            return otherwise_s
        if lasts_s > LONGEST_FOR_S:
            self.say(node.line, f"{shown(node)} is longer than a day: nobody would be helped")
        return lasts_s


def seconds(text: str) -> float | None:
    """500ms, 3s, 2m, 1h, 0; None if it is something else."""
    match = _SPAN.fullmatch(text)
    return float(match[1]) * _UNITS_S[match[2] or "s"] if match else None


def either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def shown(node: Node) -> str:
    """What stands there, for a sentence about it."""
    if isinstance(node, Scalar):
        return quoted(node.text) if node.text else "nothing"
    if isinstance(node, Map):
        return "a map"
    words = [one.text for one in node.items if isinstance(one, Scalar)]
    return quoted(f"[{', '.join(words)}]") if len(words) == len(node.items) else "a list"


# A file of the operator's that counts as it is now, without a restart. A bad one leaves what was
# read before it in force, and says so once.


LOG = logging.getLogger(__name__)

_Stamp = tuple[int, int, int] | None
#: Of no file.
_UNREAD: Final = (-1, -1, -1)


class Followed(Generic[T]):
    def __init__(
        self,
        path: str | None,
        noun: str,
        default: Callable[[], T],
        parse: Callable[[bytes, str], T],
    ) -> None:
        """InvalidInput if the file cannot be read now: at the start there is no old one."""
        self._path = path
        self._noun = noun
        self._parse = parse
        self._stamp: _Stamp = None
        self.problem = ""  # of the file as it is now
        if path is None:
            self.value = default()
        else:
            self._stamp = _stamp(path)
            self.value = self._read(path)

    def follow(self) -> bool:
        """Whether there is another one now."""
        if self._path is None:
            return False
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return False
        try:
            new = self._read(self._path)
        except InvalidInput as error:
            # what the disk does not give now it may give in a moment, with the same stamp
            self._stamp = _UNREAD if isinstance(error.__cause__, OSError) else stamp
            if error.message != self.problem:
                LOG.error("the %s before it stays in force: %s", self._noun, error.message)
            self.problem = error.message
            return False
        self._stamp = stamp
        self.problem = ""
        changed = bool(new != self.value)
        self.value = new
        LOG.info("%s read again: %s", self._path, "it is in force" if changed else "the same")
        return changed

    def _read(self, path: str) -> T:
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)  # one more than is taken
        except OSError as error:
            raise InvalidInput(f"{self._noun} file {path}: {error.strerror}") from error
        return self._parse(data, path)


def _stamp(path: str) -> _Stamp:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
