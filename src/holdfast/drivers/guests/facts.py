# SPDX-License-Identifier: Apache-2.0
"""What a domain's XML says about a guest: whose it is, and what its disks are called.

Nova writes project and flavor. Who has no Nova, or wants to say more, writes an element of ours,
whose attributes count before Nova's:

    <metadata>
      <holdfast:guest xmlns:holdfast="urn:holdfast:guest" ha="no" project="batch" flavor="large"/>
    </metadata>
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

OURS: Final = "{urn:holdfast:guest}guest"
#: So begin the extra specs of a flavor that are for us; Nova writes them too.
SPEC: Final = "holdfast:"
MOST_BYTES: Final = 2**20
LONGEST: Final = 255
#: What its owner wants for it, yes or no.
_WISHES: Final = ("ha", "heartbeat")
_SPECS: Final = tuple(f"{SPEC}{name}" for name in _WISHES)
_YES: Final = ("yes", "true", "on", "1")
_NO: Final = ("no", "false", "off", "0")


@dataclass(frozen=True)
class Disk:
    name: str  # vda
    path: str  # its source


@dataclass(frozen=True)
class Facts:
    metadata: Mapping[str, str] = field(default_factory=dict)
    disks: Mapping[str, Disk] = field(default_factory=dict)  # by alias


def read(text: str) -> Facts:
    """Nothing is known of a guest whose XML cannot be read, which is no reason to overlook it."""
    root = tree(text)
    return Facts() if root is None else of(root)


def tree(text: str) -> ET.Element | None:
    """The XML, if it is one that can be read without harm."""
    if len(text) > MOST_BYTES or "<!DOCTYPE" in text:
        return None
    try:
        return ET.fromstring(text)
    except ET.ParseError:
        return None


def of(root: ET.Element) -> Facts:
    metadata = {**dict(_settings(root)), **dict(_nova(root)), **dict(_ours(root))}
    metadata |= {name: _yes_no(metadata.get(name, "")) for name in _WISHES}
    kept = {name: value[:LONGEST] for name, value in metadata.items() if value}
    return Facts(kept, dict(_disks(root)))


def _settings(root: ET.Element) -> Iterator[tuple[str, str]]:
    yield "on_crash", root.findtext("on_crash", "")
    watchdog = root.find("devices/watchdog")
    if watchdog is not None:
        yield "watchdog", watchdog.get("action", "reset")


def _nova(root: ET.Element) -> Iterator[tuple[str, str]]:
    """Whatever version its namespace has."""
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
    word = text.strip().lower()
    return "yes" if word in _YES else "no" if word in _NO else ""


def _disks(root: ET.Element) -> Iterator[tuple[str, Disk]]:
    for disk in root.iterfind("devices/disk"):
        alias, target, source = disk.find("alias"), disk.find("target"), disk.find("source")
        if alias is None or target is None:
            continue
        where = source.attrib if source is not None else {}
        path = where.get("file") or where.get("dev") or where.get("name") or ""
        yield alias.get("name", ""), Disk(target.get("dev", ""), path)
