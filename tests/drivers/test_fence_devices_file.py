# SPDX-License-Identifier: Apache-2.0
"""The devices file, who is found in it, and how it is followed while it changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from oslo_config import cfg
from tests.drivers.small_cloud import HandClock

from holdfast import conf as configuration
from holdfast.cli import status
from holdfast.drivers import fence
from holdfast.drivers.fence import devices_file
from holdfast.drivers.fence.device import Device, host_name, without
from holdfast.drivers.fence.devices_file import BadDevices, Settings
from holdfast.drivers.fence.fences import Fences
from holdfast.model.errors import DriverError, InvalidInput, NotFound
from holdfast.ports.fence import Driver

GOOD = """\
defaults:
  user: holdfast
  password_file: {secret}
hosts:
  cmp-1:
    driver: redfish
    address: 192.0.2.11
  cmp-2.example.org:
    driver: redfish
    address: https://192.0.2.12:8443
    system: /redfish/v1/Systems/1
    verify_ca: false
    timeout_s: 7
  "rack7-*":
    driver: agent
    agent: fence_some
    address: "{{short}}.bmc.example"
    options: {{lanplus: true, plug: "{{host}}"}}
    action: off
  lab-1:
    driver: none
    i_accept_that_servers_may_run_twice: true
"""


@pytest.fixture
def secret(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text("hidden\n")
    file.chmod(0o600)
    return str(file)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "fence_some").write_text("#!/bin/sh\n")
    (tmp_path / "fence_some").chmod(0o755)
    return Settings(longest_s=28.0, agents_dir=str(tmp_path))


def test_a_device_combines_own_settings_and_defaults_of_the_file(
    secret: str, settings: Settings
) -> None:
    devices = devices_file.parse(GOOD.format(secret=secret), "f", settings)
    device = devices.find("cmp-1")
    assert (device.driver, device.address, device.user) == ("redfish", "192.0.2.11", "holdfast")
    assert (device.password_file, device.verify_ca, device.timeout_s) == (secret, True, 28.0)
    two = devices.find("cmp-2")
    assert (two.system, two.verify_ca, two.timeout_s) == ("/redfish/v1/Systems/1", False, 7.0)
    assert devices.find("lab-1").user == ""  # driver none has no use for the defaults
    assert list(devices.names()) == ["cmp-1", "cmp-2.example.org", "lab-1"]


def test_a_pattern_is_filled_with_the_hosts_own_name(secret: str, settings: Settings) -> None:
    found = devices_file.parse(GOOD.format(secret=secret), "f", settings)
    device = found.find("rack7-3.example.org").of("rack7-3.example.org")
    assert device.address == "rack7-3.bmc.example"
    assert device.options == {"lanplus": "1", "plug": "rack7-3.example.org"}


def test_the_name_itself_comes_before_any_pattern(settings: Settings) -> None:
    text = """\
hosts:
  "cmp-*": {driver: sim}
  cmp-1: {driver: none, i_accept_that_servers_may_run_twice: yes}
  "cmp-??": {driver: none, i_accept_that_servers_may_run_twice: yes}
