# SPDX-License-Identifier: Apache-2.0
"""YAML documents with line numbers: read, check, and reload when the file changes.

`read` parses YAML into nodes with line numbers, `Reading` checks nodes and collects every problem
with its line, `Followed` reloads an operator's file when it changes. Every YAML file of Holdfast is
read here. `Reading` checks shapes itself: jsonschema would add 7 MiB to the agent, and its messages
name neither the line nor the correction.
"""

import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import yaml

from holdfast.model.errors import InvalidDocument, InvalidInput, Problem

#: Longest duration in a document: one day.
LONGEST_S = 86_400.0
#: Most entries of a list. An HA matrix of ten networks has 1,024 combinations.
MOST_ENTRIES = 1_100

# YAML nodes that know their line, so that an error message can name it.
#
# Scalars stay text: `on` is not true and `3s` is not a date. Features that no document needs are
# refused: anchors and aliases (a few lines can expand to billions), tags, several documents, deep
# nesting. The parser builds the tree from events, not by recursion, and stops at the first line
# that exceeds a limit.
#
# >>> problems = []
# >>> read("when: {storage: down}", problems)
# Map(pairs=((Scalar(text='when', line=1), Map(pairs=((Scalar(text='storage', line=1),
# Scalar(text='down', line=1)),), line=1)),), line=1)
# >>> read("a: &x 1", problems), [str(one) for one in problems]
# (None, ['line 1: anchors and aliases (& and *) are not taken here: write it out'])


MAX_BYTES = 65_536
MAX_DEPTH = 8
MAX_WORDS = 12_000


@dataclass(frozen=True)
class Limits:
    """The largest document that a reader accepts."""

    bytes: int = MAX_BYTES
    words: int = MAX_WORDS


#: Limits of rules, matrices and lists of services, which may come from other machines.
SMALL: Final = Limits()
#: Limits of operators' own files with an entry per host or user.
INVENTORY: Final = Limits(4_194_304, 400_000)


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


def decoded(data: str | bytes, problems: list[Problem], limits: Limits = SMALL) -> str:
    """Decode a file; return "" and add a problem if it is too large or not UTF-8."""
    if isinstance(data, str):
        data = data.encode(errors="surrogatepass")  # YAML refuses surrogates, with their line
        given_as = "surrogatepass"
    else:
        given_as = "strict"
    if len(data) > limits.bytes:
        text = f"it is larger than the {limits.bytes} bytes that are taken: write less"
        problems.append(Problem(0, text))
        return ""
    try:
        return data.decode("utf-8", errors=given_as)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.append(Problem(line, "this is not UTF-8: save it as plain text"))
        return ""


def read(
    text: str, problems: list[Problem], *, quick: bool = False, limits: Limits = SMALL
) -> Node | None:
    """Parse a document; None if it is empty or was refused (`problems` says why).

    `quick` uses libyaml if it is installed, which is ten times faster. A document that libyaml
    refuses is parsed again in Python to name the problem.
    """
    if quick and (root := _quickly(text, limits)) is not None:
        return root
    building = _Building(problems, limits)
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
    except (ValueError, OverflowError):  # numbers in escapes and directives that Python refuses
        problems.append(Problem(building.line, "this, or a line soon after, is not YAML"))
    return building.root if len(problems) == before else None


def _quickly(text: str, limits: Limits) -> Node | None:
    """Parse with libyaml; None if the Python parser has to do it.

    libyaml accepts tabs and ? where the Python parser does not, so such text goes to Python.
    """
    loader = getattr(yaml, "CSafeLoader", None)
    if loader is None or "\t" in text or "?" in text:
        return None
    building = _Building([], limits)
    try:
        for event in yaml.parse(text, Loader=loader):
            if not building.take(event):
                return None
    except (yaml.YAMLError, ValueError, OverflowError):
        return None
    return building.root


@dataclass
class _Building:
    """A document being built; `open` holds the unfinished lists and maps, innermost last."""

    problems: list[Problem]
    limits: Limits
    root: Node | None = None
    documents: int = 0
    words: int = 0
    line: int = 1
    open: list[tuple[int, list[Node]]] = field(default_factory=list)

    def take(self, event: Any) -> bool:
        """Add a YAML event; False stops the parser."""
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
            if self.words > self.limits.words:
                return self._refuse(f"more than {self.limits.words} words until here: write less")
            return True
        self.open.append((self.line, []))
        if len(self.open) > MAX_DEPTH:
            return self._refuse(f"lists in lists, more than {MAX_DEPTH} deep: no document needs it")
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


# Reading of maps, lists, words and durations from nodes. An invalid value adds one problem with its
# line and is replaced by a harmless value, so that the rest of the file is checked too.


T = TypeVar("T")
V = TypeVar("V")

_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|h)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_WHOLE = re.compile("[0-9]{1,9}")
_YES, _NO = ("yes", "true", "on", "1"), ("no", "false", "off", "0")


