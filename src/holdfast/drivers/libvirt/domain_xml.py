# SPDX-License-Identifier: Apache-2.0
"""Reads a guest's owner, settings, disks, interfaces and limits from its domain XML.

Also translates libvirt's event and state numbers into words. Nova writes project and flavor into
the XML. Without Nova, or to set more, write this element; its attributes override Nova's:

    <metadata>
      <holdfast:guest xmlns:holdfast="urn:holdfast:guest" ha="no" project="batch" flavor="large"/>
    </metadata>
"""

import posixpath
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.model.errors import DriverError
from holdfast.ports.metrics import Disk, Facts, Nic

OURS: Final = "{urn:holdfast:guest}guest"
#: Prefix of Holdfast's flavor extra specs; Nova copies them into the XML.
SPEC: Final = "holdfast:"
MOST_BYTES: Final = 2**20
LONGEST: Final = 255
#: The owner's settings, each yes or no.
_WISHES: Final = ("ha", "heartbeat")
_SPECS: Final = tuple(f"{SPEC}{name}" for name in _WISHES)
_YES: Final = ("yes", "true", "on", "1")
_NO: Final = ("no", "false", "off", "0")


@dataclass(frozen=True)
class GuestDisk:
    name: str  # vda
    path: str  # the source file or device


@dataclass(frozen=True)
class GuestFacts:
    metadata: Mapping[str, str] = field(default_factory=dict)
    disks: Mapping[str, GuestDisk] = field(default_factory=dict)  # by alias


def read_facts(text: str) -> GuestFacts:
    """Parse the XML.

    Return empty facts if it is unreadable, because the guest still has to be seen.
    """
    root = tree(text)
    return GuestFacts() if root is None else facts_of(root)


def tree(text: str) -> ET.Element | None:
    """Parse the XML; None if it is invalid, too large or has a DOCTYPE, which could do harm."""
    if len(text) > MOST_BYTES or "<!DOCTYPE" in text:
        return None
    try:
        return ET.fromstring(text)
    except (ET.ParseError, ValueError):  # ValueError: surrogates
        return None


def facts_of(root: ET.Element) -> GuestFacts:
    metadata = {**dict(_settings(root)), **dict(_nova(root)), **dict(_ours(root))}
    metadata |= {name: _yes_no(metadata.get(name, "")) for name in _WISHES}
    shortened = {name: value[:LONGEST] for name, value in metadata.items() if value}
    return GuestFacts(shortened, dict(_disks(root)))


def _settings(root: ET.Element) -> Iterator[tuple[str, str]]:
    yield "on_crash", root.findtext("on_crash", "")
    watchdog = root.find("devices/watchdog")
    if watchdog is not None:
        yield "watchdog", watchdog.get("action", "reset")


def _nova(root: ET.Element) -> Iterator[tuple[str, str]]:
    """Read Nova's metadata, whatever the version of the namespace."""
    for element in root.iterfind("metadata//*"):
        space, _, tag = element.tag.rpartition("}")
        if not space.startswith("{http://openstack.org/xmlns/libvirt/nova/"):
            continue
        if tag == "project":
            yield "project", element.get("uuid", "")
            yield "project_name", element.text or ""
        elif tag == "flavor":
            yield "flavor", element.get("name", "")
        elif tag == "extraSpec" and element.get("name") in _SPECS:
            yield element.get("name", "").removeprefix(SPEC), element.text or ""


def _ours(root: ET.Element) -> Iterator[tuple[str, str]]:
    ours = root.find(f"metadata/{OURS}")
    if ours is not None:
        for name in ("project", "project_name", "flavor", *_WISHES):
            if ours.get(name):
                yield name, ours.get(name, "")


def _yes_no(text: str) -> str:
    answer = text.strip().lower()
    return "yes" if answer in _YES else "no" if answer in _NO else ""


def _disks(root: ET.Element) -> Iterator[tuple[str, GuestDisk]]:
    for disk in root.iterfind("devices/disk"):
        alias, target, source = disk.find("alias"), disk.find("target"), disk.find("source")
        if alias is None or target is None:
            continue
        where = source.attrib if source is not None else {}
        path = where.get("file") or where.get("dev") or where.get("name") or ""
        yield alias.get("name", ""), GuestDisk(target.get("dev", ""), path)


