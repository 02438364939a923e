# SPDX-License-Identifier: Apache-2.0
"""What a domain's XML says, and what it cannot be made to say."""

from __future__ import annotations

import importlib.util
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.drivers.libvirt import domain_xml
from holdfast.drivers.libvirt.domain_xml import GuestDisk

DOMAIN = """\
<domain type='kvm'>
  <name>instance-1</name>
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:flavor name="m1.large" id="7">
        <nova:extraSpecs>
          <nova:extraSpec name="hw:cpu_policy">dedicated</nova:extraSpec>
          <nova:extraSpec name="holdfast:ha">False</nova:extraSpec>
        </nova:extraSpecs>
      </nova:flavor>
      <nova:owner>
        <nova:user uuid="u-1">ann</nova:user>
        <nova:project uuid="p-1">demo</nova:project>
      </nova:owner>
    </nova:instance>{ours}
  </metadata>
  <on_crash>restart</on_crash>
  <devices>
    <disk type='network' device='disk'><source protocol='rbd' name='volumes/volume-1'/>
      <target dev='vda' bus='virtio'/><alias name='virtio-disk0'/></disk>
    <disk type='file' device='cdrom'><target dev='sda'/><alias name='sata0-0-0'/></disk>
    <watchdog model='i6300esb' action='dump'/>
  </devices>
</domain>"""


def test_whose_guest_it_is_and_what_its_disks_are_called() -> None:
    found = domain_xml.read_facts(DOMAIN.format(ours=""))
    assert found.metadata == {
        "project": "p-1",
        "project_name": "demo",
        "flavor": "m1.large",
        "ha": "no",
        "on_crash": "restart",
        "watchdog": "dump",
    }
    assert found.disks == {
        "virtio-disk0": GuestDisk("vda", "volumes/volume-1"),
        "sata0-0-0": GuestDisk("sda", ""),
    }


def test_metadata_for_holdfast_counts_before_metadata_of_nova() -> None:
    ours = '<h:guest xmlns:h="urn:holdfast:guest" ha="yes" flavor="mine"/>'
    found = domain_xml.read_facts(DOMAIN.format(ours=ours)).metadata
    assert (found["ha"], found["flavor"], found["project"]) == ("yes", "mine", "p-1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<domain>",
        "<!DOCTYPE d [<!ENTITY a 'aaaa'>]><domain><on_crash>&a;</on_crash></domain>",
        "<domain>" + " " * domain_xml.MOST_BYTES + "</domain>",
    ],
)
def test_of_what_cannot_be_read_nothing_is_known(text: str) -> None:
    assert domain_xml.read_facts(text) == domain_xml.GuestFacts()


@settings(deadline=None)
@given(st.text(max_size=300))
def test_whatever_it_is_it_is_read_or_not(text: str) -> None:
    for xml in (text, f"<domain><metadata>{text}</metadata></domain>"):
        assert all(
            len(value) <= domain_xml.LONGEST
            for value in domain_xml.read_facts(xml).metadata.values()
        )


def test_the_words_are_those_of_the_library_that_is_here() -> None:
    """By its own constants. A newer one may have more: those are their own numbers."""
    if importlib.util.find_spec("libvirt") is None:
        why = "libvirt-python is not installed: `make test-deps`"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    import libvirt

    for number, what in enumerate(domain_xml.LIFECYCLE):
        assert getattr(libvirt, f"VIR_DOMAIN_EVENT_{what.upper()}") == number
        found = f"VIR_DOMAIN_EVENT_{what.upper()}_"
        for name, detail in vars(libvirt).items():
            if name.startswith(found):
                said = name.removeprefix(found).lower()
                assert domain_xml.lifecycle(number, detail) in ((what, said), (what, str(detail)))
    for what in ("running", "paused", "shutoff", "crashed"):
        found = f"VIR_DOMAIN_{what.upper()}_"
        number = getattr(libvirt, f"VIR_DOMAIN_{what.upper()}")
        for name, reason in vars(libvirt).items():
            if name.startswith(found):
                said = name.removeprefix(found).lower()
                assert domain_xml.state(number, reason) in ((what, said), (what, str(reason)))


def test_an_unknown_number_is_shown_as_a_number() -> None:
    assert domain_xml.lifecycle(5, 77) == ("stopped", "77")
    assert domain_xml.state(99, 1) == ("99", "1")
