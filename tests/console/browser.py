# SPDX-License-Identifier: Apache-2.0
"""A real Chromium (Debian's), and what tests of pages want of it: a page that fails the test when
its scripts fail, and the judgement of axe-core."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Playwright, expect

from tests.processes import PATIENCE_S
from tests.servers.base import Missing

#: Without them it would look for its makers' servers, and needs a sandbox that root has not.
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: Whatever a page is waited for: beside a busy machine.
PATIENCE_MS = 1000 * PATIENCE_S
#: Colours go by the theme and places by the width: two screens show all of both.
SCREENS = [("light", 1280), ("dark", 375)]
#: Where screenshots of a run are kept.
PICTURES = Path(__file__).parents[2] / ".pytest_cache" / "pictures"


def launch(playwright: Playwright) -> Browser:
    """Missing where it is not installed."""
    found = shutil.which("chromium")
    if found is None:
        raise Missing("chromium", "chromium")
    return playwright.chromium.launch(executable_path=found, args=OPTIONS, timeout=PATIENCE_MS)


@contextmanager
def opened(browser: Browser, base_url: str, **how: Any) -> Iterator[Page]:
    """A page in a window of its own, without cookies; what its scripts complain of is an error."""
    how.setdefault("viewport", {"width": 1280, "height": 800})
    context = browser.new_context(base_url=base_url, **how)
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)  # which goes by a time of its own
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if _is_bad(said) else None)
    try:
        yield page
        assert not complaints, complaints
    finally:
        context.close()


def _is_bad(said: Any) -> bool:
    """A policy that was broken, a script that failed; not the answer 4xx that a test provokes."""
    return said.type == "error" and "Failed to load resource" not in said.text


def picture(page: Page, name: str) -> Path:
    """A screenshot, kept."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    page.screenshot(path=str(path))
    return path


def check_for_everybody(page: Page) -> None:
    """axe-core finds nothing serious."""
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    said = [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in serious]
    assert not said, said
