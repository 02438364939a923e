# SPDX-License-Identifier: Apache-2.0
"""`holdfast-hostmonitor`: watches hosts over their networks. Runs on each controller."""

import sys
from collections.abc import Sequence

from oslo_config import cfg

from holdfast.app import daemon, hostmonitor


def parts(conf: cfg.ConfigOpts) -> Sequence[daemon.Part]:
    return [hostmonitor.HostMonitorPart(conf, hostmonitor.reports(conf))]


def main() -> int:
    return daemon.main("holdfast-hostmonitor", parts)


if __name__ == "__main__":
    sys.exit(main())
