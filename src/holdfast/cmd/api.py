# SPDX-License-Identifier: Apache-2.0
"""`holdfast-api`: the REST API as a separate program, which reaches managers by RPC."""

import logging
import sys
from collections.abc import Sequence

from oslo_config import cfg

from holdfast.app import daemon, service

LOG = logging.getLogger(__name__)


def parts(conf: cfg.ConfigOpts) -> Sequence[daemon.Part]:
    service.check_bind(conf, conf.api.host)
    service.check_auth(conf)
    if warning := service.auth_warning(conf):
        LOG.warning("%s", warning)
    api = service.api_application(conf)
    server = service.http_server(conf, api.application)
    return [daemon.Stopping(api.close), server, daemon.Stopping(api.quiet)]


def main() -> int:
    return daemon.main("holdfast-api", parts)


if __name__ == "__main__":
    sys.exit(main())
