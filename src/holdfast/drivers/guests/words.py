# SPDX-License-Identifier: Apache-2.0
"""libvirt's numbers as words. Written out, so that a word does not change with the library's age;
a number that is not known yet is its own word."""

from collections.abc import Sequence
from typing import Final

LIFECYCLE: Final = (
    "defined",
    "undefined",
    "started",
    "suspended",
    "resumed",
    "stopped",
    "shutdown",
    "pmsuspended",
    "crashed",
)
_LIFECYCLE_REASONS: Final = {
    "defined": ("added", "updated", "renamed", "from_snapshot"),
    "undefined": ("removed", "renamed"),
    "started": ("booted", "migrated", "restored", "from_snapshot", "wakeup"),
    "suspended": (
        "paused",
        "migrated",
        "ioerror",
        "watchdog",
        "restored",
        "from_snapshot",
        "api_error",
        "postcopy",
        "postcopy_failed",
    ),
    "resumed": ("unpaused", "migrated", "from_snapshot", "postcopy", "postcopy_failed"),
    "stopped": (
        "shutdown",
        "destroyed",
        "crashed",
        "migrated",
        "saved",
        "failed",
        "from_snapshot",
    ),
    "shutdown": ("finished", "guest", "host"),
    "pmsuspended": ("memory", "disk"),
    "crashed": ("panicked", "crashloaded"),
}
WATCHDOG: Final = ("none", "pause", "reset", "poweroff", "shutdown", "debug", "inject-nmi")
IO_ERROR: Final = ("none", "pause", "report")
#: By number, the worst first; as the event has them.
DISK_ERROR: Final = {1: "", 2: "enospc"}
AGENT: Final = ("unknown", "connected", "disconnected")
AGENT_REASON: Final = ("unknown", "domain_started", "channel")
MEMORY_RECIPIENT: Final = ("hypervisor", "guest")
MEMORY_ACTION: Final = ("ignore", "inject", "fatal", "reset")
BLOCK_JOB: Final = ("completed", "failed", "canceled", "ready")
BLOCK_JOB_KIND: Final = ("unknown", "pull", "copy", "commit", "active-commit", "backup")
STATE: Final = (
    "nostate",
    "running",
    "blocked",
    "paused",
    "shutdown",
    "shutoff",
    "crashed",
    "pmsuspended",
)
_STATE_REASONS: Final = {
    "running": (
        "unknown",
        "booted",
        "migrated",
        "restored",
        "from_snapshot",
        "unpaused",
        "migration_canceled",
        "save_canceled",
        "wakeup",
        "crashed",
        "postcopy",
        "postcopy_failed",
    ),
    "paused": (
        "unknown",
        "user",
        "migration",
        "save",
        "dump",
        "ioerror",
        "watchdog",
        "from_snapshot",
        "shutting_down",
        "snapshot",
        "crashed",
        "starting_up",
        "postcopy",
        "postcopy_failed",
        "api_error",
    ),
    "shutoff": (
        "unknown",
        "shutdown",
        "destroyed",
        "crashed",
        "migrated",
        "saved",
        "failed",
        "from_snapshot",
        "daemon",
    ),
    "crashed": ("unknown", "panicked"),
}


def word(words: Sequence[str], number: int) -> str:
    return words[number] if 0 <= number < len(words) else str(number)


def lifecycle(event: int, detail: int) -> tuple[str, str]:
    """stopped, failed"""
    what = word(LIFECYCLE, event)
    return what, word(_LIFECYCLE_REASONS.get(what, ()), detail)


def state(number: int, reason: int) -> tuple[str, str]:
    """paused, ioerror"""
    what = word(STATE, number)
    return what, word(_STATE_REASONS.get(what, ()), reason)