"""
    devices = devices_file.parse(text, "f", settings)
    assert devices.find("cmp-1").driver == "none"
    assert devices.find("cmp-22").driver == "sim"  # of two patterns the first


def test_a_short_name_that_could_be_two_hosts_gets_no_device(settings: Settings) -> None:
    text = "hosts:\n  a.x: {driver: sim}\n  a.y: {driver: sim}\n"
    devices = devices_file.parse(text, "f", settings)
    assert devices.find("a.x").hosts == "a.x"
    with pytest.raises(DriverError, match=r"a could be any of a\.x, a\.y") as raised:
        devices.find("a")
    assert not raised.value.retryable


def test_a_host_without_a_device_is_not_found(settings: Settings) -> None:
    with pytest.raises(NotFound, match="no fence is configured for cmp-9"):
        devices_file.parse("", "f", settings).find("cmp-9")


HOST = "hosts:\n  a:\n    driver: redfish\n    user: u\n    password_file: {secret}\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("hosts:\n  a: [x]\n", 2, "'[x]' should be a map: write {driver: …}"),
        ("hosts:\n  a: {driver: [sim]}\n", 2, "'[sim]' is no driver"),
        ("hosts:\n  a: {driver: sim, fault: [x]}\n", 2, "a: fault: must be a text"),
        ("hosts: {\n", 2, ""),
        ("devices: {}\n", 1, "key 'devices' is unknown: there are defaults, hosts"),
        ("hosts:\n  a: {driver: sim}\n  a: {driver: sim}\n", 3, "host 'a' is there twice"),
        ("hosts:\n  'a b': {driver: sim}\n", 2, "not the name of a host"),
        ("hosts:\n  'a;b*': {driver: sim}\n", 2, "no pattern of host names"),
        (
            "hosts:\n  a:\n    address: x\n",
            2,
            "`driver` is missing: write agent, none, redfish or sim",
        ),
        ("hosts:\n  a:\n    driver: ipmi\n", 3, "'ipmi' is no driver: write agent, none"),
        ("hosts:\n  a:\n    driver: sim\n    adress: x\n", 4, "adress is no setting of"),
        ("hosts:\n  a:\n    driver: none\n", 2, "i_accept_that_servers_may_run_twice is missing"),
        (
            "hosts:\n  a:\n    driver: none\n    i_accept_that_servers_may_run_twice: false\n",
            4,
            "only with true",
        ),
        (HOST, 2, "address is missing, driver redfish needs it"),
        (HOST + "    address: http://bmc\n", 2, "allow_http: true"),
        (HOST + "    address: https://u:p@bmc\n", 2, "without user name, password and path"),
        (HOST + "    address: https://bmc/redfish\n", 2, "without user name, password and path"),
        (HOST + "    address: ftp://bmc\n", 2, "address must be"),
        (HOST + "    address: bmc\n    timeout_s: 29\n", 2, "between 0 and 28"),
        (HOST + "    address: bmc\n    timeout_s: soon\n", 7, "number of seconds"),
        (HOST + "    address: bmc\n    verify_ca: maybe\n", 7, "must be true or false"),
        (HOST + "    address: bmc\n    verify_ca: /no/such/file\n", 7, "cannot be read"),
        (HOST + "    address: bmc\n    action: cycle\n", 7, "must be one of off, reboot"),
        ("hosts:\n  a:\n    driver: agent\n    agent: /bin/rm\n", 4, "fence_ipmilan, fence_apc"),
        ("hosts:\n  a:\n    driver: agent\n    agent: fence_no\n", 2, "there is no fence_no"),
        (
            "hosts:\n  a:\n    driver: agent\n    agent: fence_some\n    options:\n"
            "      passwd: x\n",
            5,
            "passwd is a secret: put it in a file",
        ),
        (
            "hosts:\n  a:\n    driver: agent\n    agent: fence_some\n    options: {verbose: 1}\n",
            5,
            "would tell secrets",
        ),
        (
            "hosts:\n  a:\n    driver: agent\n    agent: fence_some\n    options: {'x\\ny': 1}\n",
            5,
            "no option of an agent",
        ),
        (
            'hosts:\n  a:\n    driver: agent\n    agent: fence_some\n    options: {x: "1\\ny=2"}\n',
            5,
            "one line of printable text",
        ),
        (
            "hosts:\n  'a*':\n    driver: agent\n    agent: fence_some\n    address: pdu\n",
            2,
            "all of its hosts would have one device",
        ),
        (
            HOST + "    address: BMC\n  b:\n    driver: redfish\n    user: u\n"
            "    password_file: {secret}\n    address: bmc\n",
            7,
            "same device as a in line 2",
        ),
    ],
)
def test_an_invalid_setting_is_reported_with_the_line(
    text: str, line: int, says: str, secret: str, settings: Settings
) -> None:
    with pytest.raises(BadDevices) as raised:
        devices_file.parse(text.replace("{secret}", secret), "fences.yaml", settings)
    problem = raised.value.problems[0]
    assert problem.line == line
    assert says in problem.text
    assert f"line {line}: {problem.text}" in raised.value.message


def test_all_problems_are_reported_at_once(settings: Settings) -> None:
    text = "hosts:\n  a: {driver: sim, fault: odd}\n  b: {driver: ipmi}\n  b: {driver: sim}\n"
    with pytest.raises(BadDevices) as raised:
        devices_file.parse(text, "f", settings)
    assert [problem.line for problem in raised.value.problems] == [2, 3, 4]
    assert raised.value.message.startswith("f has 3 problems: line 2: a: fault: must be one of")


def test_a_file_may_have_thousands_of_hosts(settings: Settings) -> None:
    hosts = "".join(f"  cmp-{n}:\n    driver: sim\n    action: off\n" for n in range(5000))
    assert len(devices_file.parse("hosts:\n" + hosts, "f", settings).devices) == 5000


@pytest.mark.parametrize(
    "name",
    ["", "a b", "-a", "a-", "a..b", "../a", "a/b", "a;b", "$(id)", "a\nb", "a_b", "x" * 64, "ä"],
)
def test_an_invalid_host_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not the name of a host"):
        host_name(name)


def test_host_names_are_normalised() -> None:
    assert host_name("CMP-1.Example.Org.") == "cmp-1.example.org"


def test_device_output_is_shown_on_a_single_line_without_secrets() -> None:
    assert without("a\n\x1b[31mhidden pass\n", ("hidden",)) == "a; ?[31m*** pass"
    assert len(without("x" * 1000, ())) == 301


def test_an_ipmi_agent_that_would_show_the_password_is_refused(
    secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fence_ipmilan").write_text("#!/bin/sh\n")
    (tmp_path / "fence_ipmilan").chmod(0o755)
    text = f"""\
