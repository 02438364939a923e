# SPDX-License-Identifier: Apache-2.0
"""`holdfast-api`: the REST API as a separate program, which reaches managers by RPC."""

import sys
from collections.abc import Sequence

from oslo_config import cfg

from holdfast.app import daemon, service


def parts(conf: cfg.ConfigOpts) -> Sequence[daemon.Part]:
    service.check_bind(conf, conf.api.host)
    api = service.api_application(conf)
    server = service.http_server(conf, api.application)
    return [daemon.Stopping(api.close), *api.health(), server, daemon.Stopping(api.quiet)]


def main() -> int:
    return daemon.main("holdfast-api", parts)


if __name__ == "__main__":
    sys.exit(main())
