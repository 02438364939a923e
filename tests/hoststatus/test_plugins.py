# SPDX-License-Identifier: Apache-2.0
"""Monitors of somebody else's, as docs/concepts/monitors.md says: its class, to the letter."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from stevedore import ExtensionManager

from holdfast import conf as configuration
from holdfast.hoststatus import poll
from holdfast.hoststatus.push import report
from holdfast.hoststatus.status import DOWN, UP
from tests.hoststatus.site import Count, Site

PAGE = Path(__file__).parents[2] / "docs/concepts/monitors.md"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Puts a module and its entry point where pip would."""

    def made(name: str, code: str, target: str) -> None:
        site = tmp_path / "site"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{target.partition(':')[0]}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[holdfast.monitors]\n{name} = {target}\n")
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.setattr(ExtensionManager, "ENTRY_POINT_CACHE", {})  # as in a new process

    return made


def test_a_third_party_adds_a_monitor_with_one_class_and_one_entry_point(
    install: Callable[[str, str, str], None], build: Callable[..., Site]
) -> None:
    section = PAGE.read_text().partition("## A monitor of your own")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (target,) = re.findall(r'power = "(.*?)"', section)
    install("power", code, target)
    found, broken = poll.load(configuration.load([], []))
    assert broken == {}
    assert [one.name for one in found] == ["compute", "guests", "power", "usage"]
    site = build(found[2], enabled=["compute", "power"])
    site.enrol("cmp-1", "cmp-2")
    site.run(40)
    assert site.states() == {"cmp-1": UP, "cmp-2": DOWN}
    assert site.free() == {"cmp-1"}
    (failed,) = [one for one in site.store.host_status.watched() if one.name == "cmp-2"]
    assert failed.status.why == "acme:power says down: 0 V"


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("bad_import", "import nothing_of_that_name", "ModuleNotFoundError"),
        (
            "bad_start",
            "class Bad:\n    def __init__(self, conf): raise OSError('no licence')",
            "no licence",
        ),
        ("bad_shape", "class Bad:\n    name = 'bad'\n    def __init__(self, conf): pass", "topics"),
    ],
)
def test_a_broken_monitor_is_reported_and_the_others_go_on(
    install: Callable[[str, str, str], None],
    caplog: pytest.LogCaptureFixture,
    name: str,
    code: str,
    why: str,
) -> None:
    install("bad", code, f"{name}:Bad")
    found, broken = poll.load(configuration.load([], []))
    assert [one.name for one in found] == ["compute", "guests", "usage"]
    assert why in broken["bad"]
    count = Count()
    report(found, broken, ["compute", "bad", "unheard-of"], count)
    assert count.failures == {("bad", "not loaded"): 1}
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.name == "holdfast.hoststatus.push"
    ]
    assert "monitor bad cannot be loaded" in lines[0]
    there = "which is not installed; there are: compute, guests, usage"
    assert lines[1].endswith(f"names unheard-of, {there}")
