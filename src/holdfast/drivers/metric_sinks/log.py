# SPDX-License-Identifier: Apache-2.0
"""Numbers as lines of the agent's log, for who collects those anyway."""

import logging
from collections.abc import Sequence

from holdfast.drivers.metric_sinks.lines import number
from holdfast.drivers.metric_sinks.names import split
from holdfast.model.printable import printable
from holdfast.ports.metric_sinks import ALARM, Sample
from holdfast.ports.metrics import HOST

LOG = logging.getLogger(__name__)
_STANDS = {0.0: "is over", 1.0: "is raised", 2.0: "has no data"}


class LogLines:
    name = "log"

    def encode(self, sample: Sample) -> bytes:
        entity = sample.entity
        uuid, name, rest = split(entity.id, entity.name)
        who = printable(name or uuid)[:120]
        where = "host" if entity.kind == HOST else f"guest={printable(uuid)[:80]}"
        if rest:
            where += f" {entity.kind}={printable(rest)[:80]}"
        if sample.field == ALARM:
            said = f"alarm {printable(sample.about['rule'])[:80]} {_STANDS[sample.value]}"
            said += "".join(
                f" {key}={sample.about[key]}"
                for key in ("value", "threshold")
                if key in sample.about
            )
        else:
            said = f"{printable(sample.field)} {number(sample.value)}"
        return f"{who} ({where}): {said}".encode()

    def send(self, samples: Sequence[bytes], now: float) -> None:
        for one in samples:
            LOG.info("%s", one.decode())

    def close(self) -> None:
        pass
