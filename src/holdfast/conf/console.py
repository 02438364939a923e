# SPDX-License-Identifier: Apache-2.0
"""[console]: the web pages."""

from oslo_config import cfg

GROUP = "console"
OPTS = [
    cfg.IntOpt(
        "streams",
        default=16,
        min=0,
        help="How many open pages are told of changes at once by a stream that stays open; each "
        "takes a thread, which the embedded server has on top of [api] threads. Further pages "
        "ask every few seconds. 0: all of them do, which is the default under another server "
        "(holdfast.wsgi): there a stream takes one of its threads.",
    ),
    cfg.IntOpt(
        "session_hours",
        default=12,
        min=1,
        max=24 * 30,
        mutable=True,
        help="After that time people have to log in again (http_basic; with keystone a session "
        "lasts as long as its token).",
    ),
]
