# SPDX-License-Identifier: Apache-2.0
"""What an agent has to say of its host's services reaches the disk, or is said again."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.agent import HostAgent
from holdfast.agent.guest_filters import FilterFile
from holdfast.agent.outbox import Outbox
from holdfast.agent.processes import ProcessWatch, Service
from holdfast.drivers.sim.guests import SimGuests
from holdfast.model.errors import DriverError
from holdfast.runtime.clock import SystemClock


class Nothing:
    """A host on which nothing runs."""

    def runs(self, service: Service) -> str:
        return "no such process"

    def restart(self, service: Service) -> str:
        raise AssertionError("it cannot be restarted")


def agent(folder: Path, outbox: Outbox) -> HostAgent:
    clock, settings = SystemClock(), SimpleNamespace(services_interval_s=5.0)
    guests = SimGuests("cmp-1", str(folder / "sim.db"), clock)
    watch = ProcessWatch(Nothing(), [Service("libvirtd")])
    watch.recall(outbox.note("services"), clock.monotonic())
    filters = FilterFile(None)
    return HostAgent(
        "cmp-1", guests, watch, filters, outbox, settings, clock, report_stored=lambda: None
    )


def bodies(outbox: Outbox) -> list[dict[str, Any]]:
    return [dict(head.body) for head in outbox.heads()]


def test_a_report_that_does_not_fit_on_the_disk_is_made_when_there_is_room(tmp_path: Path) -> None:
    with contextlib.closing(Outbox(str(tmp_path / "outbox"), most=1)) as outbox:
        outbox.put([("other", "k", {"subject": "other"})])
        one = agent(tmp_path, outbox)
        for _ in range(2):
            with pytest.raises(DriverError, match="more are not kept"):
                one.maintain()
        outbox.done(outbox.heads()[0])
        one.maintain()
        (body,) = bodies(outbox)
        assert (body["subject"], body["state"]) == ("process:cmp-1:libvirtd", "failed")
        assert body["evidence"]["sentence"] == "libvirtd does not run: no such process"
        outbox.done(outbox.heads()[0])
        one.maintain()
        agent(tmp_path, outbox).maintain()  # nor does the next agent say it a second time
        assert bodies(outbox) == []
