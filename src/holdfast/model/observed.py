# SPDX-License-Identifier: Apache-2.0
"""What an agent reported from its host: a guest that died, a service that does not run.

    server:4f2c…                 kind guest,   state failed (to be recovered) or noted (to be told)
    process:cmp-7:nova-compute   kind process, state failed or well

>>> subject("process", "process:CMP-7:nova-compute", "cmp-7")
'process:cmp-7:nova-compute'
>>> subject("guest", "server:nonsense", "cmp-7")
Traceback (most recent call last):
holdfast.model.errors.InvalidInput: subject: what a guest is called is server:UUID
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.model.errors import InvalidInput
from holdfast.model.host import normalise, same
from holdfast.model.operation import Operation

GUEST, PROCESS = "guest", "process"
FAILED, NOTED, WELL = "failed", "noted", "well"
STATES: Mapping[str, tuple[str, ...]] = {GUEST: (FAILED, NOTED), PROCESS: (FAILED, WELL)}
#: In which an agent shows its token.
AGENT_HEADER = "X-Holdfast-Agent"
#: The durable work that looks at one report.
OBSERVATION = "observation"


@dataclass(frozen=True)
class Observed:
    id: str
    observer: str
    subject: str
    kind: str
    state: str
    since: datetime
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return str(self.evidence.get("host", ""))

    @property
    def name(self) -> str:
        """The server's id, or what the process is called."""
        return self.subject.rpartition(":")[2]

    @property
    def what(self) -> str:
        said = (str(self.evidence.get(name, "")) for name in ("event", "detail", "reason", "disk"))
        return " ".join(filter(None, said)) or str(self.evidence.get("sentence", self.state))

    def payload(self) -> dict[str, str]:
        """As a notification of the instance HA contract would say it."""
        if self.kind == PROCESS:
            return {"event": "STOPPED", "process_name": self.name}
        event = str(self.evidence.get("event", "")).upper()
        detail = str(self.evidence.get("detail", "")).upper()
        return {"event": event, "instance_uuid": self.name, "vir_domain_event": detail}


def subject(kind: str, said: str, host: str) -> str:
    """What such a report is about, as it is kept; InvalidInput if it is about nothing."""
    if kind == GUEST:
        name = said.removeprefix("server:")
        try:
            return f"server:{uuid.UUID(name)}"
        except ValueError:
            raise InvalidInput("subject: what a guest is called is server:UUID") from None
    parts = said.split(":", 2)
    if len(parts) != 3 or parts[0] != PROCESS or not parts[2] or not same(parts[1], host):
        raise InvalidInput(f"subject: a process of {host or 'a host'} is called process:HOST:NAME")
    return f"{PROCESS}:{normalise(host)}:{parts[2]}"


def work_of(id_: str, now: datetime) -> Operation:
    """One row for each: what belongs together is brought together by the incident."""
    return Operation(
        id=id_,
        kind=OBSERVATION,
        subject=f"{OBSERVATION}:{id_}",
        key=f"{OBSERVATION}/{id_}",
        due_at=now,
        next_try_at=now,
        payload={"observation": id_},
    )
