# SPDX-License-Identifier: Apache-2.0
"""Two hosts of the lab for one group of tests, and a flavor whose servers go nowhere else.

Groups run side by side. What has no host of its own to go to would land on another group's hosts,
which may be dead at that moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openstack.exceptions import ConflictException

from holdfast.nova import names

if TYPE_CHECKING:
    from lab.cloud import Lab

KEY = "ground"


@dataclass(frozen=True)
class Ground:
    name: str
    hosts: tuple[str, str]
    flavor: str

    @property
    def pin(self) -> dict[str, str]:
        """Extra specs that keep a flavor's servers here."""
        return {f"aggregate_instance_extra_specs:{KEY}": self.name}


@contextlib.contextmanager
def ground(lab: Lab, name: str, first: int) -> Iterator[Ground]:
    """The hosts `first` and the one after, under an aggregate of that name."""
    hosts = lab.computes[first], lab.computes[first + 1]
    with contextlib.closing(lab.connect()) as cloud:
        free_pool(cloud.compute)
        for host in hosts:
            _mend(lab, cloud.compute, host)
        pool = _pool(cloud.compute, f"ground-{name}")
        for host in hosts:
            if host not in (pool.hosts or ()):
                cloud.compute.add_host_to_aggregate(pool.id, host)
        cloud.compute.set_aggregate_metadata(pool.id, {KEY: name})
        for left in cloud.compute.flavors():  # by a run that was killed
            if left.name == f"ground-{name}":
                cloud.delete_flavor(left.id)
        flavor = cloud.create_flavor(f"ground-{name}", ram=512, vcpus=1, disk=1)
        made = Ground(name, hosts, flavor.id)
        try:
            cloud.compute.create_flavor_extra_specs(flavor, made.pin)
            yield made
        finally:
            cloud.delete_flavor(flavor.id)
            for host in hosts:
                cloud.compute.remove_host_from_aggregate(pool.id, host)
            cloud.compute.delete_aggregate(pool.id)


def _mend(lab: Lab, compute: Any, host: str) -> None:
    """As it is when nobody uses it: a run that was killed leaves it as it was at that moment."""
    lab.compute(host).start()
    for pool in compute.aggregates():
        if host in (pool.hosts or ()) and not pool.name.startswith("ground-"):
            compute.remove_host_from_aggregate(pool.id, host)
    (service,) = compute.services(host=host, binary="nova-compute")
    if service.is_forced_down:
        lab.compute(host).restart()  # Nova refuses until it has looked what left it
        compute.update_service_forced_down(service, forced=False)
    if service.status == "disabled":
        compute.enable_service(service)
    lab.wait_compute(host)


def free_pool(compute: Any) -> None:
    """There before any group needs it, so that none has to make it while another looks."""
    _pool(compute, names.FREEPOOL)


def _pool(compute: Any, name: str) -> Any:
    with contextlib.suppress(ConflictException):
        return compute.create_aggregate(name=name)
    return next(aggregate for aggregate in compute.aggregates() if aggregate.name == name)
