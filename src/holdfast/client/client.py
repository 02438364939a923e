# SPDX-License-Identifier: Apache-2.0
"""The client: one object per server, one attribute per noun.

    Client().operations.list()

Where no argument says otherwise, address and credentials come from the environment (see access).
"""

import os
from typing import Any

from holdfast.client.access import Access, find, url_from
from holdfast.client.alarm_rules import AlarmRules
from holdfast.client.alarms import Alarms
from holdfast.client.audit import Audit
from holdfast.client.availability import Availability
from holdfast.client.errors import Unauthorized
from holdfast.client.failover import Failover
from holdfast.client.floatingips import FloatingIps
from holdfast.client.hosts import Hosts
from holdfast.client.incidents import Incidents
from holdfast.client.keystone import Session
from holdfast.client.leases import Leases
from holdfast.client.monitors import Monitors
from holdfast.client.observations import Observations
from holdfast.client.operations import Operations
from holdfast.client.pauses import Pauses, Silences
from holdfast.client.repair import Repair
from holdfast.client.sim import Sim
from holdfast.client.wire import Wire


class Client:
    """Holdfast at `url`. Threads may share one as far as they may share its session."""

    def __init__(
        self,
        url: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        session: Session | None = None,
        agent: str | None = None,
        timeout_s: float = 30,
        retries: int = 2,
    ) -> None:
        """`agent`: the token of a host's agent or of a host monitor. `retries`: how often a GET is
        repeated after a lost connection or a 503."""
        user = user or (os.environ.get("HOLDFAST_USER") if password else None)
        if password and not user:
            raise Unauthorized("there is a password but no user")
        basic = (user, password) if user and password else None
        given = Access(session=session, basic=basic, token=token, agent=agent)
        access = find(given, user, os.environ)
        self._wire = Wire(
            url_from(url, access, os.environ),
            access,
            timeout_s=timeout_s,
            retries=retries,
        )
        self.leases = Leases(self._wire)
        self.hosts = Hosts(self._wire)
        self.floatingips = FloatingIps(self._wire)
        self.availability = Availability(self._wire)
        self.operations = Operations(self._wire)
        self.repair = Repair(self._wire)
        self.failover = Failover(self._wire)
        self.incidents = Incidents(self._wire)
        self.pauses = Pauses(self._wire)
        self.silences = Silences(self._wire)
        self.monitors = Monitors(self._wire)
        self.alarms = Alarms(self._wire)
        self.alarm_rules = AlarmRules(self._wire)
        self.audit = Audit(self._wire)
        self.observations = Observations(self._wire)
        self.sim = Sim(self._wire)

    @property
    def wire(self) -> Wire:
        """The way to the server, for what has no attribute here."""
        return self._wire

    @property
    def url(self) -> str:
        """Where the server is; by Keystone, what the catalog says."""
        return self._wire.url

    def close(self) -> None:
        """Let idle connections go; a session you gave stays yours."""
        self._wire.close()

    def health(self) -> dict[str, Any]:
        """What /readyz says; Unavailable, with the answer as its `body`, if it is not ready."""
        said: dict[str, Any] = self._wire.call("GET", "/readyz", retries=0)
        return said