# libvirt's numbers as words. The words are written out here, so that they do not depend on the
# version of the library; an unknown number is returned as digits.


LIFECYCLE: Final = (
    "defined",
    "undefined",
    "started",
    "suspended",
    "resumed",
    "stopped",
    "shutdown",
    "pmsuspended",
    "crashed",
)
_LIFECYCLE_REASONS: Final = {
    "defined": ("added", "updated", "renamed", "from_snapshot"),
    "undefined": ("removed", "renamed"),
    "started": ("booted", "migrated", "restored", "from_snapshot", "wakeup"),
    "suspended": (
        "paused",
        "migrated",
        "ioerror",
        "watchdog",
        "restored",
        "from_snapshot",
        "api_error",
        "postcopy",
        "postcopy_failed",
    ),
    "resumed": ("unpaused", "migrated", "from_snapshot", "postcopy", "postcopy_failed"),
    "stopped": (
        "shutdown",
        "destroyed",
        "crashed",
        "migrated",
        "saved",
        "failed",
        "from_snapshot",
    ),
    "shutdown": ("finished", "guest", "host"),
    "pmsuspended": ("memory", "disk"),
    "crashed": ("panicked", "crashloaded"),
}
WATCHDOG: Final = ("none", "pause", "reset", "poweroff", "shutdown", "debug", "inject-nmi")
IO_ERROR: Final = ("none", "pause", "report")
#: By number, the worst first; the words are the reasons of the I/O error event.
DISK_ERROR: Final = {1: "", 2: "enospc"}
AGENT: Final = ("unknown", "connected", "disconnected")
AGENT_REASON: Final = ("unknown", "domain_started", "channel")
MEMORY_RECIPIENT: Final = ("hypervisor", "guest")
MEMORY_ACTION: Final = ("ignore", "inject", "fatal", "reset")
BLOCK_JOB: Final = ("completed", "failed", "canceled", "ready")
BLOCK_JOB_KIND: Final = ("unknown", "pull", "copy", "commit", "active-commit", "backup")
STATE: Final = (
    "nostate",
    "running",
    "blocked",
    "paused",
    "shutdown",
    "shutoff",
    "crashed",
    "pmsuspended",
)
_STATE_REASONS: Final = {
    "running": (
        "unknown",
        "booted",
        "migrated",
        "restored",
        "from_snapshot",
        "unpaused",
        "migration_canceled",
        "save_canceled",
        "wakeup",
        "crashed",
        "postcopy",
        "postcopy_failed",
    ),
    "paused": (
        "unknown",
        "user",
        "migration",
        "save",
        "dump",
        "ioerror",
        "watchdog",
        "from_snapshot",
        "shutting_down",
        "snapshot",
        "crashed",
        "starting_up",
        "postcopy",
        "postcopy_failed",
        "api_error",
    ),
    "shutoff": (
        "unknown",
        "shutdown",
        "destroyed",
        "crashed",
        "migrated",
        "saved",
        "failed",
        "from_snapshot",
        "daemon",
    ),
    "crashed": ("unknown", "panicked"),
}


def word(words: Sequence[str], number: int) -> str:
    return words[number] if 0 <= number < len(words) else str(number)


def lifecycle(event: int, detail: int) -> tuple[str, str]:
    """Translate a lifecycle event into words, as `stopped`, `failed`."""
    event_name = word(LIFECYCLE, event)
    return event_name, word(_LIFECYCLE_REASONS.get(event_name, ()), detail)


def state(number: int, reason: int) -> tuple[str, str]:
    """Translate a domain state into words, as `paused`, `ioerror`."""
    state_name = word(STATE, number)
    return state_name, word(_STATE_REASONS.get(state_name, ()), reason)


# Facts for metrics: owner, size, names of disks and interfaces, and limits of the guest.
#
# Limits that libvirt enforces are contracts. Values of Holdfast's element or extra spec are
# contracts too, for limits that another component enforces, or none:
#
#     <holdfast:guest xmlns:holdfast="urn:holdfast:guest" bandwidth_mbps="5000"/>
#     openstack flavor set large --property holdfast:bandwidth_mbps=5000