@dataclass
class Reading:
    """A file being read, with the problems found until now."""

    problems: list[Problem] = field(default_factory=list)

    def say(self, line: int, text: str) -> None:
        self.problems.append(Problem(line, text))

    def whole(
        self,
        data: str | bytes,
        convert: Callable[[Node | None], T | None],
        refused: Callable[[Sequence[Problem]], InvalidDocument],
        *,
        quick: bool = False,
        limits: Limits = SMALL,
    ) -> T:
        """Decode, parse and convert a file with `convert`; raise `refused` with all problems."""
        text = decoded(data, self.problems, limits)
        tree = None if self.problems else read(text, self.problems, quick=quick, limits=limits)
        converted = None if self.problems else convert(tree)
        if converted is None or self.problems:
            raise refused(self.problems)
        return converted

    def root(self, tree: Node | None, if_empty: str, begins: str) -> Map | None:
        """Return the tree if it is a map; `if_empty` and `begins` tell the operator what to write.

        An empty `if_empty` accepts an empty file as a map without keys.
        """
        if tree is None or is_empty(tree):
            if if_empty:
                self.say(0, f"it is empty: {if_empty}")
            return None if if_empty else Map((), 0)
        if not isinstance(tree, Map):
            self.say(tree.line, begins)
            return None
        return tree

    def pairs(self, node: Node, write: str, of: str = "key") -> tuple[tuple[Scalar, Node], ...]:
        """Return the pairs of a map with any keys; repeated keys are problems."""
        if not isinstance(node, Map):
            self.say(node.line, f"{shown(node)} should be a map: write {write}")
            return ()
        by_key: dict[str, tuple[Scalar, Node]] = {}
        for key, value in node.pairs:
            if key.text in by_key:
                self.say(key.line, f"{of} {quoted(key.text)} is there twice: keep one of them")
            by_key.setdefault(key.text, (key, value))
        return tuple(by_key.values())

    def fields(
        self, node: Node, known: Sequence[str], *, needed: Sequence[str] = (), of: str = "key"
    ) -> dict[str, Node]:
        """Return the known keys of a map; unknown, repeated and missing keys are problems."""
        pairs = self.pairs(node, f"{{{known[0]}: …}}", of)
        if not isinstance(node, Map):
            return {}
        for key, _ in pairs:
            if key.text not in known:
                text = f"{of} {quoted(key.text)} is unknown: there are {', '.join(known)}"
                self.say(key.line, text)
        by_name = {key.text: value for key, value in pairs}
        for name in needed:
            if name not in by_name:
                self.say(node.line, f"`{name}` is missing: add `{name}: …`")
        return {name: value for name, value in by_name.items() if name in known}

    def items(self, node: Node | None, name: str) -> tuple[Node, ...]:
        """Return the items of a list; none if the node is absent (`fields` reports that)."""
        if node is None:
            return ()
        if not isinstance(node, List):
            self.say(node.line, f"`{name}` is {shown(node)} and should be a list: write [ … ]")
            return ()
        if len(node.items) > MOST_ENTRIES:
            self.say(node.line, f"`{name}` has more than {MOST_ENTRIES} entries: write fewer")
            return ()
        return node.items

    def words(self, node: Node | None, name: str) -> tuple[str, ...]:
        """Return a word, or the words of a list."""
        if node is None:
            return ()
        if isinstance(node, List) and not node.items:
            self.say(node.line, f"`{name}` is an empty list: name something, or leave it out")
        nodes = [node] if isinstance(node, Scalar) else self.items(node, name)
        texts = []
        for item in nodes:
            if isinstance(item, Scalar) and item.text.strip():
                texts.append(item.text.strip())
            else:
                self.say(item.line, f"`{name}`: {shown(item)} should be a word")
        return tuple(texts)

    def value(
        self,
        node: Node | None,
        convert: Callable[[str], T | None],
        otherwise: T,
        problem: str,
    ) -> T:
        """Return a converted scalar; `otherwise` if the node is absent or `convert` returns None.

        `problem` is the error message, with {} for the value as written.
        """
        if node is None:
            return otherwise
        converted = convert(node.text) if isinstance(node, Scalar) else None
        if converted is None:
            self.say(node.line, problem.format(shown(node)))
            return otherwise
        return converted

    def attempt(self, line: int, prefix: str, check: Callable[[V], T], value: V) -> T | None:
        """Return the result of `check`; its ValueError becomes a problem, after `prefix`."""
        try:
            return check(value)
        except ValueError as error:
            self.say(line, f"{prefix}{error}")
            return None

    def word(self, node: Node | None, name: str) -> str:
        """Return a word; "" if the node is absent or no word."""
        return self.value(node, _word, "", f"`{name}` is {{}}: write a word")

    def whole_number(
        self, node: Node | None, name: str, least: int, most: int, otherwise: int
    ) -> int:
        problem = f"`{name}` is {{}}: write a number from {least} to {most}"
        return self.value(node, lambda text: _whole(text, least, most), otherwise, problem)

    def yes_no(self, node: Node | None, name: str, *, otherwise: bool = False) -> bool:
        return self.value(node, truth, otherwise, f"`{name}` is {{}}: write yes or no")

    def choice(
        self, node: Node | None, allowed: Sequence[str], noun: str, otherwise: str = ""
    ) -> str:
        """Return a word of `allowed`; `otherwise` if the node is absent or another word."""
        problem = f"{{}} is no {noun}: write {either(allowed)}"
        return self.value(node, lambda t: t if t in allowed else None, otherwise, problem)

    def span(self, node: Node | None, otherwise_s: float) -> float:
        """Return a duration in seconds; `otherwise_s` if the node is absent or invalid."""
        problem = "{} is no length of time: write 500ms, 3s, 2m, 1h or 0"
        lasts_s = self.value(node, seconds, otherwise_s, problem)
        if node is not None and lasts_s > LONGEST_S:
            self.say(node.line, f"{shown(node)} is longer than a day")
        return lasts_s


