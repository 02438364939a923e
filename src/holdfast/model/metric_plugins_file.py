# SPDX-License-Identifier: Apache-2.0
"""Files that name the metric plugins of a host, read so that every problem is named with its line.

    plugins:
      - {name: noisy, use: noisy_neighbour, config: {steal_ratio: 0.2}}
      - {name: gpu, use: "acme_gpu:Temperature"}
      - {name: mine, use: /etc/holdfast/plugins/mine.py}

`use` is an entry point of holdfast.metric_plugins, module:Class, or a file of Python. In `config`
what looks like a number is one, true and false are what they say, and ~ is None.
"""

import functools
import re
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.model.matrix import BadStrategy
from holdfast.model.yaml_fields import Reading, quoted, shown
from holdfast.model.yaml_lines import List, Map, Node, Word

KEYS: Final = ("name", "use", "config")
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,15}|[0-9]{0,15}\.[0-9]{1,15})([eE][+-]?[0-9]{1,2})?")
_WORDS: Final = {"true": True, "false": False, "~": None, "null": None}


@dataclass(frozen=True)
class Wanted:
    """A plugin that there shall be."""

    name: str
    use: str
    config: dict[str, Any] = field(default_factory=dict)


class BadPlugins(BadStrategy):
    """A file of plugins that cannot be used; `problems` are all that is wrong with it, by line."""

    code = "holdfast.metric_plugins.invalid"
    title = "The file of plugins cannot be used"


def parse(data: str | bytes, source: str) -> tuple[Wanted, ...]:
    """The plugins, in their order, or BadPlugins with all that is wrong."""
    reading = _Reading()
    return reading.whole(data, reading.plugins, functools.partial(BadPlugins.because, source))


class _Reading(Reading):
    def plugins(self, tree: Node | None) -> tuple[Wanted, ...]:
        if tree is None or (isinstance(tree, Word) and not tree.text.strip()):
            return ()  # an empty file has none
        fields = self.fields(tree, ("plugins",), needed=("plugins",))
        node = fields.get("plugins")
        if isinstance(node, Word) and not node.text.strip():
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
        if isinstance(node, Word) and node.text.strip():
            return node.text.strip()
        self.say(node.line, f"{shown(node)} should be one word")
        return ""


def plain(node: Node) -> Any:
    """As Python has it."""
    if isinstance(node, Map):
        return {key.text: plain(value) for key, value in node.pairs}
    if isinstance(node, List):
        return [plain(one) for one in node.items]
    return value(node.text)


def value(text: str) -> Any:
    """A word of a configuration.

    >>> value("3"), value("0.5"), value("true"), value("~"), value("5m")
    (3, 0.5, True, None, '5m')
    """
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if any(one in text for one in ".eE") else int(text)
