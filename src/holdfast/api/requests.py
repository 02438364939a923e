# SPDX-License-Identifier: Apache-2.0
"""Every request gets an id, a log line and a place in the counters; `.json` suffixes are taken off."""

import logging
import re
import time
import uuid
from typing import Any

import falcon
from oslo_context import context as oslo_context

from holdfast.api.metrics import Metrics

LOG = logging.getLogger(__name__)
_ID = re.compile(r"req-[0-9a-fA-F-]{36}")
HEADER = "x-openstack-request-id"


class Middleware:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        req.context.began = time.perf_counter()
        req.context.request_id = f"req-{uuid.uuid4()}"
        asked = req.get_header(HEADER)
        context = oslo_context.RequestContext(
            request_id=req.context.request_id,
            global_request_id=asked if asked and _ID.fullmatch(asked) else None,
            overwrite=True,
        )
        req.context.oslo = context
        resp.set_header(HEADER, req.context.request_id)
        if req.path.endswith(".json") and req.path.startswith(("/reservation", "/instance-ha")):
            req.path = req.path.removesuffix(".json")

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, _resource: Any, _ok: bool
    ) -> None:
        took = time.perf_counter() - req.context.began
        route = req.uri_template or "none"
        self._metrics.request(req.method, route, resp.status_code, took)
        level = logging.DEBUG if req.method in ("GET", "HEAD") else logging.INFO
        if resp.status_code >= 500:
            level = logging.WARNING
        LOG.log(level, "%s %s %s %.1f ms", req.method, req.path, resp.status_code, took * 1000)
