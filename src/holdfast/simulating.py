# SPDX-License-Identifier: Apache-2.0
"""Puts together what stands in for the agents of a simulated cloud: while somebody looks at one of
its hosts, the numbers of that host are made up."""

from collections.abc import Callable

from holdfast.drivers.cloud.sim import Simulator
from holdfast.drivers.metrics import sim
from holdfast.model import samples
from holdfast.ports.clock import Clock
from holdfast.store.samples import SampleStore
from holdfast.watch.errand import Rounds

#: How often it is looked whether somebody looks.
LOOK_S = 1.0


def samples_part(simulator: Callable[[], Simulator], store: SampleStore, clock: Clock) -> Rounds:
    """`holdfast.daemon.Part`."""

    def look() -> None:
        now = samples.slot(clock.now().timestamp())
        due = {host: last for host, last in store.wanted().items() if last < now}
        if not due:
            return
        world = simulator().world()
        for host, last in due.items():
            store.put(host, sim.hour(world, host, last + 1, now + 1))

    return Rounds("simulated-samples", LOOK_S, look, clock)
