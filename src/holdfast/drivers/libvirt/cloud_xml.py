# SPDX-License-Identifier: Apache-2.0
"""Functions that read a guest's status, size and disks from the domain's state and XML.

`stays` decides whether a guest may move. Two hosts may both have a disk of the same path and yet
not share it, so `[libvirt] shared` must name the shared paths. A returning host starts guests that
have autostart by itself, and only a lock on their disks can then prevent a second start.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

#: The operator's settings in the domain's `<metadata>`: `<guest ha="yes" HA_Priority="5"/>`.
OURS = "{urn:holdfast:guest}guest"
#: The metadata key that the attribute `ha` sets; `[recovery] ha_key` reads it.
HA = "HA_Enabled"
#: Pause reasons that end by themselves, with the task state that the driver reports meanwhile.
_IN_PASSING: Mapping[str, str] = {
    "migration": "migrating",
    "postcopy": "migrating",
    "save": "suspending",
    "dump": "image_snapshot",
    "snapshot": "image_snapshot",
    "from_snapshot": "powering-on",
    "starting_up": "powering-on",
    "shutting_down": "powering-off",
}


@dataclass(frozen=True)
class Disk:
    target: str
    type: str  # file, block, network, volume, …
    source: str  # a path, pool:NAME, or PROTOCOL:NAME


@dataclass(frozen=True)
class Facts:
    uuid: str
    name: str
    vcpus: int
    memory_mb: int
    project: str = ""
    flavor: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    disks: tuple[Disk, ...] = ()


def status(state: str, reason: str) -> tuple[str, str | None]:
    """Translate a domain's state into the server status and task state of a cloud.

    A guest paused by a user is PAUSED. A pause for a reason that does not pass by itself is ERROR.
    """
    if state == "paused":
        if reason in _IN_PASSING:
            return "ACTIVE", _IN_PASSING[reason]
        return ("PAUSED" if reason in ("user", "unknown") else "ERROR"), None
    if state == "shutdown":
        return "ACTIVE", "powering-off"
    if state == "shutoff":
        return ("SUSPENDED" if reason == "saved" else "SHUTOFF"), None
    if state == "crashed":
        return "ERROR", None
    return ("SUSPENDED" if state == "pmsuspended" else "ACTIVE"), None


def facts(xml: str) -> Facts:
    """Parse an XML that libvirt itself wrote; sizes are in KiB."""
    root = ElementTree.fromstring(xml)
    said = _said(root)
    return Facts(
        uuid=root.findtext("uuid", "").strip(),
        name=root.findtext("name", "").strip(),
        vcpus=int(root.findtext("vcpu", "1")),
        memory_mb=-(-int(root.findtext("memory", "0")) // 1024),
        project=said.get("project", ""),
        flavor=said.get("flavor", ""),
        metadata=said,
        disks=tuple(_disks(root)),
    )


def _said(root: ElementTree.Element) -> dict[str, str]:
    ours = root.find(f"metadata/{OURS}")
    found = dict(ours.attrib) if ours is not None else {}
    if "ha" in found:
        found.setdefault(HA, found["ha"])
    return found


def _disks(root: ElementTree.Element) -> Sequence[Disk]:
    disks = []
    for element in root.iterfind("devices/disk"):
        source, target = element.find("source"), element.find("target")
        if source is None or element.get("device", "disk") not in ("disk", "lun"):
            continue  # an empty drive, or a CD: libvirt handles a missing CD
        kind = element.get("type", "file")
        where = source.get("file") or source.get("dev") or source.get("dir") or ""
        if kind == "volume":
            where = f"pool:{source.get('pool', '')}"
        elif kind == "network":
            where = f"{source.get('protocol', '')}:{source.get('name', '')}"
        name = target.get("dev", "") if target is not None else ""
        disks.append(Disk(name, kind, where))
    return disks


def stays(guest: Facts, shared: Sequence[str], *, autostart: bool) -> str:
    """Return why the guest cannot start on another host; "" if it can."""
    for disk in guest.disks:
        if disk.type != "network" and not _is_shared(disk.source, shared):
            return (
                f"its disk {disk.target}, {disk.source or 'a ' + disk.type}, is in none of"
                f" [libvirt] shared ({', '.join(shared) or 'empty'}): add what all hosts share"
            )
    unlocked = [disk for disk in guest.disks if disk.type != "file"]
    if autostart and unlocked:
        return (
            f"it has autostart, and nothing locks its disk {unlocked[0].target}: its host would"
            f" start it a second time when it returns; virsh autostart --disable {guest.name}"
        )
    return ""


def _is_shared(source: str, shared: Sequence[str]) -> bool:
    if source.startswith("pool:"):
        return source in shared
    path = posixpath.normpath(source)
    return any(
        path == root or path.startswith(root.rstrip("/") + "/")
        for root in (posixpath.normpath(one) for one in shared if one.startswith("/"))
    )
