# SPDX-License-Identifier: Apache-2.0
"""`holdfast-agent`: watches the guests and services of this compute host."""

import sys
from collections.abc import Sequence

from oslo_config import cfg

from holdfast.app import agent, daemon


def parts(conf: cfg.ConfigOpts) -> Sequence[daemon.Part]:
    return [agent.AgentPart(conf, agent.reports(conf))]


def main() -> int:
    return daemon.main("holdfast-agent", parts)


if __name__ == "__main__":
    sys.exit(main())