hosts:
  a: {{driver: agent, agent: fence_ipmilan, address: bmc, password_file: {secret}}}
"""
    there = Settings(longest_s=28.0, agents_dir=str(tmp_path))
    assert devices_file.parse(text, "f", there).find("a").agent == "fence_ipmilan"
    monkeypatch.setattr("holdfast.drivers.fence.agent.STAND_IN", "holdfast-not-installed")
    with pytest.raises(BadDevices, match="would show the password"):
        devices_file.parse(text, "f", there)


# the file as it changes


class Told:
    """A driver that remembers what it was told."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.said: list[str] = []

    def power(self, host: str) -> str:
        self.said.append(f"power {host}")
        return "off"

    def off(self, host: str) -> None:
        self.said.append(f"off {host}")

    def on(self, host: str) -> None:
        self.said.append(f"on {host}")

    def close(self) -> None:
        self.said.append("close")


@pytest.fixture
def told() -> list[Told]:
    return []


@pytest.fixture
def follow(
    tmp_path: Path, settings: Settings, told: list[Told]
) -> Callable[[str], tuple[Path, Fences]]:
    def make(text: str) -> tuple[Path, Fences]:
        file = tmp_path / "fences.yaml"
        file.write_text(text)

        def connect(device: Device) -> Driver:
            told.append(Told(device))
            return told[-1]

        return file, Fences(str(file), settings, connect, call_timeout_s=30.0)

    return make


def write(file: Path, text: str) -> None:
    """As editors do it: a new file in its place."""
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, file)


def test_a_changed_file_is_in_force_at_the_next_call(
    follow: Callable[[str], tuple[Path, Fences]], told: list[Told]
) -> None:
    file, fences = follow("hosts:\n  a: {driver: sim}\n")
    fences.off("A.")
    fences.on("a")
    assert told[0].said == ["off a", "on a"]
    with pytest.raises(NotFound):
        fences.off("b")
    write(file, "hosts:\n  a: {driver: sim, fault: fails}\n  b: {driver: sim}\n")
    fences.off("b")
    fences.off("a")
    assert [(one.device.hosts, one.device.fault) for one in told[1:]] == [
        ("b", ""),
        ("a", "fails"),
    ]
    fences.close()
    assert "close" in told[1].said


def test_a_bad_file_leaves_the_old_devices_and_says_so_once(
    follow: Callable[[str], tuple[Path, Fences]],
    told: list[Told],
    caplog: pytest.LogCaptureFixture,
) -> None:
    file, fences = follow("hosts:\n  a: {driver: sim}\n")
    write(file, "hosts:\n  a: {driver: sim}\n  b: {driver: nonsense}\n")
    for _ in range(3):
        fences.off("a")
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert f"{file} has a problem: line 3: 'nonsense' is no driver" in errors[0]
    assert "stays in force" in errors[0]
    file.unlink()
    fences.off("a")
    assert "cannot be read" in caplog.text
    write(file, "hosts:\n  b: {driver: sim}\n")
    fences.off("b")
    assert told[0].said == ["off a"] * 4


def test_a_bad_file_at_the_start_is_refused(
    follow: Callable[[str], tuple[Path, Fences]], tmp_path: Path, settings: Settings
) -> None:
    with pytest.raises(BadDevices, match=r"fences\.yaml has a problem: line 1: "):
        follow("nonsense\n")
    with pytest.raises(InvalidInput, match=r"devices file .* cannot be read"):
        Fences(str(tmp_path / "no"), settings, Told, call_timeout_s=30.0)


