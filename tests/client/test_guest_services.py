# SPDX-License-Identifier: Apache-2.0
"""`holdfast guest service check`, which asks no server and touches no service."""

from __future__ import annotations

import json
from pathlib import Path

from test_client_fake import Fake, Run


def test_what_would_be_watched_is_listed(holdfast: Run, fake: Fake, tmp_path: Path) -> None:
    file = tmp_path / "process_list.yaml"
    file.write_text(
        "- process_name: /usr/sbin/libvirtd\n"
        "  pre_restart_command: logger down\n"
        "  restart_command: systemctl restart libvirtd\n"
        "  run_as_root: True\n"
        "- {process_name: sshd}\n"
    )
    ran = holdfast("guest", "service", "check", str(file), "-f", "json")
    assert ran.code == 0
    first, second = json.loads(ran.out)
    assert (first["line"], first["name"]) == (1, "libvirtd")
    assert first["known_by"] == "process /usr/sbin/libvirtd"
    assert first["restart"] == "logger down; then systemctl restart libvirtd (as root)"
    assert second["restart"] == "never: watched only"
    assert fake.asked == []


def test_all_that_is_wrong_is_listed_with_its_lines(holdfast: Run, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("services:\n  - {name: a, restart: systemctl restart a}\n  - {unit: b}\n")
    ran = holdfast("guest", "service", "check", str(file))
    assert ran.code == 1
    assert f"{file}:2: `restart` is 'systemctl restart a': write its words as a list" in ran.err
    assert f"{file}:3: `name` is missing" in ran.err
    missing = holdfast("guest", "service", "check", str(tmp_path / "none"))
    assert (missing.code, "cannot read" in missing.err) == (1, True)
