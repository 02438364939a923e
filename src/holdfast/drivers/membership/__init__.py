# SPDX-License-Identifier: Apache-2.0
"""Networks and who is on them, found by entry point `holdfast.membership`: Consul, the simulated
cloud's. Which one a network has is said in its group, [network_<name>]."""

import importlib.metadata

from oslo_config import cfg

from holdfast.conf import networks
from holdfast.model.errors import DriverError
from holdfast.ports.membership import Membership

NAMESPACE = "holdfast.membership"
PORT = "membership"


def connect(conf: cfg.ConfigOpts, network: str) -> Membership:
    """The driver of one network; DriverError where the configuration names none that exists."""
    wanted = conf[networks.group(network)].driver
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=NAMESPACE)}
    if wanted not in entries:
        raise DriverError(
            PORT,
            f"[{networks.group(network)}] driver: there is no {wanted!r}; there are"
            f" {', '.join(sorted(entries))}",
            retryable=False,
        )
    made: Membership = entries[wanted].load()(conf, network)
    return made
