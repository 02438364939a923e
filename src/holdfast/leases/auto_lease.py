# SPDX-License-Identifier: Apache-2.0
"""Auto-lease: a periodic job makes the missing leases of servers.

One manager at a time runs it. Before nova-api makes a server, it writes the lease that the
server is to get into the server's metadata (`nova/api_filter`). If that lease was never made,
because Holdfast was unreachable or nova-api died in between, this job makes it in the name of
the server's owner. With `lease_every_server` every server outside a reservation gets a lease.

The job leases a server once in its life: an owner who deletes the lease, or lets it end, has
decided.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.leases.lifecycle import LeaseContext
from holdfast.model.errors import ClaimLost, HoldfastError, Unavailable
from holdfast.model.lease import NewLease, NewReservation
from holdfast.model.operation import Operation
from holdfast.nova import lease_hint
from holdfast.nova.lease_hint import BadHint, Wish
from holdfast.nova.names import WISH
from holdfast.ports.cloud import Server
from holdfast.ports.manager import Caller

LOG = logging.getLogger(__name__)

SWEEP = "servers_sweep"
#: How long a run makes leases before it lists servers again; at least as long as the listing
#: took.
TURN = timedelta(seconds=5)
#: A younger server is left to nova-api, which requests the lease within a minute
#: (ACT_WITHIN_S).
GRACE = timedelta(seconds=90)
#: Seconds between checks of the option while the job is off.
OFF_S = 60.0
_LOST = frozenset({"ERROR", "DELETED", "SOFT_DELETED", "UNKNOWN"})
_NAMES = uuid.UUID("0d5c5a52-7a53-4b39-8f57-3c2b1c1f6f0a")

Create = Callable[[Caller, NewLease], object]


class Settings(Protocol):
    """The `[reservation]` options, read anew at every use."""

    server_sweep_s: float
    lease_every_server: bool
    default_lease_days: int


@dataclass
class _Round:
    """The progress of this manager; another manager that takes over starts its own round."""

    after: str = ""
    made: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return f"{self.made} servers leased, {self.failed} could not be"


class ServersSweep:
    name = SWEEP
    retry_forever = True

    def __init__(self, context: LeaseContext, settings: Settings, create: Create) -> None:
        self._context = context
        self._settings = settings
        self._create = create
        self._round = _Round()
        self._warned: dict[str, str] = {}  # the last warning per server

    def steps(self) -> Sequence[Step]:
        return (Step("look", self.sweep, recorded=False),)

    def sweep(self, run: Run) -> str:
        """Continue the round; always ends with NotYet."""
        if not self._settings.server_sweep_s:
            raise NotYet("the sweep for servers is off: [reservation] server_sweep_s is 0", OFF_S)
        began = self._context.ledger.now()
        waiting = self._without_a_lease(run, began)
        listed_at = self._context.ledger.now()
        took = listed_at - began
        for server, wish in waiting:
            # Set first: a server that always fails must not stop the others.
            self._round.after = server.id
            run.hold(self._context.cloud.call_timeout_s)
            self._lease(server, wish)
            if self._context.ledger.now() >= listed_at + max(TURN, took):
                raise NotYet(f"{self._round} so far", 0.1)
        sentence, self._round = str(self._round), _Round()
        # Do not poll a cloud all the time that takes long to list its servers.
        raise NotYet(sentence, max(self._settings.server_sweep_s, 10 * took.total_seconds()))

    def _without_a_lease(self, run: Run, now: datetime) -> list[tuple[Server, Wish]]:
        """List servers without a lease that never had one, with the lease to make, in a stable
        order."""
        servers = self._context.effects(run).cloud.servers.list()
        present = {server.id for server in servers}
        self._warned = {key: why for key, why in self._warned.items() if key in present}
        settled = [s for s in servers if s.status not in _LOST and not _is_young(s, now)]
        wished = {server.id: wish for server in settled if (wish := self._wish(server, now))}
        if self._settings.lease_every_server:
            length = timedelta(days=self._settings.default_lease_days)
            for server in self._in_no_reservation(settled):
                wished.setdefault(server.id, lease_hint.default(server.name, now, length))
        had = self._context.ledger.known_things([_thing(key) for key in wished])
        left = [s for s in settled if s.id in wished and _thing(s.id) not in had]
        left.sort(key=lambda server: server.id)
        return [(s, wished[s.id]) for s in left if s.id > self._round.after]

    def _wish(self, server: Server, now: datetime) -> Wish | None:
        """Return the lease request in the server's metadata."""
        note = server.metadata.get(WISH)
        if note is None:
            return None
        try:
            wish = lease_hint.from_note(note, now)
        except BadHint as bad:
            self._complain(server, f"the lease in its metadata ({WISH}) makes no sense: {bad}")
            return None
        if wish is None:
            self._complain(server, "the lease it was to get is over by now: dropped")
        return wish

    def _in_no_reservation(self, servers: Sequence[Server]) -> list[Server]:
        """List the servers on hosts outside reservation.

        A shelved server is left out: a lease that starts now would bring it back.
        """
        reserved = {host.service_host for host in self._context.ledger.enrolled()}
        return [server for server in servers if server.host and server.host not in reserved]

    def _lease(self, server: Server, wish: Wish) -> None:
        owner = Caller(server.user_id, server.project_id)
        try:
            self._create(owner, _lease(server, wish))
        except (Unavailable, ClaimLost):
            raise
        except HoldfastError as error:
            self._round.failed += 1
            self._complain(server, f"no lease: {error.message}")
            return
        self._round.made += 1
        self._warned.pop(server.id, None)
        LOG.info("server %s (%s) has lease %s now", server.name, server.id, wish.name)

    def _complain(self, server: Server, why: str) -> None:
        """Log a warning once per server and reason, not every minute."""
        if self._warned.get(server.id) != why:
            self._warned[server.id] = why
            LOG.warning("server %s (%s): %s", server.name, server.id, why)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def kinds(context: LeaseContext, settings: Settings, create: Create) -> dict[str, Kind]:
    return {SWEEP: ServersSweep(context, settings, create)}


def _lease(server: Server, wish: Wish) -> NewLease:
    """Make the lease request; its id derives from the server, so a repeat makes no second lease."""
    wanted = wish.reservation(server.id)
    return NewLease(
        id=str(uuid.uuid5(_NAMES, f"{SWEEP}/{server.id}")),
        name=wish.name,
        start=wish.start,
        end=wish.end,
        before_end=wish.before_end,
        reservations=(NewReservation(wanted.pop("resource_type"), wanted),),
    )


def _thing(server_id: str) -> str:
    return f"server:{server_id}"


def _is_young(server: Server, now: datetime) -> bool:
    return server.created_at is not None and server.created_at + GRACE > now
