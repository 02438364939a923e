# SPDX-License-Identifier: Apache-2.0
"""The services of the host itself, as processes: is one there, and can it be started again."""

from typing import Protocol

from holdfast.model.service import Service


class Processes(Protocol):
    """Threads may share it."""

    def runs(self, service: Service) -> str:
        """Why it does not run, "" if it does."""
        ...

    def restart(self, service: Service) -> str:
        """Why that could not be done, "" if it was; that it runs then is seen by looking."""
        ...