def seconds(text: str) -> float | None:
    """Convert 500ms, 3s, 2m, 1h or 0 to seconds; None for other text."""
    match = _SPAN.fullmatch(text)
    return float(match[1]) * _UNITS_S[match[2] or "s"] if match else None


def truth(text: str) -> bool | None:
    """Convert yes, true, on, 1, no, false, off or 0; None for other text."""
    lower = text.strip().lower()
    return lower in _YES if lower in (*_YES, *_NO) else None


def _word(text: str) -> str | None:
    return text.strip() or None


def _whole(text: str, least: int, most: int) -> int | None:
    number = int(text) if _WHOLE.fullmatch(text.strip()) else -1
    return number if least <= number <= most else None


def is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and not node.text.strip()


def plain(node: Node | None) -> Any:
    """Convert a node to dictionaries, lists and text; an absent node becomes {}."""
    if isinstance(node, Scalar):
        return node.text
    if isinstance(node, List):
        return [plain(item) for item in node.items]
    return {key.text: plain(value) for key, value in node.pairs} if node else {}


def either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def shown(node: Node) -> str:
    """Describe a node for an error message."""
    if isinstance(node, Scalar):
        return quoted(node.text) if node.text else "nothing"
    if isinstance(node, Map):
        return "a map"
    words = [item.text for item in node.items if isinstance(item, Scalar)]
    return quoted(f"[{', '.join(words)}]") if len(words) == len(node.items) else "a list"


LOG = logging.getLogger(__name__)

_Stamp = tuple[int, int, int] | None
#: A stamp that no file has.
_UNREAD: Final = (-1, -1, -1)


class Followed(Generic[T]):
    """An operator's file that takes effect without a restart when it changes; thread-safe.

    With `follow`, the old value stays in force while a changed file is invalid, and the problem is
    logged once. With `reload`, an invalid file is an error each time.
    """

    def __init__(
        self,
        path: str | None,
        noun: str,
        default: Callable[[], T],
        parse: Callable[[bytes, str], T],
        *,
        limits: Limits = SMALL,
        at_once: bool = True,
    ) -> None:
        """Read the file; raise InvalidInput if that fails, as there is no old value to keep.

        Without `at_once` the default is in force until the first `follow` or `reload`.
        """
        self._path = path
        self._noun = noun
        self._parse = parse
        self._limits = limits
        self._stamp: _Stamp = None if at_once else _UNREAD
        self._lock = threading.Lock()
        self.problem = ""  # why the current file is not in force
        if path is None or not at_once:
            self.value = default()
        else:
            self._stamp = _stamp(path)
            self.value = self._read(path)

    def follow(self) -> bool:
        """Read the file again if it changed; return whether the value is different."""
        before = self.problem
        try:
            return self.reload()
        except InvalidInput as error:
            if error.message != before:
                LOG.error("the previous %s file stays in force: %s", self._noun, error.message)
            return False

    def reload(self) -> bool:
        """Read the file again if it changed; InvalidInput as long as it is invalid."""
        if self._path is None:
            return False
        with self._lock:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                if self.problem:
                    raise InvalidInput(self.problem)
                return False
            try:
                new = self._read(self._path)
            except InvalidInput as error:
                # a read error may be gone in a moment while the stamp stays the same: retry
                self._stamp = _UNREAD if isinstance(error.__cause__, OSError) else stamp
                self.problem = error.message
                raise
            changed = bool(new != self.value)
            self._stamp, self.value, self.problem = stamp, new, ""
        LOG.info("%s read again: %s", self._path, "it is in force" if changed else "the same")
        return changed

    def _read(self, path: str) -> T:
        try:
            with open(path, "rb") as file:
                data = file.read(self._limits.bytes + 1)  # one byte above the limit
        except OSError as error:
            text = f"{self._noun} file {path} cannot be read: {error.strerror}"
            raise InvalidInput(text) from error
        return self._parse(data, path)


def _stamp(path: str) -> _Stamp:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
