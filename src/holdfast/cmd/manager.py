# SPDX-License-Identifier: Apache-2.0
"""`holdfast-manager`: RPC commands and durable jobs. Any number may share a database."""

import sys
from collections.abc import Sequence

from oslo_config import cfg

from holdfast.app import daemon, service


def parts(conf: cfg.ConfigOpts) -> Sequence[daemon.Part]:
    service.need_broker(conf)
    core = service.Core(conf)
    service.check_schema(core)
    manager = service.ManagerPart(core, service.connect_cloud(conf, core.clock), serve_rpc=True)
    return [daemon.Stopping(core.close), *service.manager_health(core, manager), manager]


def main() -> int:
    return daemon.main("holdfast-manager", parts)


if __name__ == "__main__":
    sys.exit(main())
