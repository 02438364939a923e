# SPDX-License-Identifier: Apache-2.0
"""Real BMC emulators in front of real machines: power that is cut, and BMCs that fail or lie."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.drivers.bmc import PASSWORD, USER, Proxy, Watcher, elsewhere, saying, silent
from tests.processes import eventually, free_port
from tests.servers.base import which
from tests.servers.libvirt import Libvirt
from tests.servers.redfish import Redfish as RedfishServer

from holdfast.drivers.deadline_adapter import LARGEST
from holdfast.drivers.fence.agent import Agent
from holdfast.drivers.fence.device import Device
from holdfast.drivers.fence.redfish import Redfish
from holdfast.model.errors import DriverError
from holdfast.runtime.clock import SystemClock

#: Where the system has its fence agents.
AGENTS = str(Path(which("fence_ipmilan") or "/usr/sbin/fence_ipmilan").parent)
KINDS = ("redfish", "fence_redfish", "fence_ipmilan")


@pytest.fixture
def device(
    bmc: RedfishServer, machines: dict[str, str], password_file: str, request: pytest.FixtureRequest
) -> Callable[[str], Device]:
    """cmp-1 by each kind of device."""

    def make(kind: str) -> Device:
        path = f"/redfish/v1/Systems/{machines['cmp-1']}"
        about = Device("cmp-1", 1, "redfish", 60.0, user=USER, password_file=password_file)
        if kind == "redfish":
            return dataclasses.replace(
                about, address=bmc.url, system=path, verify_ca=bmc.certificate
            )
        if not os.access(f"{AGENTS}/{kind}", os.X_OK):
            why = f"{kind} is not installed: `make test-deps`, or `apt-get install fence-agents`"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
        options = {"ipport": str(bmc.port), "systems_uri": path, "ssl_insecure": "1"}
        if kind == "fence_ipmilan":
            port = request.getfixturevalue("ipmi").ports["cmp-1"]
            options = {"ipport": str(port), "lanplus": "1", "power_wait": "0"}
        return dataclasses.replace(
            about, driver="agent", agent=kind, address="127.0.0.1", options=options
        )

    return make


def driver(device: Device) -> Redfish | Agent:
    return Redfish(device, SystemClock()) if device.driver == "redfish" else Agent(device, AGENTS)


def at_port(device: Device, port: int, **more: object) -> Device:
    """The same device elsewhere."""
    if device.driver == "redfish":
        return dataclasses.replace(device, address=f"https://127.0.0.1:{port}", **more)
    options = {**device.options, "ipport": str(port)}
    return dataclasses.replace(device, options=options, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_power_is_cut_read_back_and_switched_on_again(
    kind: str, device: Callable[[str], Device], libvirt: Libvirt
) -> None:
    fence = driver(device(kind))
    libvirt.switch("cmp-1", on=True)
    assert fence.power("cmp-1") == "on"
    fence.off("cmp-1")
    eventually(lambda: fence.power("cmp-1") == "off")
    assert not libvirt.runs("cmp-1")
    fence.off("cmp-1")  # off already: no error
    assert not libvirt.runs("cmp-1")
    fence.on("cmp-1")
    eventually(lambda: fence.power("cmp-1") == "on")
    assert libvirt.runs("cmp-1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_password_switches_nothing_and_is_named_as_the_reason(
    kind: str, device: Callable[[str], Device], libvirt: Libvirt, password_file: str
) -> None:
    libvirt.switch("cmp-1", on=True)
    Path(password_file).write_text("wrong\n")
    fence = driver(device(kind))
    for call in (fence.power, fence.off):
        with pytest.raises(DriverError, match="fence: cmp-1: ") as raised:
            call("cmp-1")
    if kind == "redfish":
        assert "does not accept user and password (HTTP 401)" in raised.value.message
        assert not raised.value.retryable
    assert libvirt.runs("cmp-1")
    Path(password_file).write_text(PASSWORD)  # read anew: no restart
    assert fence.power("cmp-1") == "on"


@pytest.mark.parametrize("kind", KINDS)
def test_a_dead_bmc_is_a_retryable_error(kind: str, device: Callable[[str], Device]) -> None:
    fence = driver(at_port(device(kind), free_port(), timeout_s=3.0))
    with pytest.raises(DriverError, match="fence: cmp-1: ") as raised:
        fence.off("cmp-1")
    assert raised.value.retryable


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_to_a_hanging_bmc_ends_at_the_timeout(
    kind: str, device: Callable[[str], Device]
) -> None:
    transport = socket.SOCK_DGRAM if kind == "fence_ipmilan" else socket.SOCK_STREAM
    with silent(transport) as port:
        fence = driver(at_port(device(kind), port, timeout_s=1.0))
        before = time.monotonic()
        with pytest.raises(DriverError, match="no answer") as raised:
            fence.off("cmp-1")
        assert raised.value.retryable
        # 2 s more than it has, and a busy machine; left alone it would not end
        assert time.monotonic() - before < 60.0
    assert not [
        child for child in psutil.Process().children(True) if "fence_" in " ".join(_words(child))
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_reading_the_power_exposes_a_bmc_that_ignores_the_order(
    device: Callable[[str], Device], bmc: RedfishServer, libvirt: Libvirt
) -> None:
    libvirt.switch("cmp-1", on=True)
    with Proxy(bmc, lies=True).listening() as proxy:
        fence = driver(at_port(device("redfish"), proxy.port))
        fence.off("cmp-1")
        assert any(line.startswith("POST ") for line in proxy.got)
        assert fence.power("cmp-1") == "on"
        told = device("fence_redfish")
        slow = {**told.options, "power_timeout": "1"}
        agent = driver(at_port(dataclasses.replace(told, options=slow), proxy.port))
        with pytest.raises(DriverError, match="off: exit code 1") as raised:
            agent.off("cmp-1")
        assert raised.value.retryable
        assert agent.power("cmp-1") == "on"
    assert libvirt.runs("cmp-1")


def test_no_order_is_sent_after_the_timeout(
    device: Callable[[str], Device], bmc: RedfishServer, libvirt: Libvirt
) -> None:
    libvirt.switch("cmp-1", on=True)
    held = threading.Event()
    with Proxy(bmc, lies=True, held=held).listening() as proxy:
        for seconds in (2.0, 20.0, 60.0):  # on a busy machine it may not come as far as that
            fence = driver(at_port(device("redfish"), proxy.port, timeout_s=seconds))
            with pytest.raises(DriverError, match=r"no answer"):
                fence.off("cmp-1")
            if any("/Systems/" in line for line in proxy.got):
                break
        held.set()
        eventually(lambda: proxy.shown)
        time.sleep(0.5)  # now the order would follow
        assert any("/Systems/" in line for line in proxy.got)
        assert not any(line.startswith("POST ") for line in proxy.got)


# Redfish: which system, and whom we talk to


@pytest.mark.parametrize("by", ["uuid", "name", "path"])
def test_a_system_is_found_by_path_uuid_or_name(
    by: str,
    device: Callable[[str], Device],
    machines: dict[str, str],
    libvirt: Libvirt,
) -> None:
    libvirt.switch("cmp-1", on=True)
    libvirt.switch("cmp-2", on=False)
    known = {"uuid": machines["cmp-2"], "name": "{short}"}
    named = {"path": f"/redfish/v1/Systems/{machines['cmp-2']}", **known}[by]
    named_device = dataclasses.replace(device("redfish"), hosts="cmp-*", system=named)
    assert driver(named_device).power("cmp-2.example.org") == "off"


def test_which_of_several_systems_is_never_guessed(device: Callable[[str], Device]) -> None:
    for system, says in (
        ("", "say which in `system`"),
        ("cmp-9", "has 0 systems 'cmp-9'"),
        ("/redfish/v1/Systems/nothing", "correct `system`"),
    ):
        with pytest.raises(DriverError, match=says) as raised:
            driver(dataclasses.replace(device("redfish"), system=system)).off("cmp-1")
        assert not raised.value.retryable


def test_a_certificate_of_nobody_we_know_is_refused_before_any_password(
    device: Callable[[str], Device], bmc: RedfishServer
) -> None:
    with Proxy(bmc).listening() as proxy:
        stranger = at_port(device("redfish"), proxy.port, verify_ca=True)
        with pytest.raises(DriverError, match="verify_ca") as raised:
            driver(stranger).power("cmp-1")
        assert not raised.value.retryable
        assert proxy.got == []
        trusting = dataclasses.replace(stranger, verify_ca=False)
        assert driver(trusting).power("cmp-1") in ("on", "off")


def test_a_redirect_is_not_followed_nor_a_link_to_elsewhere(
    device: Callable[[str], Device],
) -> None:
    with elsewhere() as (port, came):
        away = f"http://127.0.0.1:{port}"
        root = {"Id": "RootService", "RedfishVersion": "1.5.0", "Systems": {"@odata.id": away}}
        for status, headers, system, says in (
            (302, {"Location": f"{away}/redfish/v1/"}, "/redfish/v1/Systems/1", "302"),
            (307, {"Location": f"{away}/redfish/v1/"}, "/redfish/v1/Systems/1", "307"),
            (200, {}, "cmp-1", "another address"),
        ):
            with saying(status, headers, root) as bmc_port:
                lured = dataclasses.replace(
                    device("redfish"),
                    address=f"http://127.0.0.1:{bmc_port}",
                    allow_http=True,
                    system=system,
                )
                with pytest.raises(DriverError, match=says) as raised:
                    driver(lured).off("cmp-1")
                assert not raised.value.retryable
        assert came == []


def test_no_proxy_of_the_environment_gets_to_see_anything(
    device: Callable[[str], Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    with elsewhere() as (port, came):
        for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        assert driver(device("redfish")).power("cmp-1") in ("on", "off")
        assert came == []


@pytest.mark.parametrize(
    ("status", "answer"),
    [(200, []), (200, {}), (200, "<html>"), (500, []), (404, None), (200, {"x": "a" * LARGEST})],
)
def test_an_answer_without_sense_is_an_error_like_any_other(
    status: int, answer: object, password_file: str
) -> None:
    Path(password_file).write_text("päßwörd-€\n", encoding="utf-8")
    with saying(status, {}, answer) as port:
        device = Device("a", 1, "redfish", 5.0, "off", f"http://127.0.0.1:{port}", USER)
        odd = dataclasses.replace(device, password_file=password_file, allow_http=True)
        for call in (driver(odd).power, driver(odd).off):
            with pytest.raises(DriverError, match=r"fence: a: Redfish at http://127\.0\.0\.1"):
                call("a")


@pytest.mark.parametrize("shown", [{"PowerState": None}, {"PowerState": "Sleeping"}, {}])
def test_an_unclear_power_state_is_unreadable(shown: dict[str, object], password_file: str) -> None:
    answer = {"Id": "1", "Name": "a", "RedfishVersion": "1.5.0", **shown}
    with saying(200, {}, answer) as port:
        device = Device("a", 1, "redfish", 30.0, "off", f"http://127.0.0.1:{port}", USER)
        null = dataclasses.replace(
            device, password_file=password_file, allow_http=True, system="/redfish/v1/Systems/1"
        )
        assert driver(null).power("a") == "unknown"


# secrets


@pytest.mark.slow("three fences ask a BMC that lets them in, one that does not, and one that hangs")
def test_the_password_is_in_no_log_message_error_command_line_or_environment(
    device: Callable[[str], Device],
    libvirt: Libvirt,
    bmc: RedfishServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    libvirt.switch("cmp-1", on=True)
    told: list[str] = []
    with Watcher().looking() as watcher, silent() as hanging:
        for kind in KINDS:
            good = device(kind)
            wrong = dataclasses.replace(good, user="nobody")
            for one in (good, wrong, at_port(good, hanging)):
                short = dataclasses.replace(one, timeout_s=60.0 if one is good else 2.0)
                told.append(repr(short))
                _use(driver(short), told)
    told += [f"{record.getMessage()} {record.args}" for record in caplog.records]
    assert not [line for line in told if PASSWORD in line]
    assert "ipmitool" in watcher.programs  # else there was nothing to see
    assert {"fence_redfish", "fence_ipmilan"} <= watcher.programs
    assert not [text for text in watcher.seen if PASSWORD.encode() in text]
    assert len([line for line in told if "Traceback" in line]) >= 6


def _use(fence: Redfish | Agent, told: list[str]) -> None:
    told.append(repr(fence))
    for call in (fence.power, fence.off):
        try:
            told.append(str(call("cmp-1")))
        except DriverError as error:
            told += [*traceback.format_exception(error), repr(error), repr(error.details)]
            return


def test_a_password_in_device_output_is_hidden_in_the_error(
    tmp_path: Path, password_file: str
) -> None:
    (tmp_path / "fence_own").write_text("#!/bin/sh\n/bin/cat\nexit 1\n")
    (tmp_path / "fence_own").chmod(0o755)
    device = Device("a", 1, "agent", 5.0, agent="fence_own", password_file=password_file)
    with pytest.raises(DriverError) as raised:
        Agent(device, str(tmp_path)).off("a")
    assert raised.value.message.endswith("exit code 1: action=off; password=***")
    with saying(400, {}, {"error": {"message": f"bad {PASSWORD}", "code": "x"}}) as port:
        echo = dataclasses.replace(
            device, driver="redfish", user=USER, address=f"http://127.0.0.1:{port}", allow_http=True
        )
        with pytest.raises(DriverError, match=r"bad \*\*\*") as raised:
            driver(echo).off("a")
        assert PASSWORD not in "".join(traceback.format_exception(raised.value))
