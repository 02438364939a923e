# SPDX-License-Identifier: Apache-2.0
"""A real Chromium (Debian's): a page that fails the test on script errors, and axe-core checks."""

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

#: Chromium as root has no sandbox, and must not call servers of its vendor.
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: The timeout of every wait, for a busy machine.
PATIENCE_MS = 1000 * PATIENCE_S
#: Two screens cover both themes and both layouts.
SCREENS = [("light", 1280), ("dark", 375)]
#: The folder of screenshots.
PICTURES = Path(__file__).parents[2] / ".pytest_cache" / "pictures"


def launch(playwright: Playwright) -> Browser:
    """Start Chromium; raises Missing if Chromium is not installed."""
    found = shutil.which("chromium")
    if found is None:
        raise Missing("chromium", "chromium")
    return playwright.chromium.launch(executable_path=found, args=OPTIONS, timeout=PATIENCE_MS)


@contextmanager
def opened(browser: Browser, base_url: str, **how: Any) -> Iterator[Page]:
    """Open a page in a new context without cookies; a script error fails the test."""
    how.setdefault("viewport", {"width": 1280, "height": 800})
    context = browser.new_context(base_url=base_url, **how)
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)  # which goes by a time of its own
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console", lambda message: complaints.append(message.text) if _is_bad(message) else None
    )
    try:
        yield page
        assert not complaints, complaints
    finally:
        context.close()


def _is_bad(message: Any) -> bool:
    """Return whether a console message is an error, other than an expected 4xx answer."""
    return message.type == "error" and "Failed to load resource" not in message.text


def picture(page: Page, name: str) -> Path:
    """Save a screenshot."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    page.screenshot(path=str(path))
    return path


def check_for_everybody(page: Page) -> None:
    """Check the page with axe-core: no serious violation."""
    violations = Axe().run(page).response["violations"]
    serious = [v for v in violations if v["impact"] in ("serious", "critical")]
    report = [(v["id"], [node["html"] for node in v["nodes"]][:3]) for v in serious]
    assert not report, report
