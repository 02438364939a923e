# SPDX-License-Identifier: Apache-2.0
"""The filter `duration`: no lease lasts longer than `[enforcement] max_lease_duration`."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from holdfast.model.caller import Caller
from holdfast.model.errors import EnforcementRefused
from holdfast.model.host import Host
from holdfast.model.lease import Lease
from holdfast.reserve.enforce import Lenient


class MaxDuration(Lenient):
    name = "duration"

    def __init__(self, conf: Any) -> None:
        self._conf = conf

    def check_create(self, caller: Caller, lease: Lease, hosts: Mapping[int, Host]) -> None:
        self._check(lease)

    def check_update(
        self, caller: Caller, old: Lease, new: Lease, hosts: Mapping[int, Host]
    ) -> None:
        """One that was allowed to last longer, by a limit of its time, may keep what it has."""
        if new.end - new.start > old.end - old.start:
            self._check(new)

    def _check(self, lease: Lease) -> None:
        own = self._conf.enforcement
        exempt = lease.project_id in own.max_lease_duration_exempt_project_ids
        if exempt or own.max_lease_duration < 0:
            return
        most = timedelta(seconds=own.max_lease_duration)
        if lease.end - lease.start > most:
            raise EnforcementRefused(
                f"lease {lease.name} would last {_said(lease.end - lease.start)}, and"
                f" {_said(most)} is the longest allowed: let it end by"
                f" {lease.start + most:%Y-%m-%d %H:%M} UTC"
            )


def _said(span: timedelta) -> str:
    hours, minutes = divmod(int(span.total_seconds()) // 60, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or f"{span.seconds} s"
