# SPDX-License-Identifier: Apache-2.0
"""The generated pages of docs/reference are those of the code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from holdfast.alarms.central import STATE_AFTER
from holdfast.leases import events as lease_events
from holdfast.model import observation, state_machines
from holdfast.ports.publishers import EVENTS
from tests.docs.pages import ROOT, reference

#: Calls that publish an event under a name of their own; the others follow from a status.
PUBLISHED = r'(?:announce|\.incident)\(\s*"([a-z_.]+)"'


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    wanted = reference.PAGES[name]()
    found = (ROOT / reference.FOLDER / name).read_text()
    assert found == wanted, f"docs/reference/{name} is stale: run tools/reference"


def test_a_stale_page_is_named(tmp_path: Path) -> None:
    shutil.copytree(ROOT / reference.FOLDER, tmp_path / reference.FOLDER)
    page = tmp_path / reference.FOLDER / "states.md"
    page.write_text(page.read_text().replace("    ACTIVE --> UPDATING\n", ""))
    (tmp_path / reference.FOLDER / "errors.md").unlink()
    assert reference.stale(tmp_path) == ["docs/reference/errors.md", "docs/reference/states.md"]


def test_every_published_event_is_in_the_catalogue() -> None:
    """Names in the code, names that follow from a status, and no other names."""
    source = "".join(path.read_text() for path in (ROOT / "src/holdfast").rglob("*.py"))
    closed = [status for status, next_ in state_machines.INCIDENT.items() if not next_]
    seen = {
        *lease_events.ORDER,
        *re.findall(PUBLISHED, source),
        *(f"incident.{status}" for status in (*closed, "failed")),
        *(f"alarm.{event}" for event in STATE_AFTER),
        *(
            observation.announced(kind, state)
            for kind, states in observation.STATES.items()
            for state in states
        ),
        *re.findall(r'^ALERT = "([a-z.]+)"', source, re.MULTILINE),
    }
    assert set(EVENTS) == seen - {""}
