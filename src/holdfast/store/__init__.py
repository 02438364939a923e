# SPDX-License-Identifier: Apache-2.0
"""SQL: the one truth. `Store` is the database with one object per noun."""

from holdfast.ports.clock import Clock
from holdfast.store.agents import AgentStore
from holdfast.store.alarm_rules import AlarmRuleStore
from holdfast.store.alarms import AlarmStore
from holdfast.store.audit_list import AuditStore
from holdfast.store.calendar import CalendarStore
from holdfast.store.cases import CaseStore
from holdfast.store.changes import ChangeStore
from holdfast.store.database import Database
from holdfast.store.failover import FailoverStore
from holdfast.store.floatingips import FloatingIpStore
from holdfast.store.hosts import HostStore
from holdfast.store.incidents import IncidentStore
from holdfast.store.leases import LeaseStore
from holdfast.store.monitors import MonitorStore
from holdfast.store.notifications import NotificationStore
from holdfast.store.observations import ObservationStore
from holdfast.store.operations import OperationStore
from holdfast.store.orders import OrderStore
from holdfast.store.repairs import RepairStore
from holdfast.store.samples import SampleStore
from holdfast.store.search import SearchStore
from holdfast.store.segments import SegmentStore
from holdfast.store.sessions import SessionStore
from holdfast.store.standings import StandingStore
from holdfast.store.stock import StockKeeper
from holdfast.store.switches import SwitchStore
from holdfast.store.tidy import TidyStore
from holdfast.store.vmoves import VMoveStore
from holdfast.store.votes import VoteStore
from holdfast.store.wall import WallStore


class SqlLedger(LeaseStore, HostStore, FloatingIpStore, RepairStore):
    """All parts of the book: the `ports.ledger.Ledger` of SQL."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._keeper = StockKeeper(database)


class Store:
    """Everything that asks or tells the database goes through here."""

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
        self.standings = StandingStore(self.database)
        self.segments = SegmentStore(self.database)
        self.notifications = NotificationStore(self.database)
        self.failover = FailoverStore(self.database)
        self.incidents = IncidentStore(self.database)
        self.vmoves = VMoveStore(self.database)
        self.switches = SwitchStore(self.database)
        self.orders = OrderStore(self.database)
        self.cases = CaseStore(self.database)
        self.changes = ChangeStore(self.database)
        self.audit = AuditStore(self.database)
        self.sessions = SessionStore(self.database)
        self.wall = WallStore(self.database)
        self.search = SearchStore(self.database)
        self.calendar = CalendarStore(self.database)
        self.tidy = TidyStore(self.database)

    def close(self) -> None:
        self.database.close()
