# SPDX-License-Identifier: Apache-2.0
"""Where what monitors see and report of hosts is found, and what counting it led to is kept."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from holdfast.model.operation import Claim, Operation
from holdfast.model.votes import Ballot


class Votes(Protocol):
    def ballot(self, host: str) -> Ballot:
        """All that there is to count about it, by what it is called here."""
        ...

    def is_known(self, host: str) -> bool:
        """Whether it is one of our hosts, and only one can be meant."""
        ...

    def remember(
        self, claim: Claim, payload: Mapping[str, Any], say: str, then: Sequence[Operation] = ()
    ) -> None:
        """Write down in the work itself what it led to, with a sentence for the audit and the work
        that comes of it: all or nothing."""
        ...
