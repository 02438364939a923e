# SPDX-License-Identifier: Apache-2.0
"""`holdfast.wsgi:application` for gunicorn or uWSGI.

Configuration comes from the usual places, or from the files that HOLDFAST_CONFIG names (separated
by colons). Managers run beside it: set `transport_url`.

Open pages of the console ask for what changed, unless `[console] streams` says how many of the
server's threads may be theirs.
"""

import os
from typing import Any

from holdfast import conf as configuration
from holdfast.app import service


def _application() -> Any:
    os.umask(0o077)  # the log holds names of projects
    files = os.environ.get("HOLDFAST_CONFIG")
    conf = configuration.load([], files.split(":") if files else None)
    conf.set_default("streams", 0, "console")
    configuration.set_up_logging(conf, "holdfast-api")
    made = service.api_application(conf).application  # the server ends us, nobody asks us to close
    return made


application = _application()
