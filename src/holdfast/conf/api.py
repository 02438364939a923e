# SPDX-License-Identifier: Apache-2.0
"""[api]: the REST server."""

from oslo_config import cfg

GROUP = "api"
OPTS = [
    cfg.HostAddressOpt("host", default="127.0.0.1", help="Address to listen on."),
    cfg.PortOpt("port", default=8780, help="Port to listen on."),
    cfg.IntOpt("threads", default=24, min=1, help="Threads that answer requests."),
    cfg.IntOpt(
        "max_body",
        default=114_688,
        min=1024,
        mutable=True,
        help="Largest request body, in bytes; more is 413.",
    ),
    cfg.StrOpt(
        "public_url",
        default="",
        help="The address clients use, for links in version documents; default: as they asked.",
    ),
]
