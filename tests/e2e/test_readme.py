# SPDX-License-Identifier: Apache-2.0
"""The quick start of README.md, typed as it is printed, against `holdfast up`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.commands import typed
from tests.docs.pages import ROOT, blocks
from tests.e2e.deployment import all_in_one
from tests.processes import PATIENCE_S, eventually, script

TOOL = ".venv/bin/holdfast"
#: A command imports the client, and waits for a lease or a recovery of seconds.
COMMAND_S = 3 * PATIENCE_S


def run(line: str, url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line.replace(TOOL, str(script("holdfast")))],
        env={**os.environ, "HOLDFAST_URL": url},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )


@pytest.mark.slow("six commands one after the other, and a recovery")
def test_the_quick_start_of_the_readme_works(tmp_path: Path) -> None:
    start = next(block for block in blocks(ROOT / "README.md") if f"$ {TOOL} " in block.text)
    lines = list(typed(start.text, prompts=True))
    assert len(lines) >= 5
    said = ""
    with all_in_one(tmp_path) as (_program, client):
        for line in lines:
            for inner in re.findall(r"\$\(([^()]*)\)", line):
                # nobody types faster than the manager opens an incident; a program does
                eventually(lambda inner=inner: run(inner, client.url, tmp_path).stdout.strip())
            done = run(line, client.url, tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            said += done.stdout + done.stderr
    for name in re.findall(r"^\| (\S+)", start.text, re.MULTILINE):
        assert f"| {name} " in said
    for words in ("lost power; its servers are dead", "): ACTIVE", "recovered: "):
        assert words in said
