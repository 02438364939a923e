# SPDX-License-Identifier: Apache-2.0
"""Whom failed hosts hit, and what becomes of their leases by a plan: values in, values out."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from holdfast.model import mass_failure
from holdfast.model.host import Host
from holdfast.model.lease import Allocation, Lease, Reservation
from holdfast.nova.names import SERVER_LEASE
from holdfast.ports.manager import RepairMove
from holdfast.reserve.mend import Hurt, Mended
from holdfast.reserve.progress import LOST

#: In `Reservation.made`, beside LOST: whether something else was missing before.
BEFORE = "missed_before"
_LIVE = {"PENDING": "pending", "ACTIVE": "active"}


def hurts(
    leases: Iterable[Lease],
    failed: Collection[int],
    now: datetime,
    until: datetime | None,
    priorities: Mapping[str, int],
) -> list[Hurt]:
    """Reservations that hold what failed, now or from now on; of those to come, until then."""
    found: list[Hurt] = []
    for lease in leases:
        if lease.status not in _LIVE or (until and lease.start >= until):
            continue
        for reservation in lease.reservations:
            lost = tuple(
                a for a in reservation.allocations if a.host_id in failed and a.held.end > now
            )
            if lost and reservation.status == _LIVE[lease.status]:
                found.append(Hurt(lease, reservation, lost, priorities.get(lease.project_id, 0)))
    return found


def repaired(lease: Lease, mended: Iterable[Mended], failed: Collection[int]) -> Lease:
    """The lease with what was found instead, and the flags that tell its owner."""
    by_id = {one.hurt.reservation.id: one for one in mended}

    def after(reservation: Reservation) -> Reservation:
        one = by_id.get(reservation.id)
        if one is None and LOST not in reservation.made:
            return reservation  # its time has not come
        if one is not None and one.found:
            held = (*one.kept, *_left(one), *one.found)
            changed = reservation.resources_changed or one.hurt.is_active
            reservation = replace(reservation, allocations=held, resources_changed=changed)
        return _flagged(reservation, failed)

    reservations = tuple(map(after, lease.reservations))
    degraded = any(r.missing_resources or r.resources_changed for r in reservations)
    return replace(lease, reservations=reservations, degraded=degraded)


def _flagged(reservation: Reservation, failed: Collection[int]) -> Reservation:
    """Missing while it holds what failed; no longer once it does not. What is missing for another
    reason is not our business."""
    lost = sorted({i for i in reservation.host_ids() if i in failed})
    known = reservation.made.get(LOST)
    if lost == (known or []):
        return reservation
    made = {name: value for name, value in reservation.made.items() if name != LOST}
    if lost:
        before = made.get(BEFORE, reservation.missing_resources)
        made |= {LOST: lost, BEFORE: before}
        return replace(reservation, made=made, missing_resources=True)
    return replace(reservation, missing_resources=bool(made.pop(BEFORE, False)), made=made)


def _left(mended: Mended) -> tuple[Allocation, ...]:
    """What of the lost was not replaced."""
    found = sum(a.slots or 1 for a in mended.found)
    left: list[Allocation] = []
    for one in mended.hurt.lost:
        units = one.slots or 1
        gone = min(units, found)
        found -= gone
        if gone == 0:
            left.append(one)
        elif gone < units:
            takes = {name: amount // units * (units - gone) for name, amount in one.takes.items()}
            left.append(replace(one, slots=units - gone, takes=takes))
    return tuple(left)


def held_back(
    failed: Collection[int],
    hosts: Iterable[Host],
    rule: mass_failure.Rule,
    lifted: Collection[str] = (),
) -> tuple[set[int], str]:
    """Those of the failed hosts that wait for an operator's word, and why; in racks and zones where
    it was `lifted` nobody waits any more."""
    known = {host.id: host for host in hosts}
    domain = {i: host.rack or host.zone for i, host in known.items()}
    seen = [mass_failure.Seen(domain[i], i in failed) for i in known]
    verdicts = {
        name: verdict
        for name, verdict in mass_failure.judge(seen, rule).items()
        if verdict.what in (mass_failure.HOLD, mass_failure.STOP)
    }
    waiting = {
        i
        for i in failed
        if domain.get(i) in verdicts and not {known[i].rack, known[i].zone} & {*lifted}
    }
    return waiting, "; ".join(sorted({verdicts[domain[i]].sentence for i in waiting}))


def holds(lease: Lease) -> list[tuple[Allocation, ...]]:
    return [reservation.allocations for reservation in lease.reservations]


def sentence(old: Lease, new: Lease) -> str:
    """The history of the lease tells it for ever."""
    said: list[str] = []
    for was, now in zip(old.reservations, new.reservations, strict=True):
        gone = set(was.hosts()) - set(now.hosts())
        if was.allocations != now.allocations:
            told = now.resource_type != SERVER_LEASE  # where a server is, its owner is not told
            what = f" for {', '.join(sorted(gone))}" if told else ""
            said.append(f"reservation {now.id} got something else{what}")
        if now.missing_resources and not was.missing_resources:
            said.append(f"reservation {now.id} misses what failed")
        if was.missing_resources and not now.missing_resources:
            said.append(f"reservation {now.id} is whole again")
    return f"lease {new.name}: {'; '.join(said) or 'looked at'}"


def move(one: Mended, names: Mapping[int, str]) -> RepairMove:
    lease, reservation = one.hurt.lease, one.hurt.reservation
    stays = {a.host_id for a in (*one.kept, *_left(one))}
    gone = sorted({a.host_id for a in one.hurt.lost if a.host_id not in stays}, key=str)
    return RepairMove(
        lease_id=lease.id,
        lease_name=lease.name,
        project_id=lease.project_id,
        reservation_id=reservation.id,
        resource_type=reservation.resource_type,
        active=one.hurt.is_active,
        start=lease.start,
        end=lease.end,
        leaves=tuple(names.get(i or 0, str(i)) for i in gone),
        joins=tuple(names.get(a.host_id or 0, str(a.host_id)) for a in one.found),
        short=one.short,
    )
