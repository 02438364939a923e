# SPDX-License-Identifier: Apache-2.0
"""The simulated cloud: every cloud port on an SQLite file, with faults on request.

The simulated cloud is for trials, labs and tests. It is not a hypervisor: a server is a row,
and another row says whether the server *really* runs, so that a test can detect a server that runs
twice.

    cloud = SimCloud("/var/lib/holdfast/cloud.db", SystemClock())
    simulator = Simulator("/var/lib/holdfast/cloud.db", SystemClock())
    simulator.seed_demo()
    simulator.change(lost_reply_rate=0.2, only_calls=["pools.add_host"])
    simulator.fail_host("cmp-05")

Without settings there are no faults: every setting defaults to zero. Open the file after a fork,
not before: SQLite connections do not survive a fork.
"""

from holdfast.drivers.sim.cloud import SimCloud, connect
from holdfast.drivers.sim.simulator import Simulator
from holdfast.drivers.sim.world import Effect, Settings

__all__ = ["Effect", "Settings", "SimCloud", "Simulator", "connect"]
