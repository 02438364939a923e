# SPDX-License-Identifier: Apache-2.0
"""Puts together the alarms of an agent: rules that change while it runs, what is told of them, and
the heartbeat by which Holdfast knows of both."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from oslo_config import cfg

from holdfast import __version__
from holdfast.model.alarm_rules import RuleSet
from holdfast.ports.agents import Centre
from holdfast.ports.clock import Clock
from holdfast.watch.admin import Handler
from holdfast.watch.agent import HostAgent
from holdfast.watch.alarms.engine import Engine
from holdfast.watch.guest_meaning import PAUSED, RUNNING
from holdfast.watch.metrics.alarms import HostAlarms
from holdfast.watch.metrics.recent import Recent
from holdfast.watch.metrics.rules import RulesDesk
from holdfast.watch.metrics.rules_inlets import Heartbeat, RuleCommands, RulesFile, RulesPart
from holdfast.watch.spool import Spool

SWITCH_S = 0.0005
ALIVE = (RUNNING, PAUSED)
#: The kernel makes it at each boot.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: For so long after its boot a host's heartbeats say which guests run there.
BOOTED_LATELY_S = 1800.0
MOST_RUNNING = 4096


class Alarming:
    """`holdfast.daemon.Part`. `alarms` is for whoever makes the passes; it goes on with the rules
    and the alarms of the agent before it."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        agent: HostAgent,
        spool: Spool,
        centre: Centre,
        clock: Clock,
        *,
        spooled: Callable[[], None],
        recent: Recent | None = None,
    ) -> None:
        settings = conf.metrics
        self._agent = agent
        self._spool = spool
        self._groups = list(settings.groups)
        self._started_at = clock.now().isoformat()
        self.desk = RulesDesk(Engine(RuleSet(), self._groups), spool, clock)
        self.alarms = HostAlarms(agent.host, self.desk, spool, clock, spooled=spooled)
        file = RulesFile(settings.rules_file, self.desk)
        beat = Heartbeat(agent.host, centre, self.desk, self._about, recent)
        self._part = RulesPart(file, beat, clock)
        conf.register_mutate_hook(lambda _conf, _fresh: self._part.reload())  # SIGHUP

    def commands(self) -> Mapping[str, Handler]:
        return RuleCommands(self.desk).commands()

    def start(self) -> None:
        # who reads new rules gives way to a pass at once, not after Python's usual 5 ms
        sys.setswitchinterval(SWITCH_S)
        self._part.start()

    def stop(self) -> None:
        self._part.stop()
        self.alarms.close()

    def _about(self) -> dict[str, Any]:
        waiting, parked = self._spool.counts()
        view = self._agent.view()
        alive = sorted(uuid for uuid, one in view.tracks.items() if one.life in ALIVE)
        return {
            **_boot(alive if view.was_read and not view.deaf else None),
            "started_at": self._started_at,
            "program": __version__,
            "groups": self._groups,
            "deaf": view.deaf[:2000],
            "guests": len(alive),
            "waiting": waiting,
            "parked": parked,
        }


def _boot(running: list[str] | None) -> dict[str, Any]:
    """Which boot of the host this is, and, if that was lately, which guests run there."""
    said: dict[str, Any] = {"boot_id": BOOT_ID.read_text().strip()}
    is_late = time.clock_gettime(time.CLOCK_BOOTTIME) > BOOTED_LATELY_S
    if running is None or is_late or len(running) > MOST_RUNNING:
        return said
    return {**said, "running": running}
