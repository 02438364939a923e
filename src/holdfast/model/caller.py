# SPDX-License-Identifier: Apache-2.0
"""Who is asking: travels with every command, also over RPC."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    user_id: str
    project_id: str
    roles: tuple[str, ...] = ()
    request_id: str = ""
    is_admin: bool = False

    def may_see(self, project_id: str) -> bool:
        """Projects do not learn of each other's objects; admins see all."""
        return self.is_admin or self.project_id == project_id
