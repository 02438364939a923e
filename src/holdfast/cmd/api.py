# SPDX-License-Identifier: Apache-2.0
"""`holdfast-api`: the REST API as a program of its own; its managers are reached by RPC."""

import sys

from holdfast import conf as configuration
from holdfast import service
from holdfast.daemon import Daemon


def main() -> int:
    conf = configuration.load(sys.argv[1:])
    configuration.set_up_logging(conf, "holdfast-api")
    try:
        service.check_bind(conf, conf.api.host)
        application = service.api_application(conf)
        server = service.Server(conf.api.host, conf.api.port, application, conf.api.threads)
        return Daemon(conf, [server]).run()
    except service.BadSetup as error:
        sys.stderr.write(f"holdfast-api: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
