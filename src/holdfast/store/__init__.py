# SPDX-License-Identifier: Apache-2.0
"""SQL: the one truth. `Store` is the database with one object per noun."""

from holdfast.ports.clock import Clock
from holdfast.store.cases import CaseStore
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
from holdfast.store.segments import SegmentStore
from holdfast.store.standings import StandingStore
from holdfast.store.stock import StockKeeper
from holdfast.store.switches import SwitchStore
from holdfast.store.tidy import TidyStore
from holdfast.store.vmoves import VMoveStore
from holdfast.store.votes import VoteStore


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
        self.tidy = TidyStore(self.database)

    def close(self) -> None:
        self.database.close()
