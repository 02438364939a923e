# SPDX-License-Identifier: Apache-2.0
"""A cloud in a file: every cloud port on SQLite, as nasty as the real one on request.

It is for first looks, labs and tests. It is not a hypervisor: a server here is a row, and whether
it *really* runs is another row, so that a test can see a server run twice.

    cloud = SimCloud("/var/lib/holdfast/cloud.db", SystemClock())
    simulator = Simulator("/var/lib/holdfast/cloud.db", SystemClock())
    simulator.seed_demo()
    simulator.change(lost_reply_rate=0.2, only_calls=["pools.add_host"])
    simulator.fail_host("cmp-05")

Peaceful until told otherwise: every setting defaults to zero. Open it after a fork, not before:
SQLite connections do not survive one.
"""

from holdfast.drivers.sim.cloud import SimCloud, connect
from holdfast.drivers.sim.simulator import Simulator
from holdfast.drivers.sim.world import Effect, Settings

__all__ = ["Effect", "Settings", "SimCloud", "Simulator", "connect"]