BANDWIDTH: Final = "bandwidth_mbps"
#: libvirt counts bandwidth in kilobytes per second, contracts are in bits per second.
KILOBYTE_BITS: Final = 8000.0
_NOVA: Final = "{http://openstack.org/xmlns/libvirt/nova/"
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNITS: Final = {"b": 1, "bytes": 1, "KB": 1000, "k": 1024, "KiB": 1024, "MB": 10**6}
_UNITS_MORE: Final = {"M": 2**20, "MiB": 2**20, "GB": 10**9, "G": 2**30, "GiB": 2**30}
_TUNES: Final = {
    "total_iops_sec": "iops",
    "read_iops_sec": "rd_iops",
    "write_iops_sec": "wr_iops",
    "total_bytes_sec": "bytes_per_s",
    "read_bytes_sec": "rd_bytes_per_s",
    "write_bytes_sec": "wr_bytes_per_s",
}


def read_metric_facts(text: str) -> Facts | None:
    """Parse the XML for metrics; None if it cannot be read."""
    root = tree(text)
    return None if root is None else metric_facts_of(root)


def metric_facts_of(root: ET.Element) -> Facts:
    about = facts_of(root).metadata
    nova = dict(_metric_nova(root))
    most_kib = _kib(root.find("memory"))
    return Facts(
        uuid=root.findtext("uuid", ""),
        name=root.findtext("name", ""),
        project=about.get("project", ""),
        project_name=about.get("project_name", ""),
        flavor=about.get("flavor", ""),
        vcpus=_vcpus(root),
        memory_kib=most_kib,
        balloon_kib=_kib(root.find("currentMemory")) or most_kib,
        disk_bytes=_disk_bytes(nova),
        disks=tuple(_metric_disks(root)),
        nics=tuple(_nics(root, nova)),
        tells_memory=_tells_memory(root),
    )


def _vcpus(root: ET.Element) -> int:
    element = root.find("vcpu")
    if element is None:
        return 1
    return max(1, _number(element.get("current") or element.text))


def _kib(element: ET.Element | None) -> int:
    if element is None:
        return 0
    unit = element.get("unit", "KiB")
    return _number(element.text) * (_UNITS | _UNITS_MORE).get(unit, 1024) // 1024


def _tells_memory(root: ET.Element) -> bool:
    element = root.find("devices/memballoon")
    if element is None or element.get("model") == "none":
        return False
    stats = element.find("stats")
    return stats is not None and _number(stats.get("period")) > 0


def _metric_disks(root: ET.Element) -> Iterator[Disk]:
    for element in root.iterfind("devices/disk"):
        target, source = element.find("target"), element.find("source")
        if target is None or element.get("device") in ("cdrom", "floppy"):
            continue
        where = source.attrib if source is not None else {}
        path = where.get("file") or where.get("dev") or where.get("name") or ""
        serial = element.findtext("serial", "").strip()
        volume = serial if _UUID.fullmatch(serial) else ""
        yield Disk(target.get("dev", ""), path, volume, dict(_tunes(element)))


def _tunes(disk: ET.Element) -> Iterator[tuple[str, float]]:
    for element in disk.iterfind("iotune/*"):
        limit = _number(element.text)
        if element.tag in _TUNES and limit:
            yield _TUNES[element.tag], float(limit)


def _nics(root: ET.Element, nova: dict[str, str]) -> Iterator[Nic]:
    ours = root.find(f"metadata/{OURS}")
    bandwidth = (ours.get(BANDWIDTH) if ours is not None else None) or nova.get(BANDWIDTH)
    everywhere = _number(bandwidth) * 1e6
    ports = nova.get("ports", "").split()
    for element in root.iterfind("devices/interface"):
        target, mac = element.find("target"), element.find("mac")
        ifname = target.get("dev", "") if target is not None else ""
        contracts = {"rx_bps": everywhere, "tx_bps": everywhere} if everywhere else {}
        contracts |= dict(_bandwidths(element))
        address = mac.get("address", "") if mac is not None else ""
        swapped = element.get("type") != "direct"
        yield Nic(ifname, address, _port(element, ifname, ports), swapped, contracts)


def _bandwidths(nic: ET.Element) -> Iterator[tuple[str, float]]:
    """Read the interface's bandwidth limits; inbound traffic is received by the guest."""
    for way, name in (("inbound", "rx_bps"), ("outbound", "tx_bps")):
        element = nic.find(f"bandwidth/{way}")
        if element is not None and _number(element.get("average")):
            yield name, _number(element.get("average")) * KILOBYTE_BITS


