# SPDX-License-Identifier: Apache-2.0
"""tools/audit: the source and the packages are clean, and each of its checks can fail."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def audit() -> Any:
    loader = importlib.machinery.SourceFileLoader("audit", str(ROOT / "tools/audit"))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("audit", loader)  # type: ignore[arg-type]
    )
    loader.exec_module(module)
    return module


@pytest.mark.slow("bandit reads all of src, and every installed file is hashed")
def test_source_and_packages_are_clean_and_the_sbom_names_them(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tools/audit", tmp_path / "sbom.json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads((tmp_path / "sbom.json").read_text())
    assert (told["bomFormat"], told["metadata"]["component"]["name"]) == ("CycloneDX", "holdfast")
    assert {"falcon", "sqlalchemy"} <= {part["name"] for part in told["components"]}


def test_a_changed_or_unknown_package_is_named(audit: Any, tmp_path: Path) -> None:
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    # the hash of an empty file
    empty = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    (info / "WHEEL").write_text("Tag: py3-none-any\n")
    (info / "RECORD").write_text(f"thing.py,{empty},0\nthing-1.0.dist-info/RECORD,,\n")
    thing = PathDistribution(info)
    (tmp_path / "thing.py").write_text("")
    assert list(audit.changed(thing)) == []
    (tmp_path / "thing.py").write_text("import os\n")
    assert list(audit.changed(thing)) == ["thing: thing.py is not as installed"]
    assert "thing.pth belongs to no package" not in list(audit.added({"thing": thing}, tmp_path))
    (tmp_path / "thing.pth").write_text("import os\n")
    assert "thing.pth belongs to no package" in list(audit.added({"thing": thing}, tmp_path))
    (tmp_path / "thing.py").unlink()
    assert len(list(audit.changed(thing))) == 1
    lines = list(audit.hashes({"thing": thing}))
    assert audit.compared("thing", thing, lines) is True
    (info / "RECORD").write_text(f"thing.py,{empty[:-3]}abc,0\nthing-1.0.dist-info/RECORD,,\n")
    assert audit.compared("thing", PathDistribution(info), lines) is False
    assert audit.compared("other", thing, lines) is False
    (info / "WHEEL").write_text("Tag: cp311-cp311-manylinux_2_28_x86_64\n")
    assert audit.compared("thing", thing, lines) is False  # the known wheel is for any platform
    assert audit.compared("thing", thing, ["thing==1.0 cp311-cp311-macosx_11_0_arm64 x"]) is None
    assert audit.compared("thing", thing, []) is False
    (info / "WHEEL").write_text("Tag: cp311-cp311-linux_x86_64\n")  # compiled on this machine
    assert audit.compared("thing", thing, []) is None
    assert list(audit.hashes({"thing": thing})) == []
    assert list(audit.strangers({"thing": thing}, {"thing": "1.0"})) == []
    assert len(list(audit.strangers({"thing": thing}, {"thing": "1.1"}))) == 1
    assert len(list(audit.strangers({"thing": thing}, {}))) == 1
