# SPDX-License-Identifier: Apache-2.0
"""What should run on a host, over the wire: `{url}/holdfast/v1/hosts/{host}/expected`."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from holdfast.client import errors
from holdfast.client.client import Client
from holdfast.client.kept import Kept
from holdfast.client.wire import path
from holdfast.model.errors import InvalidInput, NotFound, Unavailable
from holdfast.model.expected import STATES, Expectation, Expected


class HoldfastExpected:
    """`ports.expected.ExpectedGuests` by /holdfast/v1; one thread at a time."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._client = Kept(connect)

    def expected(self, host: str, also: Sequence[str] = ()) -> Expectation:
        where = path("holdfast", "v1", "hosts", host, "expected")
        query = {"also": ",".join(also)} if also else {}
        try:
            return _read(self._client.call("GET", where, query=query, key="expected"))
        except errors.NotFound as error:
            raise NotFound(error.message) from error
        except (errors.BadRequest, errors.Forbidden) as error:
            raise InvalidInput(error.message) from error
        except errors.ClientError as error:
            raise Unavailable(str(error)) from error

    def close(self) -> None:
        self._client.close()


def _read(said: Any) -> Expectation:
    """Unavailable if it makes no sense: half an answer would be taken for missing servers."""
    try:
        servers = tuple(
            Expected(
                str(one["id"]).lower(), str(one["name"]), _state(one["state"]), str(one["why"])
            )
            for one in said["servers"]
        )
        return Expectation(str(said["host"]), datetime.fromisoformat(said["at"]), servers)
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"what should run here was not answered in our words: {error}") from error


def _state(word: Any) -> str:
    if word not in STATES:
        raise ValueError(f"{word!r} is no state")
    return str(word)
