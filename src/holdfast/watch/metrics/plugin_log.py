# SPDX-License-Identifier: Apache-2.0
"""What plugins say, for a log: where there is no agent whose alarms it could become."""

import logging
import threading
import time
from typing import Final

from holdfast.ports.metric_plugins import Note

LOG = logging.getLogger(__name__)

#: What a plugin says of somebody in pass after pass is written again after so long.
AGAIN_S: Final = 600.0
MOST_REMEMBERED: Final = 1000


class PluginLog:
    """`plugins.Reports`. That one was switched off the runner itself writes."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def off(self, plugin: str, why: str) -> None: ...

    def on(self, plugin: str) -> None: ...

    def note(self, note: Note) -> None:
        key, now = (note.plugin, note.about), time.monotonic()
        with self._lock:
            if now - self._said.get(key, -AGAIN_S) < AGAIN_S:
                return
            if len(self._said) >= MOST_REMEMBERED:
                self._said.clear()
            self._said[key] = now
        LOG.warning("%s: %s: %s", note.plugin, note.about or note.host, note.sentence)
