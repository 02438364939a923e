# SPDX-License-Identifier: Apache-2.0
"""Repair: replace failed hosts of reservations; planned together, booked lease by lease.

A periodic job, woken at once when a host fails or comes back. It also runs at intervals for
reservations that stayed short, because capacity appears when a lease ends, a host is enrolled,
or a host returns. Each run reads everything from the database, so a manager killed anywhere in
a repair leaves leases that are repaired and leases that the next run repairs.

An allocation without a replacement stays booked on its failed host: no other lease gets the
host while it is down, and if it comes back the reservation is whole again.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.jobs.job import Kind, NotYet, Run, Step, never_ending
from holdfast.leases.hosts import Hosts
from holdfast.leases.lifecycle import LOST, LeaseContext, lease_work
from holdfast.leases.repair_planner import AffectedReservation, RepairResult, plan_repair
from holdfast.model.errors import Conflict, HoldfastError, NotFound, StaleWrite
from holdfast.model.host import Host
from holdfast.model.lease import APPLY, END, Allocation, Lease, Reservation
from holdfast.model.operation import Operation
from holdfast.nova.names import SERVER_LEASE
from holdfast.ports.ledger import Change, Work
from holdfast.ports.manager import Caller, RepairMove, RepairReport
from holdfast.recovery import mass_failure
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.threads import PeriodicTask

# Affected reservations, and leases after a repair plan, as pure functions.


#: Key in `Reservation.made`, beside LOST: whether something else was missing before.
BEFORE = "missed_before"
_LIVE = {"PENDING": "pending", "ACTIVE": "active"}


def affected_reservations(
    leases: Iterable[Lease],
    failed: Collection[int],
    now: datetime,
    until: datetime | None,
    priorities: Mapping[str, int],
) -> list[AffectedReservation]:
    """List the reservations with current or future holds on failed hosts.

    `until` limits the start of leases to consider.
    """
    reservations: list[AffectedReservation] = []
    for lease in leases:
        if lease.status not in _LIVE or (until and lease.start >= until):
            continue
        for reservation in lease.reservations:
            lost = tuple(
                a for a in reservation.allocations if a.host_id in failed and a.held.end > now
            )
            if lost and reservation.status == _LIVE[lease.status]:
                reservations.append(
                    AffectedReservation(
                        lease, reservation, lost, priorities.get(lease.project_id, 0)
                    )
                )
    return reservations


def repaired(
    lease: Lease,
    results: Iterable[RepairResult],
    failed: Collection[int],
    affected: Collection[str],
) -> Lease:
    """Return the lease with replacements, and with flags for the owner.

    `affected`: ids of the reservations that lost hosts, also of those that repair does not plan.
    """
    by_id = {result.affected.reservation.id: result for result in results}

    def after(reservation: Reservation) -> Reservation:
        result = by_id.get(reservation.id)
        if reservation.id not in affected and LOST not in reservation.made:
            return reservation  # whole, or beyond the horizon
        if result is not None and result.replacements:
            allocations = (*result.kept, *_left(result), *result.replacements)
            changed = reservation.resources_changed or result.affected.is_active
            reservation = replace(reservation, allocations=allocations, resources_changed=changed)
        return _flagged(reservation, failed)

    reservations = tuple(map(after, lease.reservations))
    degraded = any(r.missing_resources or r.resources_changed for r in reservations)
    return replace(lease, reservations=reservations, degraded=degraded)


def _flagged(reservation: Reservation, failed: Collection[int]) -> Reservation:
    """Flag the reservation as missing while it holds failed hosts, and unflag it afterwards.

    A flag set for another reason stays.
    """
    lost = sorted({i for i in reservation.host_ids() if i in failed})
    recorded = reservation.made.get(LOST)
    if lost == (recorded or []):
        return reservation
    made = {name: value for name, value in reservation.made.items() if name != LOST}
    if lost:
        before = made.get(BEFORE, reservation.missing_resources)
        made |= {LOST: lost, BEFORE: before}
        return replace(reservation, made=made, missing_resources=True)
    return replace(reservation, missing_resources=bool(made.pop(BEFORE, False)), made=made)


def _left(result: RepairResult) -> tuple[Allocation, ...]:
    """Return the lost allocations without a replacement."""
    replaced = sum(a.slots or 1 for a in result.replacements)
    left: list[Allocation] = []
    for allocation in result.affected.lost:
        units = allocation.slots or 1
        gone = min(units, replaced)
        replaced -= gone
        if gone == 0:
            left.append(allocation)
        elif gone < units:
            takes = {
                name: amount // units * (units - gone) for name, amount in allocation.takes.items()
            }
            left.append(replace(allocation, slots=units - gone, takes=takes))
    return tuple(left)


def held_back(
    failed: Collection[int],
    hosts: Iterable[Host],
    limits: mass_failure.MassFailureLimits,
    lifted: Collection[str] = (),
) -> tuple[set[int], str]:
    """Return the failed hosts waiting for an operator's approval, and why.

    In racks and zones in `lifted` no host waits.
    """
    by_id = {host.id: host for host in hosts}
    domain = {i: host.rack or host.zone for i, host in by_id.items()}
    fleet = [mass_failure.FleetHost(domain[i], i in failed) for i in by_id]
    verdicts = {
        name: verdict
        for name, verdict in mass_failure.judge(fleet, limits).items()
        if verdict.mode in (mass_failure.HOLD, mass_failure.STOP)
    }
    waiting = {
        i
        for i in failed
        if domain.get(i) in verdicts and not {by_id[i].rack, by_id[i].zone} & {*lifted}
    }
    return waiting, "; ".join(sorted({verdicts[domain[i]].sentence for i in waiting}))


def holds(lease: Lease) -> list[tuple[Allocation, ...]]:
    return [reservation.allocations for reservation in lease.reservations]


def sentence(old: Lease, new: Lease) -> str:
    """Describe the change of the lease; the audit keeps this sentence."""
    changes: list[str] = []
    for was, now in zip(old.reservations, new.reservations, strict=True):
        gone = set(was.hosts()) - set(now.hosts())
        if was.allocations != now.allocations:
            names_hosts = (
                now.resource_type != SERVER_LEASE
            )  # an owner does not learn where a server is
            names = f" for {', '.join(sorted(gone))}" if names_hosts else ""
            changes.append(f"reservation {now.id} got something else{names}")
        if now.missing_resources and not was.missing_resources:
            changes.append(f"reservation {now.id} misses what failed")
        if was.missing_resources and not now.missing_resources:
            changes.append(f"reservation {now.id} is whole again")
    return f"lease {new.name}: {'; '.join(changes) or 'unchanged'}"


def move(result: RepairResult, names: Mapping[int, str]) -> RepairMove:
    lease, reservation = result.affected.lease, result.affected.reservation
    stays = {a.host_id for a in (*result.kept, *_left(result))}
    gone = sorted({a.host_id for a in result.affected.lost if a.host_id not in stays}, key=str)
    return RepairMove(
        lease_id=lease.id,
        lease_name=lease.name,
        project_id=lease.project_id,
        reservation_id=reservation.id,
        resource_type=reservation.resource_type,
        active=result.affected.is_active,
        start=lease.start,
        end=lease.end,
        leaves=tuple(names.get(i or 0, str(i)) for i in gone),
        joins=tuple(names.get(a.host_id or 0, str(a.host_id)) for a in result.replacements),
        short=result.short,
    )


LOG = logging.getLogger(__name__)

REPAIR = "repair"
OFF = "[reservation] repair is off: reservations that lost hosts are flagged, and nothing moves"
#: How long an operator's approval lasts.
APPROVED = timedelta(hours=1)
#: Leases saved between two checks of the claim, and the seconds that may take.
PORTION, PORTION_S = 100, 10.0
#: Seconds between renewals of the claim while a plan is computed.
KEEP_S = 3.0
#: Attempts to write an acknowledgement while other writers change the lease.
ACKNOWLEDGE_TRIES = 5
#: Seconds until the next run when a lease changed during planning.
SOON_S = 0.5


class Settings(Protocol):
    """The `[reservation]` options, read anew at every use."""

    repair: bool
    repair_interval_s: float
    repair_horizon_s: float
    repair_priorities: Mapping[str, int]


@contextlib.contextmanager
def _claim_renewed(hold: Callable[[float], None]) -> Iterator[None]:
    """Renew the claim for as long as the block runs; afterwards raise ClaimLost if that failed."""
    failures: list[HoldfastError] = []

    def renew() -> None:
        try:
            if not failures:
                hold(PORTION_S)
        except HoldfastError as error:
            failures.append(error)

    # The system clock: a plan takes processor time, whatever clock the manager uses.
    task = PeriodicTask("claim-renewal", KEEP_S, renew, SystemClock())
    task.start()
    try:
        yield
    finally:
        task.stop()
    if failures:
        raise failures[0]


# The job and the commands.


class Repairs:
    """Plans and carries out repairs, as a periodic job and by command."""

    def __init__(
        self,
        context: LeaseContext,
        settings: Settings,
        limits: mass_failure.MassFailureLimits,
        hosts: Hosts,
        new_id: Callable[[], str],
    ):
        self._context = context
        self._settings = settings
        self._limits = limits
        self._hosts = hosts
        self._new_id = new_id

    # commands

    def plan(self, hosts: Sequence[str], racks: Sequence[str]) -> RepairReport:
        """Preview the repair, also as if these hosts and racks failed."""
        ledger = self._context.ledger
        enrolled = ledger.enrolled()
        failed = {host.id for host in enrolled if not host.usable} | self._named(
            enrolled, hosts, racks
        )
        return self._report(enrolled, failed, ledger.leases_on(failed))

    def expedite(self) -> None:
        """Make the repair job due now."""
        if not self._settings.repair:
            raise Conflict("[reservation] repair is off: switch it on, then ask again")
        now = self._context.ledger.now()
        self._context.ledger.arm(never_ending(REPAIR, now))

    def approve(self, caller: Caller, reason: str, domain: str = "") -> None:
        """Record an operator's approval: everywhere, or in a rack or zone."""
        ledger = self._context.ledger
        if domain:
            domains = {
                name for host in ledger.enrolled() for name in (host.rack, host.zone) if name
            }
            if domain not in domains:
                names = ", ".join(sorted(domains)) or "none"
                raise NotFound(f"no enrolled host is in {domain!r}; racks and zones known: {names}")
        scope = f"{REPAIR}:{domain}" if domain else REPAIR
        ledger.approve(scope, caller.user_id, reason, ledger.now() + APPROVED)

    def acknowledge(self, caller: Caller, lease_id: str) -> None:
        """Clear the changed flag, because the owner has seen the change.

        Retries when the lease changed meanwhile, most likely by repair itself.
        """
        for _ in range(ACKNOWLEDGE_TRIES - 1):
            with contextlib.suppress(StaleWrite):
                return self._acknowledge(caller, lease_id)
        return self._acknowledge(caller, lease_id)

    def _acknowledge(self, caller: Caller, lease_id: str) -> None:
        ledger = self._context.ledger
        lease = ledger.lease(lease_id)
        if not caller.may_see(lease.project_id):
            raise NotFound(f"Object with {{'lease_id': {lease_id!r}}} not found")
        reservations = tuple(replace(r, resources_changed=False) for r in lease.reservations)
        new = replace(
            lease,
            reservations=reservations,
            degraded=any(r.missing_resources for r in reservations),
        )
        if new != lease:
            operations = self._context.announcer.changed(lease, new, ledger.now())
            sentence = f"lease {lease.name}: its owner has seen that it got something else"
            work = Work(add=operations)
            ledger.save(lease, new, work=work, say=sentence, is_repair=True)

    # Shared by the job and the commands.

    def repair_once(self, hold: Callable[[float], None]) -> tuple[str, float]:
        """Run a repair; return a sentence, and the seconds until the next run.

        While repair is off or held, a run only flags the reservations that lost hosts.
        """
        ledger, is_on = self._context.ledger, self._settings.repair
        hold(PORTION_S)
        if not ledger.needs_repair():
            return "no reservation is affected", self._settings.repair_interval_s
        hosts = ledger.enrolled()
        failed = {host.id for host in hosts if not host.usable}
        if is_on:
            self._hosts.keep_back(
                (host for host in hosts if host.id in failed and host.reservable), hold
            )
            back = (host for host in hosts if host.usable and not host.reservable)
            self._hosts.let_back(back, hold)
        leases = ledger.leases_on(failed, flagged=True)
        if not leases:
            return "no reservation is affected", self._settings.repair_interval_s
        waiting, why = self._waiting(hosts, failed) if is_on else (failed, "")
        with _claim_renewed(hold):
            plan = self._plan(leases, failed - waiting)
        lost = self._carry_out(leases, plan, failed, hold)
        sentence = self._sentence(plan, why if waiting else "", lost) if is_on else OFF
        return sentence, SOON_S if lost else self._settings.repair_interval_s

    def _waiting(self, enrolled: Sequence[Host], failed: set[int]) -> tuple[set[int], str]:
        """Return the failed hosts excluded from repair for now, and why."""
        lifted = self._context.ledger.approved(REPAIR)
        if "" in lifted:
            return set(), ""
        return held_back(failed, enrolled, self._limits, lifted)

    def _plan(
        self, leases: Sequence[Lease], failed: Collection[int], *, all_ahead: bool = False
    ) -> tuple[RepairResult, ...]:
        context = self._context
        hit = self._affected(leases, failed, all_ahead=all_ahead)
        if not hit:
            return ()
        snapshot = context.ledger.capacity(sure=True).excluding_hosts(failed)
        now = context.ledger.now()
        return plan_repair(hit, snapshot, context.resources, context.ledger, now).results

    def _affected(
        self, leases: Sequence[Lease], failed: Collection[int], *, all_ahead: bool = False
    ) -> list[AffectedReservation]:
        now = self._context.ledger.now()
        until = None if all_ahead else self._until(now)
        return affected_reservations(leases, failed, now, until, self._settings.repair_priorities)

    def _until(self, now: datetime) -> datetime | None:
        horizon = self._settings.repair_horizon_s
        return now + timedelta(seconds=horizon) if horizon else None

    def _carry_out(
        self,
        leases: Sequence[Lease],
        plan: Sequence[RepairResult],
        failed: Collection[int],
        hold: Callable[[float], None],
    ) -> int:
        """Save each changed lease; return how many another writer changed meanwhile."""
        by_lease: dict[str, list[RepairResult]] = {}
        for result in plan:
            by_lease.setdefault(result.affected.lease.id, []).append(result)
        affected = {hit.reservation.id for hit in self._affected(leases, failed)}
        changes = [
            self._change(old, new)
            for old in leases
            if (new := repaired(old, by_lease.get(old.id, ()), failed, affected)) != old
        ]
        beaten = 0
        for at in range(0, len(changes), PORTION):
            hold(PORTION_S)
            beaten += self._save(changes[at : at + PORTION])
        return beaten

    def _change(self, old: Lease, new: Lease) -> Change:
        now = self._context.ledger.now()
        put: tuple[Operation, ...] = ()
        if new.status == "ACTIVE" and holds(new) != holds(old):
            # Schedule the end anew too: an end that is about to run must wait for the new
            # hosts.
            due = ((APPLY, now), (END, new.end))
            put = tuple(lease_work(self._new_id(), new.id, kind, at) for kind, at in due)
        operations = tuple(self._context.announcer.health(old, new, now))
        return Change(
            old,
            new,
            Work(add=operations, put=put) if operations or put else None,
            sentence(old, new),
        )

    def _save(self, changes: Sequence[Change]) -> int:
        """Save together, or one by one after a conflict; return the number of conflicts."""
        ledger, beaten = self._context.ledger, 0
        try:
            ledger.save_many(changes)
            return 0
        except StaleWrite as some:
            LOG.info("repair: %s", some.message)
        for change in changes:
            try:
                ledger.save_many([change])
            except StaleWrite as stale:
                LOG.info("lease %s is not repaired yet: %s", change.old.id, stale.message)
                beaten += 1
        return beaten

    # Reports and sentences.

    def _report(
        self, enrolled: Sequence[Host], failed: set[int], leases: Sequence[Lease]
    ) -> RepairReport:
        names = {host.id: host.service_host for host in enrolled}
        waiting, why = self._waiting(enrolled, failed)
        plan = self._plan(leases, failed, all_ahead=True)
        snapshot = self._context.ledger.capacity().excluding_hosts(failed)
        now = self._context.ledger.now().timestamp()
        taken = {
            a.host_id for result in plan if result.affected.is_active for a in result.replacements
        }
        free = sum(snapshot.line(i).is_free(now, now + 1) for i in snapshot.hosts if i not in taken)
        return RepairReport(
            failed=tuple(sorted(names[i] for i in failed)),
            moves=tuple(move(result, names) for result in plan),
            held=why if waiting else "",
            usable=len(snapshot.hosts),
            free=free,
        )

    def _named(
        self, enrolled: Sequence[Host], hosts: Sequence[str], racks: Sequence[str]
    ) -> set[int]:
        ids = {self._context.ledger.host(name).id for name in hosts}  # or NotFound
        for rack in racks:
            members = {host.id for host in enrolled if host.rack == rack}
            if not members:
                names = ", ".join(sorted({host.rack for host in enrolled if host.rack})) or "none"
                raise NotFound(f"no enrolled host is in rack {rack!r}; racks known: {names}")
            ids |= members
        return ids

    def _sentence(self, plan: Sequence[RepairResult], why: str, beaten: int) -> str:
        moved = sum(bool(result.replacements) for result in plan)
        short = sum(bool(result.short) for result in plan)
        text = f"{moved} reservations moved, {short} miss something still"
        if beaten:
            text += f"; {beaten} leases changed meanwhile, planned again"
        if why:
            text += f"; held: {why}; to approve: holdfast repair run --approve --reason …"
        return text


class Repair:
    name = REPAIR
    retry_forever = True

    def __init__(self, repairs: Repairs, settings: Settings) -> None:
        self._repairs = repairs
        self._settings = settings

    def steps(self) -> Sequence[Step]:
        return (Step("repair", self.repair, recorded=False),)

    def repair(self, run: Run) -> str:
        """Run a repair; always ends with NotYet."""
        sentence, seconds = self._repairs.repair_once(run.hold)
        if sentence != run.operation.sentence:
            LOG.info("repair: %s", sentence)
        raise NotYet(sentence, seconds)  # or at once, if requested again meanwhile

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def kinds(repairs: Repairs, settings: Settings) -> dict[str, Kind]:
    return {REPAIR: Repair(repairs, settings)}
