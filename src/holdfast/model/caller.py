# SPDX-License-Identifier: Apache-2.0
"""The caller of a command: user, project and roles, also passed over RPC."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    user_id: str
    project_id: str
    roles: tuple[str, ...] = ()
    request_id: str = ""
    is_admin: bool = False

    def may_see(self, project_id: str) -> bool:
        """Whether the caller may see objects of the project: its own project, or any as admin."""
        return self.is_admin or self.project_id == project_id
