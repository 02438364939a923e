# SPDX-License-Identifier: Apache-2.0
"""What should run on a host, as it comes over the wire: a whole answer, or none."""

from __future__ import annotations

from typing import Any

import pytest
from test_client_fake import Fake

from holdfast.client.client import Client
from holdfast.client.reports import HoldfastExpected
from holdfast.model.errors import HoldfastError, InvalidInput, NotFound, Unavailable
from holdfast.model.observation import Expected

WHERE = "GET /holdfast/v1/hosts/cmp-7/expected"
ONE = {"id": "A-1", "name": "web", "state": "runs", "why": "it is ACTIVE"}


def answer(*servers: Any, **more: Any) -> dict[str, Any]:
    said = {"host": "cmp-7", "at": "2026-11-16T12:00:00+00:00", "servers": list(servers)}
    return {"expected": said | more}


def ask(fake: Fake, *also: str) -> tuple[Expected, ...]:
    asked = HoldfastExpected(lambda: Client(fake.url, retries=0))
    try:
        return asked.expected("cmp-7", also).servers
    finally:
        asked.close()


def test_expected_servers_have_the_names_and_states_of_the_cloud(fake: Fake) -> None:
    fake.says(WHERE, (200, answer(ONE)))
    assert ask(fake) == (Expected("a-1", "web", "runs", "it is ACTIVE"),)
    assert ask(fake, "b", "c")
    assert [one["query"] for one in fake.asked] == ["", "also=b%2Cc"]


@pytest.mark.parametrize(
    "said",
    [
        answer(ONE, {"id": "x"}),
        answer({**ONE, "state": "dances"}),
        answer(None),
        answer(at="yesterday"),
        {"expected": {"host": "cmp-7"}},
        {"expected": []},
        {"servers": []},
        b"<html>",
    ],
)
def test_a_malformed_answer_is_unavailable(fake: Fake, said: Any) -> None:
    fake.says(WHERE, (200, said))
    with pytest.raises(Unavailable):
        ask(fake)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, NotFound),
        (403, InvalidInput),
        (400, InvalidInput),
        (401, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
        (0, Unavailable),
    ],
)
def test_a_refusal_becomes_an_error_of_holdfast(
    fake: Fake, status: int, error: type[HoldfastError]
) -> None:
    fake.says(WHERE, (status, {"errors": [{"detail": "no", "code": "x"}]}))
    with pytest.raises(error):
        ask(fake)
