# SPDX-License-Identifier: Apache-2.0
"""API and manager in one process, as `holdfast up` has them, but with no monitor and no demo: those
who watch are elsewhere.

    python -m tests.hostmonitor.holdfast --config-file FILE
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from oslo_config import cfg

from holdfast.app import daemon, service
from holdfast.db import migrations


def parts(conf: cfg.ConfigOpts) -> Sequence[daemon.Part]:
    """Everything on loopback."""
    service.check_bind(conf, conf.api.host)
    core = service.Core(conf)
    migrations.sync(core.store.database)
    manager = service.ManagerPart(core, service.connect_cloud(conf, core.clock))
    services = service.api_services(
        core, manager.commands, loop_age_s=manager.loop.age_s, wake=manager.loop.wake
    )
    application = service.application(core, services)
    server = service.http_server(conf, application)
    return [daemon.Stopping(core.close), manager, server]


if __name__ == "__main__":
    sys.exit(daemon.main("holdfast", parts))
