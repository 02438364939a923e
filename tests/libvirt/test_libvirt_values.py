# SPDX-License-Identifier: Apache-2.0
"""What plain libvirt as a cloud decides without a host: states, disks, rooms, configuration."""

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import conf as configuration
from holdfast.drivers.libvirt import domain_xml, heartbeat, settings
from holdfast.drivers.libvirt.domain_xml import CloudDisk, CloudFacts
from holdfast.drivers.libvirt.registry import DomainState, File, GuestRecord, GuestRegistry
from holdfast.drivers.libvirt.servers import Room, best
from holdfast.model.errors import Conflict, DriverError
from holdfast.runtime.clock import SystemClock

XML = """\
<domain type='kvm'><name>web</name><uuid>4ab11c5e-7bb4-4f0e-8b52-000000000000</uuid>
<metadata><hf:guest xmlns:hf='urn:holdfast:guest' ha='yes' HA_Priority='5'
 project='red'/></metadata>
<memory unit='KiB'>2097153</memory><vcpu placement='static'>4</vcpu><devices>
<disk type='file' device='disk'><source file='/srv/guests/web.qcow2'/><target dev='vda'/></disk>
<disk type='block' device='lun'><source dev='/dev/vg/web'/><target dev='sda'/></disk>
<disk type='network' device='disk'><source protocol='rbd' name='vms/web'/><target dev='vdb'/></disk>
<disk type='volume' device='disk'><source pool='nfs' volume='web'/><target dev='vdc'/></disk>
<disk type='file' device='cdrom'><source file='/srv/install.iso'/><target dev='hdc'/></disk>
<disk type='file' device='cdrom'><target dev='hdd'/></disk>
</devices></domain>"""


def test_the_xml_has_size_disks_and_metadata_of_a_guest() -> None:
    seen = domain_xml.read_cloud_facts(XML)
    assert (seen.name, seen.vcpus, seen.memory_mb, seen.project) == ("web", 4, 2049, "red")
    assert seen.metadata == {
        "ha": "yes",
        "HA_Enabled": "yes",
        "HA_Priority": "5",
        "project": "red",
    }
    assert seen.disks == (
        CloudDisk("vda", "file", "/srv/guests/web.qcow2"),
        CloudDisk("sda", "block", "/dev/vg/web"),
        CloudDisk("vdb", "network", "rbd:vms/web"),
        CloudDisk("vdc", "volume", "pool:nfs"),
    )


@pytest.mark.parametrize(
    "xml",
    [
        "<domain",
        "<!DOCTYPE x><domain/>",
        f"<domain>{' ' * 2**20}</domain>",
        XML.replace(">4<", ">four<"),
        "\ud800",
    ],
    ids=range(5),
)
def test_an_xml_that_cannot_be_read_is_a_retryable_error_and_no_open_channel(xml: str) -> None:
    with pytest.raises(DriverError, match="XML of a domain cannot be read") as caught:
        domain_xml.read_cloud_facts(xml)
    assert caught.value.retryable
    assert not heartbeat._is_open(xml)


@pytest.mark.parametrize(
    ("state", "reason", "status", "task"),
    [
        ("running", "booted", "ACTIVE", None),
        ("paused", "user", "PAUSED", None),
        ("paused", "ioerror", "ERROR", None),
        ("paused", "watchdog", "ERROR", None),
        ("paused", "crashed", "ERROR", None),
        ("paused", "postcopy_failed", "ERROR", None),
        ("paused", "migration", "ACTIVE", "migrating"),
        ("paused", "starting_up", "ACTIVE", "powering-on"),
        ("shutdown", "unknown", "ACTIVE", "powering-off"),
        ("shutoff", "crashed", "SHUTOFF", None),
        ("shutoff", "failed", "SHUTOFF", None),
        ("shutoff", "saved", "SUSPENDED", None),
        ("crashed", "panicked", "ERROR", None),
        ("pmsuspended", "unknown", "SUSPENDED", None),
        ("nostate", "0", "ACTIVE", None),
        ("paused", "99", "ERROR", None),
    ],
)
def test_each_libvirt_state_has_a_single_cloud_state(
    state: str, reason: str, status: str, task: str | None
) -> None:
    assert domain_xml.server_status(state, reason) == (status, task)


@pytest.mark.parametrize(
    ("disk", "why"),
    [
        (CloudDisk("vda", "file", "/srv/guests/web.raw"), ""),
        (CloudDisk("vda", "file", "/srv/guests-of-old/web.raw"), "in none of"),
        (CloudDisk("vda", "file", "/srv/guests/../local/web.raw"), "in none of"),
        (CloudDisk("vda", "file", ""), "in none of"),
        (CloudDisk("sda", "block", "/dev/disk/by-id/wwn-1"), ""),
        (CloudDisk("sda", "block", "/dev/sdb"), "in none of"),
        (CloudDisk("vdb", "network", "rbd:vms/web"), ""),
        (CloudDisk("vdc", "volume", "pool:nfs"), ""),
        (CloudDisk("vdc", "volume", "pool:default"), "in none of"),
    ],
)
def test_only_a_guest_whose_disks_are_shared_may_leave(disk: CloudDisk, why: str) -> None:
    shared = ("/srv/guests/", "/dev/disk/by-id", "pool:nfs")
    said = domain_xml.why_stays(
        CloudFacts("u", "web", 1, 16, disks=(disk,)), shared, autostart=False
    )
    assert (why in said) if why else said == ""


def test_nothing_is_shared_until_somebody_says_so() -> None:
    facts = CloudFacts("u", "web", 1, 16, disks=(CloudDisk("vda", "file", "/srv/web.raw"),))
    assert "[libvirt] shared (empty)" in domain_xml.why_stays(facts, (), autostart=False)


