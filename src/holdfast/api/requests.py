# SPDX-License-Identifier: Apache-2.0
"""Every request gets an id, a log line and a place in the counters; `.json` is taken off."""

import logging
import re
import time
import uuid
from typing import Any
from urllib.parse import quote

import falcon
from oslo_context import context as oslo_context

from holdfast.api import body
from holdfast.api.metrics import Metrics

LOG = logging.getLogger(__name__)
_ID = re.compile(r"req-[0-9a-fA-F-]{36}")
HEADER = "x-openstack-request-id"
_DRAIN = 1_048_576


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
        if "//" in req.path or req.path[1:].endswith("/"):  # falcon looks past some of them
            raise falcon.HTTPRouteNotFound
        if req.path.endswith(".json") and req.path.startswith(("/reservation", "/instance-ha")):
            req.path = req.path.removesuffix(".json")

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, _resource: Any, _ok: bool
    ) -> None:
        took = time.perf_counter() - getattr(req.context, "began", time.perf_counter())
        route = req.uri_template or "none"
        method = req.method if req.method in falcon.HTTP_METHODS else "other"
        self._metrics.request(method, route, resp.status_code, took)
        body.drain(req, _DRAIN)
        level = logging.DEBUG if req.method in ("GET", "HEAD") else logging.INFO
        if resp.status_code >= 500:
            level = logging.WARNING
        if LOG.isEnabledFor(level):
            path, status = quote(req.path, safe="/:"), resp.status_code  # a path may hold newlines
            LOG.log(level, "%s %s %s %.1f ms", req.method, path, status, took * 1000)
