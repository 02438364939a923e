# SPDX-License-Identifier: Apache-2.0
"""Rungs of the ladder before a recovery that need only what is written down: asked by recovery
itself (heal/guards), and by who wants to know beforehand what it would do. Values in, values out.

    ladder.paused(pauses)     # Verdict("paused", False, "recovery is paused by ann: storm", …)
"""

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from holdfast.model import mass_failure
from holdfast.model.incident import Verdict
from holdfast.model.segment import SegmentHost


class Switch(Protocol):
    """A pause or a silence that is in force."""

    @property
    def author(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def expires_at(self) -> datetime | None: ...


def paused(pauses: Sequence[Switch]) -> Verdict:
    if not pauses:
        return Verdict("paused", True, "recovery is not paused")
    return Verdict("paused", False, f"recovery is paused {_by(pauses[0])}", again_s=10.0)


def silenced(silences: Sequence[Switch]) -> Verdict:
    if not silences:
        return Verdict("silenced", True, "no silence is about it")
    return Verdict("silenced", False, f"silenced {_by(silences[0])}", final=True)


def _by(switch: Switch) -> str:
    until = f" until {switch.expires_at:%Y-%m-%d %H:%M} UTC" if switch.expires_at else ""
    return f"by {switch.author}{until}: {switch.reason}"


def segment(member: SegmentHost) -> Verdict:
    if not member.segment.enabled:
        said = f"segment {member.segment.name} is disabled"
        return Verdict("segment", False, said, final=True)
    return Verdict("segment", True, f"segment {member.segment.name} is enabled")


def maintenance(host: str, marked: bool) -> Verdict:
    if marked:
        return Verdict("maintenance", False, f"{host} is on maintenance", final=True)
    return Verdict("maintenance", True, f"{host} is not on maintenance")


def mass(found: mass_failure.Verdict | None, domain: str, approved: bool) -> Verdict:
    """Whether it may go on at all; where it may but slowly, recovery counts who went before."""
    if found is None or found.what == mass_failure.GO:
        return Verdict("mass_failure", True, found.sentence if found else "few hosts are down")
    if approved:
        return Verdict("mass_failure", True, f"{found.sentence}; approved by an operator")
    if found.what in (mass_failure.HOLD, mass_failure.STOP):
        where = f" --domain {shlex.quote(domain)}" if domain else ""
        said = f"{found.sentence}; if it is so: holdfast incident approve{where} --reason …"
        return Verdict("mass_failure", False, said, again_s=10.0)
    return Verdict("mass_failure", True, f"{found.sentence}: one host after the other")


def blocked(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The first no: it decides."""
    return next((one for one in verdicts if not one.passed), None)
