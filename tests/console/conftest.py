# SPDX-License-Identifier: Apache-2.0
"""Fixtures: Holdfast in this process behind a real HTTP server, and a Chromium per test process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.api.house import copy, template
from tests.console.browser import launch, opened
from tests.console.site import Site
from tests.servers.base import Missing

Open = Callable[..., AbstractContextManager[Page]]


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return template(tmp_path_factory.mktemp("template"))


@pytest.fixture(scope="session")
def browser(pytestconfig: pytest.Config) -> Iterator[Browser]:
    if pytestconfig.getoption("--no-servers"):
        pytest.skip("starts a browser: `make test` runs it")
    with sync_playwright() as playwright:
        try:
            made = launch(playwright)
        except Missing as missing:
            if os.environ.get("CI") == "true":
                pytest.fail(str(missing), pytrace=False)
            pytest.skip(str(missing))
        yield made
        made.close()


@pytest.fixture(scope="module")
def site(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site shared by the tests of a file, with noauth."""
    with Site(copy(furnished, tmp_path_factory.mktemp("site") / "state")) as made:
        yield made


@pytest.fixture
def build(furnished: Path, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Return a function that builds a site for a single test: `build(config)`."""
    numbers = count(1)
    with ExitStack() as stack:

        def make(config: str = "", **changes: Any) -> Site:
            state = copy(furnished, tmp_path / f"state-{next(numbers)}")
            return stack.enter_context(Site(state, config, **changes))

        yield make


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    """A browser page on the shared site, with live updates."""
    site.has_room()
    with opened(browser, site.url) as made:
        yield made
