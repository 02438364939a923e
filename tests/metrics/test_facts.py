# SPDX-License-Identifier: Apache-2.0
"""What a domain's XML says that numbers are measured by."""

from __future__ import annotations

from holdfast.drivers.libvirt import domain_xml
from holdfast.ports.metrics import Disk, Nic

VOLUME = "7f3b5c1e-9a52-4d0b-8f5e-0d8b8a1b2c3d"
PORT, OTHER = "6a1ad63a-e6aa-4bcd-9123-456789abcdef", "91e2c7b0-1111-4222-8333-944455556666"
NOVA = f"""\
<domain type='kvm' id='3'>
  <name>instance-0000002a</name><uuid>0f8c0a52-6f3e-4f43-8bb4-6f4f31d0cf5a</uuid>
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:name>web-1</nova:name>
      <nova:flavor name="m1.large">
        <nova:memory>4096</nova:memory><nova:disk>20</nova:disk><nova:swap>512</nova:swap>
        <nova:ephemeral>10</nova:ephemeral><nova:vcpus>4</nova:vcpus>
        <nova:extraSpecs>
          <nova:extraSpec name="holdfast:bandwidth_mbps">5000</nova:extraSpec>
        </nova:extraSpecs>
      </nova:flavor>
      <nova:owner><nova:project uuid="p-1">shop</nova:project></nova:owner>
      <nova:ports>
        <nova:port uuid="{PORT}"/><nova:port uuid="{OTHER}"/>
      </nova:ports>
    </nova:instance>
  </metadata>
  <memory unit='GiB'>4</memory><currentMemory unit='KiB'>2097152</currentMemory>
  <vcpu placement='static' current='2'>4</vcpu>
  <devices>
    <disk type='network' device='disk'><source protocol='rbd' name='vms/x_disk'/>
      <target dev='vda' bus='virtio'/>
      <iotune><total_iops_sec>500</total_iops_sec><read_bytes_sec>0</read_bytes_sec></iotune>
    </disk>
    <disk type='block' device='disk'><source dev='/dev/sdb'/><target dev='vdb' bus='virtio'/>
      <serial>{VOLUME}</serial></disk>
    <disk type='file' device='cdrom'><target dev='hdc' bus='ide'/></disk>
    <interface type='bridge'><mac address='fa:16:3e:00:00:01'/><target dev='tap6a1ad63a-e6'/>
      <bandwidth><inbound average='125000'/></bandwidth></interface>
    <interface type='bridge'><mac address='fa:16:3e:00:00:02'/><target dev='tapx'/>
      <virtualport type='openvswitch'><parameters interfaceid='{OTHER}'/></virtualport>
    </interface>
    <interface type='direct'><mac address='fa:16:3e:00:00:03'/><target dev='macvtap0'/></interface>
    <memballoon model='virtio'><stats period='10'/></memballoon>
  </devices>
</domain>"""


def test_nova_metadata_in_domain_xml_is_read() -> None:
    facts = domain_xml.read_metric_facts(NOVA)
    assert facts is not None
    assert (facts.project, facts.project_name, facts.flavor) == ("p-1", "shop", "m1.large")
    assert (facts.vcpus, facts.memory_kib, facts.balloon_kib) == (2, 4 * 2**20, 2 * 2**20)
    assert facts.disk_bytes == 30 * 2**30 + 512 * 2**20
    assert facts.tells_memory
    assert facts.disks == (
        Disk("vda", "vms/x_disk", "", {"iops": 500.0}),
        Disk("vdb", "/dev/sdb", VOLUME),
    )


def test_interfaces_have_ports_contracts_and_a_counting_side() -> None:
    facts = domain_xml.read_metric_facts(NOVA)
    assert facts is not None
    pipe = {"rx_bps": 5e9, "tx_bps": 5e9}
    assert facts.nics == (
        Nic("tap6a1ad63a-e6", "fa:16:3e:00:00:01", PORT, True, pipe | {"rx_bps": 1e9}),
        Nic("tapx", "fa:16:3e:00:00:02", OTHER, True, pipe),
        Nic("macvtap0", "fa:16:3e:00:00:03", "", False, pipe),
    )


def test_a_domain_with_minimal_xml_has_facts() -> None:
    facts = domain_xml.read_metric_facts(
        "<domain><name>a</name><uuid>u</uuid><memory>2048</memory></domain>"
    )
    assert facts is not None
    assert (facts.vcpus, facts.memory_kib, facts.balloon_kib) == (1, 2048, 2048)
    assert (facts.disk_bytes, facts.disks, facts.nics, facts.tells_memory) == (None, (), (), False)


def test_our_own_element_may_say_the_contract() -> None:
    text = (
        "<domain><metadata><h:guest xmlns:h='urn:holdfast:guest' bandwidth_mbps='100'/></metadata>"
        "<devices><interface type='ethernet'><target dev='t0'/></interface></devices></domain>"
    )
    facts = domain_xml.read_metric_facts(text)
    assert facts is not None
    assert facts.nics[0].contracts == {"rx_bps": 1e8, "tx_bps": 1e8}


def test_text_without_valid_xml_yields_no_facts() -> None:
    assert domain_xml.read_metric_facts("<domain") is None
    assert domain_xml.read_metric_facts("<!DOCTYPE x><domain/>") is None
