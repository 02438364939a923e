# SPDX-License-Identifier: Apache-2.0
"""`holdfast fence`: what an operator sees and does, against a real BMC emulator."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.drivers.bmc import USER, Proxy
from tests.processes import eventually, free_port
from tests.servers.libvirt import Libvirt
from tests.servers.redfish import Redfish

from holdfast import conf as configuration
from holdfast.cmd.client import main as holdfast
from holdfast.drivers import fence
from holdfast.drivers.fence.fences import Fences
from holdfast.runtime.clock import SystemClock


@pytest.fixture
def site(tmp_path: Path, bmc: Redfish, machines: dict[str, str], password_file: str) -> str:
    """A configuration with a good device and one that nobody answers for."""
    devices = tmp_path / "fences.yaml"
    devices.write_text(f"""\
defaults: {{driver: redfish, user: {USER}, password_file: {password_file}}}
hosts:
  cmp-1: {{address: "{bmc.url}", system: cmp-1, verify_ca: {bmc.certificate}}}
  cmp-3: {{address: "127.0.0.1:{free_port()}", timeout_s: 2}}
""")
    config = tmp_path / "holdfast.conf"
    config.write_text(
        f"[fencing]\ndevices_file = {devices}\ncall_timeout_s = 60\n[database]\nconnection = sqlite:///{tmp_path}/no\n"
    )
    return str(config)


def test_check_says_which_devices_cannot_be_used_and_switches_nothing(
    site: str, libvirt: Libvirt, capsys: pytest.CaptureFixture[str]
) -> None:
    libvirt.switch("cmp-1", on=True)
    assert holdfast(["fence", "check", "--config", site, "-f", "csv"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith('"cmp-1","redfish","https://127.0.0.1:')
    assert '"on"' in lines[1]
    assert lines[2].startswith('"cmp-3","redfish",')
    assert "Connection refused" in lines[2]
    assert holdfast(["fence", "check", "cmp-1", "--config", site]) == 0
    assert holdfast(["fence", "check", "cmp-7", "--config", site]) == 1
    assert "no fence is configured for cmp-7" in capsys.readouterr().out.replace("\n", " ")
    assert libvirt.runs("cmp-1")


def test_an_operator_cuts_power_only_with_yes_and_hears_what_was_read_back(
    site: str, libvirt: Libvirt, capsys: pytest.CaptureFixture[str]
) -> None:
    libvirt.switch("cmp-1", on=True)
    assert holdfast(["fence", "off", "cmp-1", "--config", site]) == 1
    assert "say --yes" in capsys.readouterr().err
    assert libvirt.runs("cmp-1")
    assert holdfast(["fence", "off", "cmp-1", "--yes", "--config", site]) == 0
    assert "cmp-1 is off, read back after" in capsys.readouterr().out
    assert not libvirt.runs("cmp-1")
    assert holdfast(["fence", "status", "cmp-1", "--config", site, "-f", "value"]) == 0
    assert "off" in capsys.readouterr().out
    assert holdfast(["fence", "on", "cmp-1", "--yes", "--config", site]) == 0
    assert libvirt.runs("cmp-1")
    assert holdfast(["fence", "off", "cmp-3", "--yes", "--config", site]) == 1
    assert "fence: cmp-3: Redfish at" in capsys.readouterr().err


def test_the_command_names_a_device_with_a_false_answer(
    site: str, bmc: Redfish, libvirt: Libvirt, capsys: pytest.CaptureFixture[str]
) -> None:
    libvirt.switch("cmp-1", on=True)
    with Proxy(bmc, lies=True).listening() as proxy:
        devices = Path(site).with_name("fences.yaml")
        devices.write_text(devices.read_text().replace(f":{bmc.port}", f":{proxy.port}"))
        assert holdfast(["fence", "off", "cmp-1", "--yes", "--wait", "0.5", "--config", site]) == 1
    said = capsys.readouterr().err
    assert "took the order and reads on after" in said
    assert "not proven to be off" in said


def test_fences_built_from_a_configuration_switch_a_real_machine(
    site: str, libvirt: Libvirt
) -> None:
    libvirt.switch("cmp-1", on=True)
    fences: Fences = fence.connect(configuration.load([], [site]), SystemClock())
    assert fences.call_timeout_s == 60.0
    fences.off("CMP-1.example.org")
    eventually(lambda: fences.power("cmp-1") == "off")
    assert not libvirt.runs("cmp-1")
