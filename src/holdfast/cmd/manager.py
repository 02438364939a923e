# SPDX-License-Identifier: Apache-2.0
"""`holdfast-manager`: commands by RPC and durable work. Run as many as you like on one database."""

import sys
from collections.abc import Sequence

from oslo_config import cfg

from holdfast import conf as configuration
from holdfast import service
from holdfast.daemon import Daemon, Part, Stopping


class _Manager:
    """The manager as a part of a daemon."""

    def __init__(self, part: service.ManagerPart) -> None:
        self._part = part

    def start(self) -> None:
        self._part.start(serve_rpc=True)

    def stop(self) -> None:
        self._part.stop()


def parts(conf: cfg.ConfigOpts) -> Sequence[Part]:
    service.need_broker(conf)
    core = service.Core(conf)
    service.check_schema(core)
    manager = service.ManagerPart(core, service.connect_cloud(conf, core.clock))
    found: list[Part] = [Stopping(core.close), _Manager(manager)]
    health = service.health_server(core, manager)
    return [*found, health] if health else found


def main() -> int:
    conf = configuration.load(sys.argv[1:])
    configuration.set_up_logging(conf, "holdfast-manager")
    try:
        return Daemon(conf, parts(conf)).run()
    except service.BadSetup as error:
        sys.stderr.write(f"holdfast-manager: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
