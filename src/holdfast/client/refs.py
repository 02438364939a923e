# SPDX-License-Identifier: Apache-2.0
"""What people call things: an id, or a name that only one of them has."""

import re
from typing import Any

from holdfast.client.errors import NotFound, NotUnique

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def only(noun: str, ref: str, found: list[dict[str, Any]], missing: str) -> dict[str, Any]:
    """The one that was found; NotFound says `missing`, NotUnique lists the ids."""
    if not found:
        raise NotFound(missing, status=404)
    if len(found) > 1:
        raise NotUnique(noun, ref, [str(each["id"]) for each in found])
    return found[0]
