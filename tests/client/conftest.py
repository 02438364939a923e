# SPDX-License-Identifier: Apache-2.0
"""A scripted server, and `holdfast …` run against it."""

from collections.abc import Iterator

import pytest
from test_client_fake import Fake, Run, clean_environment, runner


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    clean_environment(monkeypatch)
    server = Fake()
    monkeypatch.setenv("HOLDFAST_URL", server.url)
    yield server
    server.close()


@pytest.fixture
def holdfast(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    return runner(monkeypatch, capsys)