def test_a_reboot_never_reads_as_off(follow: Callable[[str], tuple[Path, Fences]]) -> None:
    _file, fences = follow("hosts:\n  a: {driver: sim, action: reboot}\n  b: {driver: sim}\n")
    assert fences.power("a") == "unknown"
    assert fences.power("b") == "off"


def test_an_invalid_host_name_reaches_no_driver(
    follow: Callable[[str], tuple[Path, Fences]], told: list[Told]
) -> None:
    _file, fences = follow("hosts:\n  '*': {driver: sim}\n")
    for call in (fences.power, fences.off, fences.on):
        with pytest.raises(InvalidInput):
            call("a; reboot")
    assert told == []


# put together from the configuration


def configured(**fencing: object) -> cfg.ConfigOpts:
    conf = configuration.load([], [])
    for name, value in fencing.items():
        conf.set_override(name, value, group="fencing")
    return conf


def test_driver_none_is_warned_about_and_knows_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("hosts:\n  a: {driver: none, i_accept_that_servers_may_run_twice: true}\n")
    fences = fence.connect(configured(devices_file=str(file)), HandClock())
    assert "a: driver none, in line 2: nothing proves that it is off" in caplog.text
    fences.off("a")
    fences.on("a")
    assert fences.power("a") == "unknown"
    assert fences.accepts_risk("a")
    assert fences.how("a") == "none, as was accepted"


def test_the_description_of_a_fence_needs_no_call_to_the_device(
    secret: str, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(GOOD.format(secret=secret))

    def never(_device: Device) -> Driver:
        raise AssertionError("nobody is to be asked")

    fences = Fences(str(file), settings, never, call_timeout_s=30.0)
    assert [fences.how(host) for host in ("cmp-1", "rack7-9", "cmp-9", "a b")] == [
        *("redfish", "fence_some", None, None)
    ]
    assert not fences.accepts_risk("cmp-1")
    with pytest.raises(NotFound):
        fences.accepts_risk("cmp-9")


def test_a_world_readable_password_file_is_logged_as_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, secret: str
) -> None:
    os.chmod(secret, 0o644)
    file = tmp_path / "f.yaml"
    file.write_text(HOST.replace("{secret}", secret) + "    address: bmc\n")
    fence.connect(configured(devices_file=str(file)), HandClock())
    assert f"a: {secret} is readable by every user: chmod 600" in caplog.text


def test_without_a_devices_file_no_host_can_be_fenced_and_a_warning_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    conf = configured()
    conf.set_override("driver", "nova", group="cloud")
    fences = fence.connect(conf, HandClock())
    assert "no host can be fenced" in caplog.text
    with pytest.raises(NotFound):
        fences.power("a")


def test_a_third_party_adds_a_fence_driver_with_a_class_and_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_fence.py").write_text(
        "class Acme:\n"
        "    def __init__(self, device): self.device = device\n"
        "    def power(self, host): return self.device.of(host).options['reads']\n"
        "    def close(self): pass\n"
        "def connect(device, conf, clock): return Acme(device)\n"
    )
    about = tmp_path / "acme_fence-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-fence\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[holdfast.fences]\nacme = acme_fence:connect\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "f.yaml"
    file.write_text("hosts:\n  'a*': {driver: acme, address: '{host}', options: {reads: off}}\n")
    fences = fence.connect(configured(devices_file=str(file)), HandClock())
    assert fences.power("a1") == "off"


@pytest.mark.parametrize(
    ("text", "result", "says"),
    [
        ("hosts:\n  a: {driver: sim}\n", "ok", "1 devices"),
        (
            "hosts:\n  a: {driver: none, i_accept_that_servers_may_run_twice: true}\n",
            "warning",
            "servers may run twice: a",
        ),
        (
            "hosts:\n  a: {driver: nothing}\n",
            "failure",
            "f.yaml has a problem: line 2: 'nothing' is no",
        ),
    ],
)
def test_status_says_whether_hosts_can_be_fenced(
    tmp_path: Path, text: str, result: str, says: str
) -> None:
    (tmp_path / "f.yaml").write_text(text)
    config = tmp_path / "holdfast.conf"
    config.write_text(f"[fencing]\ndevices_file = {tmp_path}/f.yaml\n")
    found = {check: (how, what) for check, how, what in status.findings([str(config)], None)}
    assert found["fencing"][0] == result
    assert says in found["fencing"][1]
