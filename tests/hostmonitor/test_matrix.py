# SPDX-License-Identifier: Apache-2.0
"""The HA matrix file is followed while the monitor runs; a bad one changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.hostmonitor.monitor import MatrixFile
from holdfast.model.errors import InvalidInput

NETWORKS = ("manage", "storage")
FIRST = """networks: [manage, storage]
rules:
  - {when: {storage: down}, do: recovery}
otherwise: none
"""
DOWN = {"manage": "up", "storage": "down"}


def test_a_new_file_is_in_force_at_once_and_a_bad_file_is_named_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(FIRST)
    followed = MatrixFile(str(path), NETWORKS)
    assert not followed.follow()
    path.write_text(FIRST.replace("recovery", "alert"))
    assert followed.follow()
    assert followed.ha_matrix.answer(DOWN).action == "alert"
    path.write_text(FIRST.replace("storage: down", "disk: down"))
    assert not followed.follow()
    assert followed.ha_matrix.answer(DOWN).action == "alert"
    assert "line 3" in followed.problem
    assert "disk" in caplog.text
    assert "stays in force" in caplog.text
    path.unlink()
    assert not followed.follow()
    assert followed.ha_matrix.answer(DOWN).action == "alert"
    path.write_text(FIRST)
    assert followed.follow()
    assert followed.problem == ""


def test_rows_missing_in_the_file_are_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(
        "sequence: [manage, storage]\nmatrix: [{health: [up, down], action: [recovery]}]"
    )
    followed = MatrixFile(str(path), NETWORKS)
    assert followed.ha_matrix.answer(DOWN).action == "recovery"
    assert "[down, up], [down, down]" in caplog.text
    caplog.clear()
    path.write_text(FIRST)
    assert followed.follow()
    assert "left out" not in caplog.text


def test_without_an_earlier_matrix_a_bad_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        MatrixFile(str(tmp_path / "none.yaml"), NETWORKS)
    path = tmp_path / "matrix.yaml"
    path.write_text("rules: 7\n")
    with pytest.raises(InvalidInput, match="line 1"):
        MatrixFile(str(path), NETWORKS)
