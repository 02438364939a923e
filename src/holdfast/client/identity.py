# SPDX-License-Identifier: Apache-2.0
"""Keystone's own API, as far as registering Holdfast needs it: look, write and say so."""

from collections.abc import Callable
from typing import Any

from holdfast.client import keystone
from holdfast.client.errors import ClientError, Conflict, Forbidden

_JSON = {"Accept": "application/json"}


class Identity:
    """Keystone's own API, as far as we need it. A dry run looks, and says what it would write."""

    def __init__(self, session: Any, *, dry_run: bool, say: Callable[[str], None]) -> None:
        from keystoneauth1 import adapter, plugin

        self.session = session
        place: Any = plugin.AUTH_INTERFACE  # where we log in; the catalog may say less
        self._adapter: Any = adapter.Adapter(
            session, service_type="identity", interface=place, version="3"
        )
        self._dry_run = dry_run
        self._say = say

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        from keystoneauth1 import exceptions

        options = {"json": body} if body is not None else {}
        try:
            answer = self._adapter.request(path, method, params=query, headers=_JSON, **options)
        except exceptions.Forbidden as error:
            raise Forbidden(
                f"Keystone refuses {method} {path}, which takes the role admin"
            ) from error
        except exceptions.Conflict as error:
            raise Conflict(f"Keystone refuses {method} {path}: {error}") from error
        except (exceptions.BadRequest, exceptions.NotFound) as error:  # a password too short, say
            raise ClientError(f"Keystone refuses {method} {path}: {error}") from error
        except exceptions.ClientException as error:
            raise keystone.translated(error) from error
        return answer.json() if answer.content else {}

    def find(self, noun: str, **query: str) -> list[dict[str, Any]]:
        """All of a kind that match."""
        return list(self.call("GET", f"/{noun}", **query)[noun])

    def write(self, what: str, did: str, method: str, path: str, body: Any = None) -> Any:
        """Change something and say so; {} in a dry run."""
        answer = {} if self._dry_run else self.call(method, path, body)
        self._say(f"{what}: {'would be ' if self._dry_run else ''}{did}")
        return answer

    def right(self, what: str) -> None:
        self._say(f"{what}: as it should be")
