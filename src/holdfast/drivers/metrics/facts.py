# SPDX-License-Identifier: Apache-2.0
"""What a domain's XML says of a guest that its numbers are measured by: whose it is, how large,
what its disks and interfaces are called elsewhere, and what its owner may use.

The limits libvirt itself enforces are contracts, and so is what an element or an extra spec of ours
says, for where somebody else enforces them, or nobody does:

    <holdfast:guest xmlns:holdfast="urn:holdfast:guest" bandwidth_mbps="5000"/>
    openstack flavor set large --property holdfast:bandwidth_mbps=5000
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Final

from holdfast.drivers.guests import facts as guests
from holdfast.ports.measures import Disk, Facts, Nic

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


def read(text: str) -> Facts | None:
    """None if it cannot be read."""
    root = guests.tree(text)
    return None if root is None else of(root)


def of(root: ET.Element) -> Facts:
    about = guests.of(root).metadata
    nova = dict(_nova(root))
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
        disks=tuple(_disks(root)),
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


def _disks(root: ET.Element) -> Iterator[Disk]:
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
    ours = root.find(f"metadata/{guests.OURS}")
    said = (ours.get(BANDWIDTH) if ours is not None else None) or nova.get(BANDWIDTH)
    everywhere = _number(said) * 1e6
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
    """What the guest receives is inbound."""
    for way, name in (("inbound", "rx_bps"), ("outbound", "tx_bps")):
        element = nic.find(f"bandwidth/{way}")
        if element is not None and _number(element.get("average")):
            yield name, _number(element.get("average")) * KILOBYTE_BITS


def _port(nic: ET.Element, ifname: str, ports: list[str]) -> str:
    """Of Open vSwitch it is said; else Neutron's taps carry the first letters of it."""
    said = nic.find("virtualport/parameters")
    if said is not None and said.get("interfaceid"):
        return said.get("interfaceid", "")
    begins = ifname[3:] if ifname.startswith(("tap", "vhu")) else ""
    return next((port for port in ports if begins and port.startswith(begins)), "")


def _nova(root: ET.Element) -> Iterator[tuple[str, str]]:
    """Whatever version its namespace has."""
    ports = []
    for element in root.iterfind("metadata//*"):
        space, _, tag = element.tag.rpartition("}")
        if not space.startswith(_NOVA):
            continue
        if tag in ("disk", "swap", "ephemeral"):
            yield tag, element.text or ""
        elif tag == "port":
            ports.append(element.get("uuid", ""))
        elif tag == "extraSpec" and element.get("name") == f"{guests.SPEC}{BANDWIDTH}":
            yield BANDWIDTH, element.text or ""
    yield "ports", " ".join(ports)


def _disk_bytes(nova: dict[str, str]) -> int | None:
    """Nova writes disks in GiB, swap in MiB."""
    if "disk" not in nova:
        return None
    large = _number(nova["disk"]) + _number(nova.get("ephemeral"))
    return large * 2**30 + _number(nova.get("swap")) * 2**20


def _number(text: str | None) -> int:
    word = (text or "").strip()
    return int(word) if word.isdecimal() else 0
