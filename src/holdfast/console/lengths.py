# SPDX-License-Identifier: Apache-2.0
"""For how long something can be paused or silenced by a form."""

from typing import Final

#: In seconds as a form says it, as commands say it, as people say it.
LENGTHS: Final = (
    ("900", "15m", "15 minutes"),
    ("3600", "1h", "1 hour"),
    ("14400", "4h", "4 hours"),
    ("86400", "1d", "1 day"),
    ("604800", "7d", "7 days"),
)
