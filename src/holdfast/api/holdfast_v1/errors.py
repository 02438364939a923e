# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/errors/CODE: what an error code means, where every error's help link points."""

from holdfast.api.ask import Ask, Reply
from holdfast.model.errors import NotFound, by_code


def show(ask: Ask) -> Reply:
    cls = by_code().get(ask.path["code"])
    if cls is None:
        raise NotFound(f"no error code {ask.path['code']}")
    meaning = (cls.__doc__ or cls.title).strip()
    body = {"code": cls.code, "status": cls.status, "title": cls.title, "meaning": meaning}
    return Reply({"error": body})
