# SPDX-License-Identifier: Apache-2.0
"""Every command that docs, help and messages name exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.cmd.client import HoldfastApp

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"(?:`|\$ |^  )holdfast ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", re.MULTILINE)


def texts() -> Iterator[tuple[Path, str]]:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))):
        yield page, page.read_text()
    for file in sorted((ROOT / "src" / "holdfast").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield file, node.value


def test_every_command_named_in_a_message_exists() -> None:
    manager, found, wrong = HoldfastApp().command_manager, set[str](), set[str]()
    names = [name for name, _ in manager]
    for path, text in texts():
        for words in NAMED.findall(text):
            found.add(words)
            try:
                manager.find_command(words.split())
            except ValueError:
                # `holdfast maintenance` names a group of commands
                if not any(name.startswith(f"{words} ") for name in names):
                    wrong.add(f"{path.relative_to(ROOT)}: holdfast {words}")
    assert not wrong, "\n".join(sorted(wrong))
    assert len(found) > 100


def test_nouns_are_singular() -> None:
    nouns = {name.split()[0] for name, _ in HoldfastApp().command_manager}
    assert {noun for noun in nouns if noun.endswith("s")} == {"status"}