@pytest.mark.parametrize(("kind", "stays"), [("file", False), ("block", True), ("network", True)])
def test_what_its_host_starts_again_by_itself_leaves_only_if_its_disks_are_locked(
    kind: str, stays: bool
) -> None:
    facts = CloudFacts("u", "web", 1, 16, disks=(CloudDisk("vda", kind, "/srv/web"),))
    said = domain_xml.why_stays(facts, ("/srv",), autostart=True)
    assert ("virsh autostart --disable web" in said) is stays


def test_a_guest_goes_where_most_memory_is_left_and_last_to_where_it_failed() -> None:
    rooms = [Room("cmp-1", 900), Room("cmp-2", 2000), Room("cmp-3", 1000)]
    assert best(rooms, 512, {}) == "cmp-2"
    assert best(rooms, 512, {"cmp-2": 1}) == "cmp-3"
    assert best(rooms, 950, {"cmp-2": 2, "cmp-3": 1}) == "cmp-3"
    assert best(rooms, 4096, {}) is None


def load(folder: Path, text: str) -> settings.Settings:
    file = folder / "holdfast.conf"
    file.write_text(text)
    return settings.load(configuration.load([], [str(file)]))


def test_hosts_come_from_the_option_and_from_a_file(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(
        "KVM-3: {uri: 'qemu+tls://kvm-3/system', rack: r2, zone: z}\nkvm-2: qemu+ssh://kvm-2/system\n"
    )
    made = load(
        tmp_path,
        "[libvirt]\nhosts = kvm-1:qemu+unix:///system?socket=/run/a,kvm-4:qemu+tcp://[::1]:16509/system\n"
        f"hosts_file = {hosts}\nshared = /srv/guests, pool:nfs\n[cloud]\ncall_timeout_s = 6\n",
    )
    assert made.hosts == (
        settings.Host("kvm-1", "qemu+unix:///system?socket=/run/a"),
        settings.Host("kvm-2", "qemu+ssh://kvm-2/system"),
        settings.Host("kvm-3", "qemu+tls://kvm-3/system", "r2", "z"),
        settings.Host("kvm-4", "qemu+tcp://[::1]:16509/system"),
    )
    assert made.shared == ("/srv/guests", "pool:nfs")
    assert (made.call_timeout_s, made.poll_timeout_s) == (6, 2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there are no hosts"),
        ("a: nonsense", "no URI"),
        ("a: x:///\na.example.org: y:///", "there twice"),
        ("a: x:///\nb: x:///", "the same URI"),
        (
            "a: {uri: 'x:///', racks: 7}",
            "line 1: key 'racks' is unknown: there are uri, rack, zone",
        ),
        ("a: {rack: r1}", "line 1: `uri` is missing: add `uri: …`"),
        ("a: x:///\nb: [1]", r"line 2: '\[1\]' should be a map: write {uri: …}"),
        ("a: {uri: [1]}", r"line 1: `uri` is '\[1\]': write a word"),
        ("- a", "line 1: write a map: `kvm-1"),
        ("a: &x 1", "anchors"),
    ],
)
def test_a_wrong_list_of_hosts_is_refused_with_what_to_write(
    tmp_path: Path, text: str, why: str
) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(text)
    with pytest.raises(DriverError, match=why) as refused:
        load(tmp_path, f"[libvirt]\nhosts_file = {hosts}\n" if text else "")
    assert not refused.value.retryable


def test_a_file_of_hosts_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=r"/nowhere/hosts.yaml cannot be read"):
        load(tmp_path, "[libvirt]\nhosts_file = /nowhere/hosts.yaml\n")


GUEST_ID = "4ab11c5e-7bb4-4f0e-8b52-000000000000"


def _registry(path: Path) -> GuestRegistry:
    """A registry with a guest that runs on cmp-1."""
    registry = GuestRegistry(File(str(path / "guests.db")), SystemClock(), ("cmp-1", "cmp-2"))
    domain = DomainState(GUEST_ID, "web", "ACTIVE", None, True, True, False, XML)
    registry.record("cmp-1", [domain], registry.now())
    return registry


def _migrations(registry: GuestRegistry) -> list[str]:
    with registry.file.transaction() as db:
        return [row["status"] for row in db.execute("SELECT status FROM migrations ORDER BY id")]


@pytest.mark.parametrize(
    "late",
    [
        lambda registry, guest: registry.adopt(guest, "cmp-2"),
        lambda registry, guest: registry.drop_task(guest),
        lambda registry, guest: registry.refuse_move(guest, "cmp-2"),
    ],
    ids=["adopt", "drop_task", "refuse_move"],
)
def test_a_manager_with_an_older_view_of_a_guest_does_not_end_the_evacuation_of_another(
    tmp_path: Path, late: Callable[[GuestRegistry, GuestRecord], object]
) -> None:
    registry = _registry(tmp_path)
    older_view = registry.find(GUEST_ID)
    evacuation = registry.begin(older_view, "rebuilding", 60.0, dest="cmp-2")
    with pytest.raises(Conflict, match="meanwhile"):
        late(registry, older_view)
    assert _migrations(registry) == ["running"]
    assert registry.end(evacuation, host="cmp-2", status="ACTIVE")
    assert _migrations(registry) == ["done"]
    assert registry.find(GUEST_ID).host == "cmp-2"


def test_a_guest_whose_host_lost_the_task_is_adopted_where_it_runs(tmp_path: Path) -> None:
    registry = _registry(tmp_path)
    registry.adopt(registry.find(GUEST_ID), "cmp-2")
    assert registry.find(GUEST_ID).host == "cmp-2"
