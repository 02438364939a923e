# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/errors/CODE: the meaning of an error code; target of the help links of errors."""

from typing import Any

from holdfast.api.request import Request, Response
from holdfast.model.errors import NotFound, by_code

_FIELDS = ("code", "status", "title", "meaning", "advice")
VIEW: dict[str, Any] = {
    "type": "object",
    "required": list(_FIELDS),
    "properties": {name: {"type": "string"} for name in _FIELDS} | {"status": {"type": "integer"}},
}


def show(request: Request) -> Response:
    cls = by_code().get(request.path["code"])
    if cls is None:
        raise NotFound(f"no error code {request.path['code']}")
    body = {
        "code": cls.code,
        "status": cls.status,
        "title": cls.title,
        "meaning": (cls.__doc__ or cls.title).strip(),
        "advice": cls.advice,
    }
    return Response({"error": body})
