# SPDX-License-Identifier: Apache-2.0
"""Addresses of the contract may begin with the caller's project: /instance-ha/v1/PROJECT/segments.

The project is taken out before the route is looked for, and compared once it is known who is
asking. It is written in hexadecimal digits and dashes, which no noun of the contract is.
"""

import re
from typing import Any

import falcon

from holdfast.model.errors import InvalidInput

_NAMED = re.compile(r"(/instance-ha/v1)/([0-9a-f-]+)(?=/|$)")


class Middleware:
    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        named = _NAMED.match(req.path)
        if named is not None:
            req.context.named_project = named[2]
            req.path = named[1] + req.path[named.end() :]

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, _resource: Any, _params: Any
    ) -> None:
        named = getattr(req.context, "named_project", None)
        caller = getattr(req.context, "caller", None)
        if named is not None and caller is not None and named != caller.project_id:
            raise InvalidInput(
                f"Malformed request URL: URL's project_id '{named[:64]}' doesn't match"
                f" Context's project_id '{caller.project_id}'"
            )
