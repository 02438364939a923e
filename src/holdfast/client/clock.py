# SPDX-License-Identifier: Apache-2.0
"""The only place where the client asks for the time or waits; tests put their own here."""

import time
from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def monotonic() -> float:
    return time.monotonic()
