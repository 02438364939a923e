# SPDX-License-Identifier: Apache-2.0
"""The effects of an assumed failure of hosts: the servers that would move, and the capacity left.

The guards are the guards of recovery itself (`recovery/guards.py`). API, CLI and console show
the same result. Pure.

    preview(inputs, {"cmp-1"}, {"lease-id": {"cmp-9"}})
    # [RecoveryPreview("cmp-1", 3, "north", "recovery is paused by ann: storm")]

The preview leaves open what only the cloud knows at that time: whether there is capacity,
whether fencing can prove the host off, and which servers their owners exclude from recovery.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from holdfast.hoststatus.status import UP, USABLE
from holdfast.model.host import Size, normalise
from holdfast.model.incident import HOST, OPEN, Incident, Verdict, matches
from holdfast.model.incident_progress import HostProgress
from holdfast.model.segment import RESERVED_HOST, SegmentHost
from holdfast.ports.recovery import Switch
from holdfast.recovery import guards, mass_failure


@dataclass(frozen=True)
class Holder:
    """A lease that holds a host; the id is empty if the caller may not see the holder."""

    lease_id: str
    lease: str


@dataclass(frozen=True)
class Host:
    """A host, as far as its failure matters."""

    id: int
    name: str
    state: str = UP
    rack: str = ""
    zone: str = ""
    segment: str = ""
    enrolled: bool = False
    reservable: bool = False
    held: Sequence[Holder] = ()
    maintenance: bool = False
    spare: bool = False
    guests: int | None = None  # None: unknown
    is_hit: bool = False  # an incident of the host is open

    @property
    def domain(self) -> str:
        return self.rack or self.zone

    @property
    def is_free(self) -> bool:
        offered = self.enrolled and self.reservable and self.state in USABLE
        return offered and not self.held

    @property
    def is_given(self) -> bool:
        """Whether leases hold the host or can get it."""
        return bool(self.held) or self.is_free


@dataclass(frozen=True)
class RecoveryPreview:
    """The preview for the servers of a host.

    `why` says why the servers stay down. If empty, they move, and `how` adds a remark.
    """

    host: str
    guests: int | None  # None: unknown
    segment: str = ""
    why: str = ""
    how: str = ""

    @property
    def sentence(self) -> str:
        count = "its servers"
        if self.guests is not None:
            count = f"{self.guests} server{'s' * (self.guests != 1)}"
        if self.why:
            return f"{count} would stay down: {self.why}"
        how = f"; {self.how}" if self.how else ""
        return f"{count} would be started elsewhere by recovery (segment {self.segment}){how}"


@dataclass(frozen=True)
class Inputs:
    """The inputs of recovery: pauses by scope, maintenance windows by matcher, approvals, rules."""

    now: datetime
    hosts: Sequence[Host]
    members: Mapping[int, SegmentHost]  # by host id
    pauses: Mapping[str, Switch] = field(default_factory=dict)  # by segment; empty: everywhere
    maintenance_windows: Sequence[tuple[Mapping[str, Any], Switch]] = ()
    approved: Collection[str] = ()  # racks and zones; empty: everywhere
    limits: mass_failure.MassFailureLimits = field(default_factory=mass_failure.DefaultLimits)
    dry_run: bool = False
    repairs: bool = True


def preview(
    inputs: Inputs, dead: Collection[str], replacements: Mapping[str, Collection[str]]
) -> list[RecoveryPreview]:
    """Return the preview of each failed host with servers, or with an unknown number of servers.

    `replacements` are the hosts that the repair planner gives to active leases, by lease id.
    """
    case = _Case(inputs, frozenset(dead), replacements)
    return [case.preview(host) for host in inputs.hosts if host.name in dead and host.guests != 0]


@dataclass(frozen=True)
class Sums:
    """The servers that move, the servers that stay, and the hosts with an unknown count."""

    move: int
    stay: int
    uncounted: int


def sums(some: Sequence[RecoveryPreview]) -> Sums:
    return Sums(
        sum(recovery_preview.guests or 0 for recovery_preview in some if not recovery_preview.why),
        sum(recovery_preview.guests or 0 for recovery_preview in some if recovery_preview.why),
        sum(recovery_preview.guests is None for recovery_preview in some),
    )


@dataclass(frozen=True)
class _Case:
    """An assumed failure, with the replacements that the planner computed."""

    inputs: Inputs
    dead: frozenset[str]
    replacements: Mapping[str, Collection[str]]

    def preview(self, host: Host) -> RecoveryPreview:
        member = self.inputs.members.get(host.id)
        if member is None:
            return RecoveryPreview(host.name, host.guests, why="it is in no segment")
        segment = member.segment.name
        crowd = self._mass(host)
        verdicts = [*self._switches(host, member), crowd]
        no = guards.first_denial(verdicts)
        why = no.sentence if no is not None else self._nowhere(host, member)
        if not why and self.inputs.dry_run:
            why = "[recovery] dry_run is on: it is decided and recorded, and nothing is touched"
        slowly = crowd.sentence if self._mass_verdict(host, self._fleet) is not None else ""
        return RecoveryPreview(host.name, host.guests, segment, why, "" if why else slowly)

    # Guards

    def _switches(self, host: Host, member: SegmentHost) -> Sequence[Verdict]:
        inputs, segment = self.inputs, member.segment.uuid
        about = HostProgress(host=host.name, segment=segment)
        subject = f"host:{normalise(host.name)}"
        draft = Incident("", subject, HOST, "it is thought dead", OPEN, inputs.now, details=about)
        pauses = [inputs.pauses[scope] for scope in ("", segment) if scope in inputs.pauses]
        windows = [
            switch for matcher, switch in inputs.maintenance_windows if matches(matcher, draft)
        ]
        return (
            guards.paused_verdict(pauses),
            guards.maintenance_window_verdict(windows),
            guards.segment_verdict(member),
            guards.maintenance_verdict(host.name, member.on_maintenance),
        )

    def _mass(self, host: Host) -> Verdict:
        return guards.mass_failure_verdict(
            self._mass_verdict(host, self._fleet), host.domain, self._approved(host)
        )

    def _mass_verdict(
        self, host: Host, judged: Mapping[str, mass_failure.Verdict]
    ) -> mass_failure.Verdict | None:
        verdict = judged.get(host.domain)
        return None if verdict is None or verdict.mode == mass_failure.GO else verdict

    def _approved(self, host: Host) -> bool:
        return bool({"", host.domain} & {*self.inputs.approved})

    def _is_down(self, host: Host) -> bool:
        return host.is_hit or host.state not in USABLE or host.name in self.dead

    @cached_property
    def _fleet(self) -> Mapping[str, mass_failure.Verdict]:
        """Return the mass-failure verdicts of recovery; all hosts count."""
        hosts = [
            mass_failure.FleetHost(host.domain, self._is_down(host)) for host in self.inputs.hosts
        ]
        return mass_failure.judge(hosts, self.inputs.limits)

    @cached_property
    def _enrolled(self) -> Mapping[str, mass_failure.Verdict]:
        """Return the mass-failure verdicts of reservation repair; only enrolled hosts count."""
        hosts = [
            mass_failure.FleetHost(host.domain, host.state not in USABLE or host.name in self.dead)
            for host in self.inputs.hosts
            if host.enrolled
        ]
        return mass_failure.judge(hosts, self.inputs.limits)

    # Targets

    @cached_property
    def _alive(self) -> Sequence[Host]:
        return [host for host in self.inputs.hosts if not self._is_down(host)]

    @cached_property
    def _homes(self) -> Mapping[str, set[str]]:
        """Return the hosts that each lease holds and keeps."""
        homes: dict[str, set[str]] = defaultdict(set)
        for host in self._alive:
            for holder in host.held:
                homes[holder.lease_id].add(host.name)
        return homes

    def _nowhere(self, host: Host, member: SegmentHost) -> str:
        """Return why no host can take the servers; empty if a host can."""
        if not host.held:
            return self._no_target(host, member)
        reasons = [self._no_home(host, holder.lease_id, holder.lease) for holder in host.held]
        return reasons[0] if all(reasons) else ""

    def _no_home(self, host: Host, lease: str, name: str) -> str:
        """Return why the lease has no host for the servers.

        Reserved servers stay on the hosts of their lease.
        """
        if not lease or self._homes.get(lease):  # hidden holder: its hosts are hidden too
            return ""
        if not self.replacements.get(lease):
            return f"its lease {name} has no other host"
        if not self.inputs.repairs:
            return f"its lease {name} gets no other host: [reservation] repair is off"
        verdict = guards.mass_failure_verdict(
            self._mass_verdict(host, self._enrolled), "", self._approved(host)
        )
        if not verdict.passed:
            return f"its lease {name} gets no other host before an operator approves"
        return ""

    def _no_target(self, host: Host, member: SegmentHost) -> str:
        """Return why no host can take servers without a reservation.

        Servers stay among enrolled or among other hosts, like their failed host. An enrolled
        target must be free and not taken by a lease. Spares are for all.
        """
        spares = [target for target in self._alive if _is_spare(target, host)]
        if member.segment.recovery_method == RESERVED_HOST:
            return "" if spares else f"no spare host of segment {member.segment.name} is left"
        taken = {name for names in self.replacements.values() for name in names}
        others = [
            target
            for target in self._alive
            if target.enrolled == host.enrolled
            and not target.maintenance
            and (not target.enrolled or (target.is_free and target.name not in taken))
        ]
        return "" if others or spares else "no other host is up that would take them"


def _is_spare(host: Host, of: Host) -> bool:
    return host.spare and host.segment == of.segment and not host.maintenance


# The capacity of racks or segments now and after the failure.
#
#     left(hosts, After({"cmp-1"}, taken, sizes), "rack")    # [Left("rack-a", up=4, still_up=3, …)]


NOTHING: Final = Size()
RACK, SEGMENT = "rack", "segment"


@dataclass(frozen=True)
class After:
    """The state after the failure: failed hosts, hosts given to reservations, and host sizes."""

    gone: Collection[str]
    taken: Collection[str]
    sizes: Mapping[int, Size]


@dataclass(frozen=True)
class Left:
    """The capacity of a rack or segment before and after.

    `up` counts hosts that are up, `usable` the hosts of these that leases can get, `free` the
    free hosts of those. `size` is the total size of hosts that are up.
    """

    name: str
    up: int = 0
    still_up: int = 0
    usable: int = 0
    still_usable: int = 0
    free: int = 0
    still_free: int = 0
    size: Size = NOTHING
    still_size: Size = NOTHING
    kept: int = 0

    @property
    def is_short(self) -> bool:
        return self.still_free < self.kept

    def plus(self, host: Host, stays: bool, taken: bool, size: Size) -> "Left":
        is_given, free = host.is_given, host.is_free
        return replace(
            self,
            up=self.up + 1,
            still_up=self.still_up + stays,
            usable=self.usable + is_given,
            still_usable=self.still_usable + (is_given and stays),
            free=self.free + free,
            still_free=self.still_free + (free and stays and not taken),
            size=self.size + size,
            still_size=self.still_size + (size if stays else NOTHING),
        )


def left(
    hosts: Sequence[Host], after: After, by: str, kept: Mapping[str, int] | None = None
) -> list[Left]:
    """Return the capacity of each rack or segment now and after the failure."""
    left_by_name: dict[str, Left] = {}
    for host in (usable for usable in hosts if usable.state in USABLE):
        name = host.rack if by == RACK else host.segment
        before = left_by_name.get(name) or Left(name, kept=(kept or {}).get(name, 0))
        size = after.sizes.get(host.id, NOTHING)
        left_by_name[name] = before.plus(
            host, host.name not in after.gone, host.name in after.taken, size
        )
    return [left_by_name[name] for name in sorted(left_by_name)]
