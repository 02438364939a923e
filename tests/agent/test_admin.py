# SPDX-License-Identifier: Apache-2.0
"""Commands by name: what is asked, answered and refused, as lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.agent.admin import Admin, Items
from holdfast.model.errors import Conflict


@pytest.fixture
def admin() -> Admin:
    made = Admin()
    made.add({"echo": dict, "count": count, "no": refuse, "broken": break_down})
    return made


def count(args: Mapping[str, Any]) -> Items:
    try:
        for number in range(args["to"]):
            yield {"number": number}
            yield None
    finally:
        args.get("ended", []).append("yes")


def refuse(args: Mapping[str, Any]) -> Mapping[str, Any]:
    raise Conflict("not now")


def break_down(args: Mapping[str, Any]) -> Mapping[str, Any]:
    raise ZeroDivisionError("ours")


def asked(admin: Admin, line: bytes) -> list[Any]:
    return [None if one is None else json.loads(one) for one in admin.answer(line)]


def test_one_question_has_one_answer(admin: Admin) -> None:
    assert asked(admin, b'{"command": "echo", "args": {"a": 1}}') == [{"answer": {"a": 1}}]
    assert asked(admin, b'{"command": "echo"}') == [{"answer": {}}]


def test_a_command_that_goes_on_gives_items_and_an_end(admin: Admin) -> None:
    said = asked(admin, b'{"command": "count", "args": {"to": 2}}')
    assert said == [{"item": {"number": 0}}, None, {"item": {"number": 1}}, None, {"end": {}}]


def test_who_leaves_early_leaves_nothing_behind() -> None:
    ended: list[str] = []
    admin = Admin()
    admin.add({"count": lambda args: count({"to": 9, "ended": ended})})
    answer = admin.answer(b'{"command": "count"}')
    next(answer)
    answer.close()
    assert ended == ["yes"]


def test_what_is_refused_says_why(admin: Admin) -> None:
    (said,) = asked(admin, b'{"command": "no"}')
    assert said == {"error": {"code": "holdfast.state.conflict", "message": "not now"}}


def test_the_refusal_of_an_unknown_command_lists_the_commands(admin: Admin) -> None:
    (said,) = asked(admin, b'{"command": "what"}')
    assert said["error"]["code"] == "holdfast.object.notfound"
    assert "there are broken, commands, count, echo, no" in said["error"]["message"]
    assert asked(admin, b'{"command": "commands"}')[0]["answer"]["commands"] == admin.names


def test_two_commands_of_one_name_are_a_defect(admin: Admin) -> None:
    with pytest.raises(ValueError, match="echo"):
        admin.add({"echo": dict})


def test_a_defect_is_logged_and_the_client_gets_an_error(
    admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    (said,) = asked(admin, b'{"command": "broken"}')
    assert said["error"]["code"] == "holdfast.internal"
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\xff\xfe",
        b"GET / HTTP/1.1",
        b"[]",
        b'"status"',
        b'{"command": 7}',
        b'{"command": "echo", "args": []}',
        b"[" * 100_000,
        b'{"command": "' + b"x" * 10_000 + b'"}',
    ],
)
def test_nonsense_is_answered_with_a_short_sentence(admin: Admin, line: bytes) -> None:
    (said,) = asked(admin, line)
    assert said["error"]["code"] in ("holdfast.request.invalid", "holdfast.object.notfound")
    assert 10 < len(said["error"]["message"]) < 300
