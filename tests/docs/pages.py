# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation: code blocks, code spans, links and headings."""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
_FENCE = re.compile(r"^( *)```(.*?)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """A part of a page, with its line."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Block(Piece):
    """A fenced block. The word after the language, as in ```yaml users.yaml, names its kind."""

    language: str
    kind: str

    __str__ = Piece.__str__


def blocks(page: Path) -> Iterator[Block]:
    whole = page.read_text()
    for found in _FENCE.finditer(whole):
        language, _, kind = found[2].strip().partition(" ")
        line = whole.count("\n", 0, found.start()) + 1
        yield Block(page, line, textwrap.dedent(found[3]), language, kind)


def prose(page: Path) -> str:
    """Return the page with its fenced blocks blanked; line numbers stay."""
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text())


def pieces(page: Path, pattern: str) -> Iterator[Piece]:
    """Yield the first group of each match outside of fenced blocks."""
    whole = prose(page)
    for found in re.finditer(pattern, whole):
        yield Piece(page, whole.count("\n", 0, found.start()) + 1, found[1])


def fragments(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        number = next(n for n in range(len(found) + 1) if _numbered(slug, n) not in found)
        found.add(_numbered(slug, number))
    return found


def _numbered(slug: str, number: int) -> str:
    return f"{slug}-{number}" if number else slug


def _tool(name: str) -> Any:
    """Import a program of tools/, which has no suffix."""
    loader = SourceFileLoader(f"tools_{name}", str(ROOT / "tools" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up there
    loader.exec_module(module)
    return module


reference = _tool("reference")
