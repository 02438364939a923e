# SPDX-License-Identifier: Apache-2.0
"""The agent of a host, as far as both sides of the wire speak of it: the answer to its heartbeat.

Heard("3-4f2c", samples_after=178_945_002)    # rules by version; somebody looks at its numbers
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Heard:
    rules: str  # the version of those that hold for the host
    #: Numbers later than that slot (model/samples) are wanted; None: nobody looks, send nothing.
    samples_after: int | None = None
