# SPDX-License-Identifier: Apache-2.0
"""docs/contribute/first-changes.md names files that exist, and as few as promised."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, prose

PAGE = ROOT / "docs" / "contribute" / "first-changes.md"
SOURCE = ROOT / "src" / "holdfast"
#: Changes and the most files of src/ that each may touch.
CHANGES = {"A lease carries a description": 6, "A third fence driver": 2}


def section(title: str) -> str:
    _, found, rest = prose(PAGE).partition(f"## {title}\n")
    assert found, f"{PAGE.name} has no section {title!r}"
    return re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize(("title", "most"), CHANGES.items())
def test_a_change_touches_few_files_and_every_file_exists(title: str, most: int) -> None:
    touched = re.findall(r"^\d+\. `([^`]+)`", section(title), flags=re.MULTILINE)
    assert 0 < len(touched) <= most
    assert [path for path in touched if not (SOURCE / path).exists()] == []


@pytest.mark.parametrize("title", CHANGES)
def test_every_other_path_of_a_change_exists(title: str) -> None:
    paths = re.findall(r"`((?:\w+/)+[\w.]*)`", section(title))
    missing = [path for path in paths if not any((at / path).exists() for at in (SOURCE, ROOT))]
    assert missing == []


def test_a_new_file_does_not_exist_yet() -> None:
    new = re.findall(r"`((?:\w+/)+)`: a new file, `([^`]+)`", prose(PAGE))
    assert len(new) == len(CHANGES)
    assert [name for folder, name in new if (SOURCE / folder / name).exists()] == []
