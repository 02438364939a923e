# SPDX-License-Identifier: Apache-2.0
"""[sim]: the simulated cloud. Its latency and faults are set while it runs: `holdfast sim set`."""

from oslo_config import cfg

GROUP = "sim"
OPTS = [
    cfg.StrOpt("database", default="sim.db", help="File that holds the simulated world."),
]
