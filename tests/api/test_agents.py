# SPDX-License-Identifier: Apache-2.0
"""Agents come by a token of their own, and speak for their own host only."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.api import agents
from holdfast.model.errors import InvalidInput, Unauthorized, Unavailable

SECRET, OLD = b"s" * 40, b"o" * 40


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n" + OLD + b"\n")
    return str(path)


def test_a_token_is_good_for_its_host_however_that_is_spelt(file: str) -> None:
    assert agents.host_of(agents.token("CMP-7", SECRET), file) == "cmp-7"
    assert agents.host_of(agents.token("cmp-7", OLD), file) == "cmp-7"


@pytest.mark.parametrize(
    "shown", ["", "cmp-7", "cmp-7:", "cmp-7:AAAA", ":", "cmp-7:\u00e4", "a b:c"]
)
def test_what_is_no_token_lets_nobody_in(file: str, shown: str) -> None:
    with pytest.raises(Unauthorized):
        agents.host_of(shown, file)


def test_the_token_of_one_host_is_none_of_another(file: str) -> None:
    _name, _, sealed = agents.token("cmp-7", SECRET).partition(":")
    with pytest.raises(Unauthorized):
        agents.host_of(f"cmp-8:{sealed}", file)


def test_a_secret_that_is_gone_takes_its_tokens_with_it(file: str) -> None:
    old = agents.token("cmp-7", OLD)
    Path(file).write_bytes(SECRET)
    with pytest.raises(Unauthorized):
        agents.host_of(old, file)


def test_without_a_usable_secret_nobody_is_let_in(tmp_path: Path) -> None:
    with pytest.raises(Unauthorized, match="not set"):
        agents.host_of(agents.token("cmp-7", SECRET), None)
    with pytest.raises(Unavailable, match="No such file"):
        agents.host_of(agents.token("cmp-7", SECRET), str(tmp_path / "none"))
    short = tmp_path / "short"
    short.write_text("short\n")
    with pytest.raises(InvalidInput, match="32 characters"):
        agents.secrets(str(short))
