# SPDX-License-Identifier: Apache-2.0
"""The fence driver `agent`: runs a ClusterLabs fence agent (IPMI, PDUs, blade chassis, …).

An agent is a program that reads `key=value` lines on its standard input and answers with its exit
code. Its command line and environment contain no secret. It runs in its own process group, without
Holdfast's environment, and is killed with all its children at its timeout.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.drivers.fence.device import PORT, Device, secret, without
from holdfast.model.errors import DriverError
from holdfast.ports.fence import OFF, ON
from holdfast.runtime.clock import Clock

#: PATH for the programs that agents call.
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: These agents pass the password to ipmitool on its command line; `cmd/ipmitool.py` replaces
#: ipmitool.
BY_IPMITOOL = frozenset(
    f"fence_{name}"
    for name in ("ipmilan", "ipmilanplus", "idrac", "ilo3", "ilo4", "ilo5", "ilo6", "imm")
)
STAND_IN = "holdfast-ipmitool"
PASSWORD_FILE = "HOLDFAST_IPMI_PASSWORD_FILE"
_STATUS = re.compile(r"^Status:\s*(\w+)\s*$", re.MULTILINE)
#: Seconds to wait, twice, for the end of a killed process.
_GRACE_S = 0.5


def needs_stand_in(device: Device) -> bool:
    by_ipmitool = device.agent in BY_IPMITOOL and "ipmitool_path" not in device.options
    return by_ipmitool and bool(device.password_file)


def stand_in() -> str:
    """Return the path of `holdfast-ipmitool`; empty if not installed."""
    beside = os.path.dirname(sys.executable)
    return shutil.which(STAND_IN, path=f"{beside}:{os.environ.get('PATH', '')}") or ""


class Agent:
    """The driver of a device that is switched by a fence agent."""

    def __init__(self, device: Device, agents_dir: str) -> None:
        self._device = device
        self._program = str(Path(agents_dir) / device.agent)

    def power(self, host: str) -> str:
        code, output, secrets = self._run(host, "status")
        # Exit code 2 means off, but an interpreter that finds no program returns 2 too: the
        # output must agree.
        state = {0: ON, 2: OFF}.get(code, "")
        if {state_word.lower() for state_word in _STATUS.findall(output)} == {state}:
            return state
        raise self._failed(host, f"status: {_ended(code)}: {without(output, secrets)}")

    def off(self, host: str) -> None:
        self._order(host, self._device.action)

    def on(self, host: str) -> None:
        self._order(host, "on")

    def close(self) -> None:
        """Do nothing: no connection stays open."""

    def _order(self, host: str, action: str) -> None:
        code, output, secrets = self._run(host, action)
        if code != 0:
            raise self._failed(host, f"{action}: {_ended(code)}: {without(output, secrets)}")

    def _run(self, host: str, action: str) -> tuple[int, str, tuple[str, ...]]:
        """Run the agent; return exit code, output, and the secrets to hide in the output."""
        device = self._device.of(host)
        hidden = {key: secret(path) for key, path in device.secret_files.items()}
        environment = {"PATH": SEARCH_PATH, "LANG": "C", "LC_ALL": "C"}
        shown = dict(device.options)
        if needs_stand_in(device):
            shown["ipmitool_path"] = stand_in()
            environment[PASSWORD_FILE] = device.password_file
        elif device.password_file:
            hidden["password"] = secret(device.password_file)
        target = {"action": action, "ip": device.address, "username": device.user}
        lines = words({**target, **shown, **hidden})
        code, output = self._talk(host, action, lines, environment)
        return code, output, tuple(hidden.values())

    def _talk(
        self, host: str, action: str, lines: str, environment: Mapping[str, str]
    ) -> tuple[int, str]:
        try:
            process = subprocess.Popen(
                [self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd="/",
                start_new_session=True,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise self._failed(host, f"cannot be run: {error.strerror}", False) from None
        try:
            output, _ = process.communicate(lines, timeout=self._device.timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            raise self._failed(
                host, f"{action}: no answer within {self._device.timeout_s:g} s"
            ) from None
        return process.returncode, output

    def _failed(self, host: str, why: str, retryable: bool = True) -> DriverError:
        return DriverError(PORT, f"{host}: {self._device.agent}: {why}", retryable=retryable)


def words(settings: Mapping[str, str]) -> str:
    """Return the input lines of an agent.

    No value can contain a line break: each was validated before, or is the first line of a file.
    """
    return "".join(f"{key}={value}\n" for key, value in settings.items() if value)


def _ended(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _end(process: "subprocess.Popen[str]") -> None:
    """Kill the agent's process group, which contains only the agent and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A grandchild that left the group may keep the pipe open: do not wait for it.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_GRACE_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)


def connect(device: Device, conf: Any, _clock: Clock) -> Agent:
    return Agent(device, conf.fencing.agents_dir)