def _port(nic: ET.Element, ifname: str, ports: list[str]) -> str:
    """Return the Neutron port id.

    Open vSwitch interfaces name it; otherwise Neutron's tap carries the first letters of the id.
    """
    element = nic.find("virtualport/parameters")
    if element is not None and element.get("interfaceid"):
        return element.get("interfaceid", "")
    begins = ifname[3:] if ifname.startswith(("tap", "vhu")) else ""
    return next((port for port in ports if begins and port.startswith(begins)), "")


def _metric_nova(root: ET.Element) -> Iterator[tuple[str, str]]:
    """Read disk sizes, ports and bandwidth from Nova's metadata, of any namespace version."""
    ports = []
    for element in root.iterfind("metadata//*"):
        space, _, tag = element.tag.rpartition("}")
        if not space.startswith(_NOVA):
            continue
        if tag in ("disk", "swap", "ephemeral"):
            yield tag, element.text or ""
        elif tag == "port":
            ports.append(element.get("uuid", ""))
        elif tag == "extraSpec" and element.get("name") == f"{SPEC}{BANDWIDTH}":
            yield BANDWIDTH, element.text or ""
    yield "ports", " ".join(ports)


def _disk_bytes(nova: dict[str, str]) -> int | None:
    """Return the disk size of the flavor in bytes; Nova writes disks in GiB and swap in MiB."""
    if "disk" not in nova:
        return None
    large = _number(nova["disk"]) + _number(nova.get("ephemeral"))
    return large * 2**30 + _number(nova.get("swap")) * 2**20


def _number(text: str | None) -> int:
    digits = (text or "").strip()
    return int(digits) if digits.isdecimal() else 0


# Facts for the libvirt cloud: a guest's status, size and disks, and whether the guest may move.
#
# Two hosts may both have a disk of the same path and yet not share it, so `[libvirt] shared` must
# name the shared paths. A returning host starts guests that have autostart by itself, and only a
# lock on their disks can then prevent a second start.


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
class CloudDisk:
    target: str
    type: str  # file, block, network, volume, …
    source: str  # a path, pool:NAME, or PROTOCOL:NAME


@dataclass(frozen=True)
class CloudFacts:
    uuid: str
    name: str
    vcpus: int
    memory_mb: int
    project: str = ""
    flavor: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    disks: tuple[CloudDisk, ...] = ()


def server_status(state: str, reason: str) -> tuple[str, str | None]:
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


def read_cloud_facts(xml: str) -> CloudFacts:
    """Parse an XML of libvirt, with sizes in KiB; DriverError if the XML cannot be read."""
    root = tree(xml)
    try:
        if root is None:
            raise ValueError("invalid, too large or with a DOCTYPE")
        return _cloud_facts(root)
    except ValueError as error:
        raise DriverError(
            "libvirt", f"the XML of a domain cannot be read: {error}: {xml[:80]!r}", retryable=True
        ) from error


def _cloud_facts(root: ET.Element) -> CloudFacts:
    metadata = _cloud_settings(root)
    return CloudFacts(
        uuid=root.findtext("uuid", "").strip(),
        name=root.findtext("name", "").strip(),
        vcpus=int(root.findtext("vcpu", "1")),
        memory_mb=-(-int(root.findtext("memory", "0")) // 1024),
        project=metadata.get("project", ""),
        flavor=metadata.get("flavor", ""),
        metadata=metadata,
        disks=tuple(_cloud_disks(root)),
    )


def _cloud_settings(root: ET.Element) -> dict[str, str]:
    ours = root.find(f"metadata/{OURS}")
    settings = dict(ours.attrib) if ours is not None else {}
    if "ha" in settings:
        settings.setdefault(HA, settings["ha"])
    return settings


def _cloud_disks(root: ET.Element) -> Sequence[CloudDisk]:
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
        disks.append(CloudDisk(name, kind, where))
    return disks


def why_stays(guest: CloudFacts, shared: Sequence[str], *, autostart: bool) -> str:
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
        for root in (posixpath.normpath(prefix) for prefix in shared if prefix.startswith("/"))
    )
