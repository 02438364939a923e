# SPDX-License-Identifier: Apache-2.0
"""Membership port: the nodes on a network, by a cluster of agents that watch each other.

The port has two calls, because two things can be wrong. `poll` returns the nodes' states as the
cluster's leader reports them, and waits for a change. `prove` checks whether this node sees the
network at all: a node that is cut off would believe that all other nodes are. An untrustworthy
answer is an error, never a guess.

A third party adds another gossip protocol with a class and an entry point:

    [project.entry-points."holdfast.membership"]
    acme = "acme_gossip:connect"

    def connect(conf, network):
        return AcmeGossip(network, conf[f"network_{network}"].url)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

#: State of a node that left on purpose; beside UP and DOWN of `hostmonitor/matrix.py`.
LEFT: Final = "left"


@dataclass(frozen=True)
class Members:
    """The leader's list of nodes by name: up, down or left.

    The list leaves out this node, and leaves out the cluster's servers unless the caller asked
    for them.
    """

    states: Mapping[str, str]
    version: int
    leader: str


@dataclass(frozen=True)
class Proof:
    """Proof that this node sees the network.

    The leader has just confirmed its majority and hears this node, and this node's own agent
    sees `servers_alive` servers alive. `gossip` is that agent's own state of every node.

    Where the cluster alone proves nothing, `unanswered` holds the nodes that may be considered
    lost: enough other members answered a probe over that network, and after that these nodes
    did not. `probe` says this in words; `warning` is the change to the cluster that an operator
    has to make.
    """

    leader: str
    me: str
    servers_alive: int
    servers: int
    gossip: Mapping[str, str]
    unanswered: frozenset[str] | None = None  # None: the cluster is proof enough
    probe: str = ""
    warning: str = ""


class Membership(Protocol):
    """Membership of a network; safe to call from several threads at once.

    Errors are DriverError("membership", …), whose sentence says why no state can be trusted
    now.
    """

    network: str

    def poll(self, after: int | None, wait_s: float) -> Members:
        """Return the first answer newer than version `after`, or the present answer after `wait_s`.

        The call returns at once if `after` is None or `wait_s` is 0. A version may be lower
        than the previous version: the cluster restarted its count.
        """
        ...

    def prove(self) -> Proof:
        """Prove that this node sees the network; return or raise within about 2 s."""
        ...

    def close(self) -> None:
        """Close for good; polls that wait end with an error."""
        ...
