# SPDX-License-Identifier: Apache-2.0
"""Code of metric plugins: find and load the class, list its callbacks, parse the plugins file.

    code = find("hot")                   # an entry point of holdfast.metric_plugins
    code = find("acme_hot:Hot")          # or a class of a module
    code = find("/etc/holdfast/hot.py")  # or a file, with :Class if it has several
    plugin = code.read()()
    calls = callbacks(plugin)

A file is loaded again on every read. A module is imported in the usual way; a reload imports
the module under another name beside the old module, which stays unchanged.
"""

import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, Final

from holdfast.model.errors import InvalidDocument, InvalidInput, NotFound
from holdfast.ports.metric_plugins import CALLBACKS, NAMESPACE
from holdfast.runtime.documents import List, Map, Node, Reading, Scalar, quoted, shown

_CLASS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True, slots=True)
class Callback:
    """A plugin method that the agent calls in every pass."""

    name: str
    call: Callable[..., Any]
    wants_ctx: bool


@dataclass(frozen=True, slots=True)
class Source:
    """Location of a plugin class: class `name` of a module or file.

    `name` is "" if the file has only one plugin class.
    """

    use: str
    module: str = ""
    path: str = ""
    name: str = ""

    def read(self, anew: bool = False) -> type:
        """Load the class.

        This runs foreign code, so the caller uses a thread that may be lost.
        """
        if self.path:
            module = _fresh(f"holdfast_metric_plugin_{_stem(self.path)}", self.path, self.use)
        elif anew:
            module = self._again()
        else:
            module = importlib.import_module(self.module)
        return _class(module, self.name, self.use)

    def _again(self) -> ModuleType:
        """Load the module again under another name."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            raise InvalidInput(f"{self.use} is no Python file that could be read anew: restart")
        return _fresh(self.module, spec.origin, self.use)


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
    entries = {one.name: one for one in importlib.metadata.entry_points(group=NAMESPACE)}
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
        found = os.stat(path)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInput(f"{path} is no file")
    if found.st_mode & stat.S_IWOTH:
        raise InvalidInput(f"anybody may write {path}, and we run it: chmod o-w it first")
    return Source(use, path=path, name=name)


def forget(kind: type) -> None:
    """Remove a reloaded module from `sys.modules` after its last use."""
    if _MARK in kind.__module__:
        sys.modules.pop(kind.__module__, None)


def callbacks(plugin: object) -> Sequence[Callback]:
    """List the callbacks of a plugin.

    InvalidInput if there are none, or a callback is not a plain method.
    """
    found = []
    for name in CALLBACKS:
        call = getattr(plugin, name, None)
        if call is None:
            continue
        if not callable(call) or inspect.iscoroutinefunction(call):
            raise InvalidInput(f"{name} is not a plain method: write `def {name}(self, d)`")
        found.append(Callback(name, call, _takes_two(name, call)))
    if not found:
        raise InvalidInput(f"it has nothing to call: write one of {', '.join(CALLBACKS)}")
    return found


def _takes_two(name: str, call: Callable[..., Any]) -> bool:
    """Tell whether a callback accepts `ctx`.

    The callback does if its second parameter is named `ctx` or is required.
    """
    try:
        known = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # written in C: call with `d` only
        return False
    places = [one for one in known if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    must = [one for one in places if one.default is one.empty]
    several = any(one.kind is one.VAR_POSITIONAL for one in known)
    if len(must) > 2 or not (places or several):
        raise InvalidInput(f"{name} takes d, or d and ctx: write `def {name}(self, d, ctx)`")
    return len(must) == 2 or (len(places) > 1 and places[1].name == "ctx")


#: Part of the name of a module that was loaded beside another.
_MARK: Final = "__read"


class _Anew(importlib.machinery.SourceFileLoader):
    """Loader without bytecode cache.

    Cached bytecode may belong to an older file with a timestamp of the same second.
    """

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _fresh(name: str, path: str, use: str) -> ModuleType:
    """Load a file under a unique name, in the same package, so that relative imports work."""
    unique = f"{name}{_MARK}{secrets.token_hex(4)}"
    spec = importlib.util.spec_from_file_location(unique, path, loader=_Anew(unique, path))
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{use}: {path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(unique, None)
        raise
    return module


def _class(module: ModuleType, name: str, use: str) -> type:
    """Return the named class of the module, or its only plugin class."""
    if name:
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part, None)
        if not inspect.isclass(found):
            raise NotFound(f"{use}: there is no class {name} in it")
        return found
    ours = [
        one
        for one in vars(module).values()
        if inspect.isclass(one)
        and one.__module__ == module.__name__
        and any(hasattr(one, callback) for callback in CALLBACKS)
    ]
    if len(ours) != 1:
        there = ", ".join(one.__name__ for one in ours) or "none"
        raise InvalidInput(f"{use}: of the classes that are plugins ({there}) name one, FILE:Class")
    return ours[0]


def _stem(path: str) -> str:
    return re.sub(r"\W", "_", os.path.basename(path).removesuffix(".py"))


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
        found: dict[str, Wanted] = {}
        for one in self.items(node, "plugins"):
            wanted = self._plugin(one)
            if wanted is not None and wanted.name in found:
                self.say(one.line, f"{wanted.name} is there twice: keep one of them")
            elif wanted is not None:
                found[wanted.name] = wanted
        return tuple(found.values())

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
        return [plain(one) for one in node.items]
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
    return float(text) if any(one in text for one in ".eE") else int(text)
