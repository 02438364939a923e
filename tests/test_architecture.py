# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md is a true map: the files of its walks exist, and its table has every package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "holdfast"
#: Walks and the most files that each may pass.
WALKS = {
    "Lease POST to the cloud call": 25,
    "Cut link to evacuation": 35,
    "Guest crash to restart": 25,
    "Sample to alarm": 25,
}


def section(title: str) -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    _, found, rest = text.partition(f"### {title}\n")
    assert found, f"ARCHITECTURE.md has no section {title!r}"
    return re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize(("title", "most"), WALKS.items())
def test_every_file_of_a_walk_exists(title: str, most: int) -> None:
    files = re.findall(r"^\d+\. `([^`]+)`", section(title), flags=re.MULTILINE)
    assert 5 < len(set(files)) <= most
    assert [name for name in files if not (SOURCE / name).is_file()] == []


def test_the_table_of_packages_is_complete() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    named = set(re.findall(r"^\| `([a-z]+)/`", text, flags=re.MULTILINE))
    assert packages - named == set()
    assert named - packages == set()
