# SPDX-License-Identifier: Apache-2.0
"""nova-scheduler filter: keeps reserved hosts for their owners and free pool hosts free.

    [filter_scheduler]
    available_filters = nova.scheduler.filters.all_filters
    available_filters = holdfast.nova.scheduler_filter.HoldfastFilter
    enabled_filters = …,HoldfastFilter

The filter reads only the scheduler's memory (the aggregates of each host, and the request); the
decision is in `admission`. It imports only names that Nova has kept for years.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

import nova.conf
from nova.scheduler import filters, utils

from holdfast.nova import options
from holdfast.nova.admission import Options, Pool, Request, read_request, refusal

LOG = logging.getLogger(__name__)
CONF = nova.conf.CONF
options.register(CONF)


class HoldfastFilter(filters.BaseHostFilter):  # type: ignore[misc]  # Nova has no annotations
    """Passes a host if the reservations of its aggregates allow the request."""

    # Aggregates, project and hint are the same for all servers of a request; a leased server is
    # always a request of its own.
    run_filter_once_per_request = True

    # A rebuild keeps its host and only changes the image: there is nothing to decide.
    RUN_ON_REBUILD = False

    def filter_all(self, filter_obj_list: Iterable[Any], spec_obj: Any) -> list[Any]:
        """Return the hosts that pass; the request is read once, not once per host."""
        hosts = list(filter_obj_list)
        if utils.request_is_rebuild(spec_obj):
            return hosts
        chosen = options.read(CONF)
        request = _request(spec_obj, chosen)
        reasons: Counter[str] = Counter()
        passed = []
        for host in hosts:
            why = _why_not(host, request, chosen)
            if why is None:
                passed.append(host)
            else:
                reasons[why] += 1
        if not passed and reasons:
            LOG.info("no host for %s: %s", request, _counted(reasons))
        return passed

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        """Whether a single host passes; the scheduler calls filter_all instead."""
        chosen = options.read(CONF)
        return _why_not(host_state, _request(spec_obj, chosen), chosen) is None


def _request(spec: Any, chosen: Options) -> Request:
    """Build the request; the project is the server's own, even if an admin migrates the server."""
    return read_request(
        project=spec.project_id if "project_id" in spec else None,
        hints=spec.scheduler_hints if "scheduler_hints" in spec else None,
        extra_specs=spec.flavor.extra_specs if "extra_specs" in spec.flavor else None,
        options=chosen,
        server=spec.instance_uuid if "instance_uuid" in spec else None,
        size=_size(spec.flavor),
    )


def _size(flavor: Any) -> tuple[int, ...]:
    """Return the size of the requested flavor, which in a resize is the new flavor."""
    sizes = ("vcpus", "memory_mb", "root_gb")
    return tuple(getattr(flavor, size) for size in sizes) if all(s in flavor for s in sizes) else ()


def _why_not(host: Any, request: Request, chosen: Options) -> str | None:
    pools = [Pool(aggregate.name, aggregate.metadata) for aggregate in host.aggregates]
    why = refusal(request, pools, chosen)
    if why is not None:
        LOG.debug("%s not for %s: %s", host.host, request, why)
    return why


def _counted(reasons: Counter[str]) -> str:
    texts = [f"{why} ({count} hosts)" for why, count in reasons.most_common(3)]
    return "; ".join(texts) + ("; …" if len(reasons) > 3 else "")
