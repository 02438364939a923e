# SPDX-License-Identifier: Apache-2.0
"""Whom the numbers of a guest are about: itself, its disks, its interfaces."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.ports.measures import Disk, Facts, Nic
from holdfast.ports.metrics import DISK, GUEST, NIC, Entity


@dataclass(frozen=True)
class Entities:
    guest: Entity
    disks: Mapping[str, Entity]  # by target
    nics: Mapping[str, Entity]  # by `Nic.key`


def entities(facts: Facts, came: str = "") -> Entities:
    limits = {"balloon_current_kib": float(facts.memory_kib)} if facts.memory_kib else {}
    about = {"flavor_vcpus": str(facts.vcpus)}
    guest = Entity(
        GUEST,
        facts.uuid,
        facts.name,
        facts.project,
        facts.project_name,
        facts.flavor,
        contracts=limits,
        came=came,
        about=about,
    )
    disks = {disk.target: _disk(facts, disk) for disk in facts.disks}
    nics = {nic.key: _nic(facts, nic) for nic in facts.nics}
    return Entities(guest, disks, nics)


def _disk(facts: Facts, disk: Disk) -> Entity:
    about = {"target": disk.target, "path": disk.path, "cinder_volume_id": disk.volume}
    return _part(DISK, facts, disk.target, disk.contracts, about)


def _nic(facts: Facts, nic: Nic) -> Entity:
    about = {"ifname": nic.ifname, "mac": nic.mac, "port_id": nic.port}
    return _part(NIC, facts, nic.port or nic.ifname or nic.mac, nic.contracts, about)


def _part(
    kind: str, facts: Facts, name: str, contracts: Mapping[str, float], about: Mapping[str, str]
) -> Entity:
    return Entity(
        kind,
        f"{facts.uuid}/{name}",
        f"{facts.name}/{name}",
        facts.project,
        facts.project_name,
        facts.flavor,
        guest=facts.uuid,
        contracts=contracts,
        about={name: text for name, text in about.items() if text},
    )
