# SPDX-License-Identifier: Apache-2.0
"""SQL access to the database; `Store` holds an object per table group."""

from holdfast.db.agents import AgentStore, SampleStore
from holdfast.db.alarm_rules import AlarmRuleStore
from holdfast.db.alarms import AlarmStore
from holdfast.db.audit import AuditStore
from holdfast.db.booking import FailoverStore
from holdfast.db.capacity import CapacityCache
from holdfast.db.engine import Database
from holdfast.db.floatingips import FloatingIpStore
from holdfast.db.host_status import HostStatusStore
from holdfast.db.hosts import HostStore
from holdfast.db.incident_actions import IncidentActionStore
from holdfast.db.incident_queries import IncidentQueryStore
from holdfast.db.incidents import IncidentStore
from holdfast.db.leases import LeaseStore
from holdfast.db.monitors import MonitorStore, VoteStore
from holdfast.db.notifications import NotificationStore
from holdfast.db.observations import ObservationStore
from holdfast.db.operations import OperationStore
from holdfast.db.repairs import RepairStore
from holdfast.db.retention import TidyStore
from holdfast.db.segments import SegmentStore
from holdfast.db.sessions import SessionStore
from holdfast.db.switches import SwitchStore
from holdfast.db.views import CalendarStore, ChangeStore, SearchStore, WallStore
from holdfast.db.vmoves import VMoveStore
from holdfast.runtime.clock import Clock


class SqlLedger(LeaseStore, HostStore, FloatingIpStore, RepairStore):
    """Leases, hosts, addresses and repairs; package `leases` calls the class `Ledger`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._cache = CapacityCache(database)


class Store:
    """The database with all its stores; every read and write goes through this object."""

    def __init__(self, url: str, clock: Clock, *, pool_size: int = 20, timeout_s: int = 30) -> None:
        self.database = Database(url, clock, pool_size=pool_size, timeout_s=timeout_s)
        self.ledger = SqlLedger(self.database)
        self.operations = OperationStore(self.database)
        self.observations = ObservationStore(self.database)
        self.monitors = MonitorStore(self.database)
        self.agents = AgentStore(self.database)
        self.samples = SampleStore(self.database)
        self.alarms = AlarmStore(self.database)
        self.alarm_rules = AlarmRuleStore(self.database)
        self.votes = VoteStore(self.database, self.monitors)
        self.host_status = HostStatusStore(self.database)
        self.segments = SegmentStore(self.database)
        self.notifications = NotificationStore(self.database)
        self.failover = FailoverStore(self.database)
        self.incidents = IncidentStore(self.database)
        self.vmoves = VMoveStore(self.database)
        self.switches = SwitchStore(self.database)
        self.incident_actions = IncidentActionStore(self.database)
        self.incident_queries = IncidentQueryStore(self.database)
        self.changes = ChangeStore(self.database)
        self.audit = AuditStore(self.database)
        self.sessions = SessionStore(self.database)
        self.wall = WallStore(self.database)
        self.search = SearchStore(self.database)
        self.calendar = CalendarStore(self.database)
        self.tidy = TidyStore(self.database)

    def close(self) -> None:
        self.database.close()
