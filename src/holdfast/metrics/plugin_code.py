# SPDX-License-Identifier: Apache-2.0
"""Names of metric plugins: locate the code of a plugin, and parse the plugins file.

    find("hot")                   # an entry point of holdfast.metric_plugins
    find("acme_hot:Hot")          # or a class of a module
    find("/etc/holdfast/hot.py")  # or a file, with :Class if it has several

`plugin_child` loads the code, in a process of its own.
"""

import functools
import importlib.metadata
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from holdfast.model.errors import InvalidDocument, InvalidInput, NotFound
from holdfast.ports.metric_plugins import NAMESPACE
from holdfast.runtime.documents import List, Map, Node, Reading, Scalar, quoted, shown

_CLASS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


class Source(NamedTuple):
    """Location of a plugin class: class `name` of a module or file.

    `name` is "" if the file has only one plugin class.
    """

    use: str
    module: str = ""
    path: str = ""
    name: str = ""


def find(use: str) -> Source:
    """Locate a plugin without running any of its code."""
    path, colon, name = use.rpartition(":")
    if not colon:
        path, name = use, ""
    if "/" in use or path.endswith(".py"):
        return _file(use, path, name)
    if colon:
        if not _CLASS.fullmatch(path) or not _CLASS.fullmatch(name):
            raise InvalidInput(f"{use!r} is no plugin: write module:Class")
        return Source(use, module=path, name=name)
    entries = {point.name: point for point in importlib.metadata.entry_points(group=NAMESPACE)}
    if use not in entries:
        there = ", ".join(sorted(entries)) or "none"
        raise NotFound(
            f"there is no plugin {use!r}: there are {there}; or write module:Class or a file"
        )
    return Source(use, module=entries[use].module, name=entries[use].attr)


def _file(use: str, path: str, name: str) -> Source:
    """Locate a plugin file. InvalidInput if any user may write the file."""
    if not os.path.isabs(path):
        raise InvalidInput(f"{use!r} should be a whole path: begin it with /")
    try:
        status = os.stat(path)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInput(f"{path} is no file")
    if status.st_mode & stat.S_IWOTH:
        raise InvalidInput(f"every user may write {path}, and we run it: chmod o-w it first")
    return Source(use, path=path, name=name)


# Plugins file: lists the metric plugins of a host. The parser reports every error with its
# line.
#
#     plugins:
#       - {name: noisy, use: noisy_neighbour, config: {steal_ratio: 0.2}}
#       - {name: gpu, use: "acme_gpu:Temperature"}
#       - {name: mine, use: /etc/holdfast/plugins/mine.py}
#
# `use` is an entry point of holdfast.metric_plugins, module:Class, or a Python file. In
# `config`, a scalar that looks like a number becomes a number, true and false become booleans,
# ~ becomes None.


KEYS: Final = ("name", "use", "config")
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,15}|[0-9]{0,15}\.[0-9]{1,15})([eE][+-]?[0-9]{1,2})?")
_WORDS: Final = {"true": True, "false": False, "~": None, "null": None}


@dataclass(frozen=True)
class Wanted:
    """A plugin listed in the plugins file."""

    name: str
    use: str
    config: dict[str, Any] = field(default_factory=dict)


class BadPlugins(InvalidDocument):
    """An invalid plugins file; `problems` lists every error with its line."""

    code = "holdfast.metric_plugins.invalid"
    title = "The file of plugins cannot be used"


def parse(data: str | bytes, source: str) -> tuple[Wanted, ...]:
    """Parse a plugins file. BadPlugins lists every error."""
    reading = _Reading()
    return reading.whole(data, reading.plugins, functools.partial(BadPlugins.because, source))


class _Reading(Reading):
    def plugins(self, tree: Node | None) -> tuple[Wanted, ...]:
        if tree is None or (isinstance(tree, Scalar) and not tree.text.strip()):
            return ()  # an empty file lists no plugins
        fields = self.fields(tree, ("plugins",), needed=("plugins",))
        node = fields.get("plugins")
        if isinstance(node, Scalar) and not node.text.strip():
            return ()
        plugins: dict[str, Wanted] = {}
        for item in self.items(node, "plugins"):
            wanted = self._plugin(item)
            if wanted is not None and wanted.name in plugins:
                self.say(item.line, f"{wanted.name} is there twice: keep one of them")
            elif wanted is not None:
                plugins[wanted.name] = wanted
        return tuple(plugins.values())

    def _plugin(self, node: Node) -> Wanted | None:
        before = len(self.problems)
        fields = self.fields(node, KEYS, needed=("name", "use"))
        name, use = self._word(fields.get("name")), self._word(fields.get("use"))
        if name and not NAME.fullmatch(name):
            text = f"{quoted(name)} is no name: write a to z, digits, _ . and -, 64 at most"
            self.say(fields["name"].line, text)
        config = fields.get("config")
        if config is not None and not isinstance(config, Map):
            self.say(config.line, f"`config` is {shown(config)}: write {{name: value}}")
        if len(self.problems) > before:
            return None
        return Wanted(name, use, plain(config) if config is not None else {})

    def _word(self, node: Node | None) -> str:
        if node is None:
            return ""
        if isinstance(node, Scalar) and node.text.strip():
            return node.text.strip()
        self.say(node.line, f"{shown(node)} should be one word")
        return ""


def plain(node: Node) -> Any:
    """Convert a parsed node to Python values."""
    if isinstance(node, Map):
        return {key.text: plain(value) for key, value in node.pairs}
    if isinstance(node, List):
        return [plain(item) for item in node.items]
    return value(node.text)


def value(text: str) -> Any:
    """Convert a scalar of a plugin configuration to a Python value.

    >>> value("3"), value("0.5"), value("true"), value("~"), value("5m")
    (3, 0.5, True, None, '5m')
    """
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if any(mark in text for mark in ".eE") else int(text)
