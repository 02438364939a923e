# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md is a true map: the files of its walks exist and are counted, and its table
has every package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "holdfast"
#: The most files of each walk.
WALKS = {
    "Lease POST to the cloud call": 27,
    "Cut link to evacuation": 43,
    "Guest crash to restart": 27,
    "Sample to alarm": 30,
}
#: Part of each walk whose report passes the agent's outbox.
REPORT = "Report to the database"


def section(title: str) -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    found = re.search(rf"^##+ {title}\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    assert found, f"ARCHITECTURE.md has no section {title!r}"
    return found[1]


def files_of(title: str) -> set[str]:
    files = set(re.findall(r"^\d+\. `([^`]+)`", section(title), flags=re.MULTILINE))
    return files | files_of(REPORT) if "agent/outbox.py" in files and title != REPORT else files


@pytest.mark.parametrize(("title", "most"), WALKS.items())
def test_every_file_of_a_walk_exists_and_the_page_counts_them(title: str, most: int) -> None:
    files = files_of(title)
    assert 5 < len(files) <= most
    assert [name for name in files if not (SOURCE / name).is_file()] == []
    (counted,) = re.findall(rf"^\| {title} \| (\d+) \|", section("Walks"), re.M | re.I)
    assert int(counted) == len(files)


def test_the_table_of_packages_is_complete() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    named = set(re.findall(r"^\| `([a-z]+)/`", text, flags=re.MULTILINE))
    assert packages - named == set()
    assert named - packages == set()
