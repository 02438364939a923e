# SPDX-License-Identifier: Apache-2.0
"""Who is there on a network, by a cluster of agents that watch each other.

Two questions, because two things can be wrong. `look` asks what the cluster's leader says of the
nodes, and waits for news. `prove` asks whether we see at all: somebody who is cut off would believe
that everybody else is. An answer that cannot be believed is an error, never a guess.

Another gossip is one class and one entry point:

    [project.entry-points."holdfast.membership"]
    acme = "acme_gossip:connect"

    def connect(conf, network):
        return AcmeGossip(network, conf[f"network_{network}"].url)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

#: Of a node that went on purpose; beside UP and DOWN of `hostmonitor/matrix.py`.
LEFT: Final = "left"


@dataclass(frozen=True)
class Members:
    """What the leader says: nodes by name, up, down or left. Ourselves are not among them, nor are
    servers of the cluster unless that was asked for."""

    states: Mapping[str, str]
    version: int
    leader: str


@dataclass(frozen=True)
class Proof:
    """That we see: the leader has just made sure of its majority and hears us, and so many of the
    servers are alive by our own agent. `gossip` is what that agent itself says of every node.

    Where the cluster alone proves nothing, `unanswered` has the nodes that may be believed to be
    lost: enough other members answered a probe over that network, and after that these did not.
    `probe` says it in words; `warning` is what an operator has to change about the cluster."""

    leader: str
    me: str
    servers_alive: int
    servers: int
    gossip: Mapping[str, str]
    unanswered: frozenset[str] | None = None  # None: the cluster is proof enough
    probe: str = ""
    warning: str = ""


class Membership(Protocol):
    """One network. Safe from several threads at once. Errors: DriverError("membership", …), whose
    sentence says why nothing can be believed now."""

    network: str

    def poll(self, after: int | None, wait_s: float) -> Members:
        """The first answer newer than version `after`, or after `wait_s` whatever there is; the
        present one at once if `after` is None or there is no time to wait. A version may be lower
        than the one before: the cluster counts anew."""
        ...

    def prove(self) -> Proof:
        """Returns or raises within about 2 seconds."""
        ...

    def close(self) -> None:
        """For good: ends looks that wait, with an error."""
        ...
