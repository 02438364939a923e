# SPDX-License-Identifier: Apache-2.0
"""Deployments for tests and benchmarks: all in one process, or as separate programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.client.client import Client
from holdfast.drivers.sim.simulator import Simulator
from holdfast.runtime.clock import SystemClock
from tests.processes import PATIENCE_S, Program, free_port, script

Options = Mapping[str, Mapping[str, object]]


def write_config(path: Path, options: Options) -> Path:
    """An INI file of these groups and options."""
    lines = []
    for group, values in options.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {value}" for name, value in values.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def merged(*parts: Options) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for part in parts:
        for group, values in part.items():
            found.setdefault(group, {}).update(values)
    return found


def wire_date(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def soon(seconds: float) -> datetime:
    """A whole second, that far from now or a little more."""
    return (datetime.now(UTC) + timedelta(seconds=seconds + 1)).replace(microsecond=0)


def host_lease(low: int, high: int, where: str = "") -> dict[str, Any]:
    return {
        "resource_type": "physical:host",
        "min": low,
        "max": high,
        "hypervisor_properties": "",
        "resource_properties": where,
    }


@contextlib.contextmanager
def all_in_one(folder: Path, options: Options | None = None) -> Iterator[tuple[Program, Client]]:
    """`holdfast up` on a free port, its state in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = write_config(folder / "up.conf", options or {})
    port = free_port()
    command = [script("holdfast"), "up", "--state", folder / "state", "--config", config]
    program = Program([*command, "--port", str(port)], folder, name="up")
    url = f"http://127.0.0.1:{port}"
    with program:
        program.wait_http(f"{url}/readyz")
        with contextlib.closing(Client(url, timeout_s=PATIENCE_S)) as client:
            yield program, client


@dataclass
class Deployment:
    """API and manager programs on one database and one broker, with a simulated cloud."""

    folder: Path
    apis: list[Program]
    managers: list[Program]
    urls: list[str]
    health_urls: list[str]
    simulator: Simulator

    def client(self, number: int = 0) -> Client:
        return Client(self.urls[number], timeout_s=PATIENCE_S)


@contextlib.contextmanager
def separate(
    folder: Path,
    database_url: str,
    transport_url: str,
    *,
    apis: int = 2,
    managers: int = 2,
    hosts: int = 6,
    options: Options | None = None,
) -> Iterator[Deployment]:
    """Start `holdfast-api` and `holdfast-manager` as often as asked."""
    folder.mkdir(parents=True, exist_ok=True)
    base = {
        # commands go through, also where the machine has much else to do
        "DEFAULT": {"transport_url": transport_url, "rpc_timeout": 50},
        "database": {"connection": database_url.replace("%", "%%")},
        "sim": {"database": folder / "sim.db"},
        "manager": {"claim_s": 15},
    }
    common = merged(base, options or {})
    simulator = Simulator(str(folder / "sim.db"), SystemClock())
    for number in range(hosts):
        simulator.add_host(f"host-{number:03d}", rack=f"rack-{number % 3}")
    _sync(folder, common)
    with contextlib.ExitStack() as stack:
        stack.callback(simulator.close)
        made = Deployment(folder, [], [], [], [], simulator)
        for number in range(managers):
            _manager(made, stack, number, common)
        for number in range(apis):
            _api(made, stack, number, common)
        for program, url in zip(made.apis, made.urls, strict=True):
            program.wait_http(f"{url}/readyz")
        for program, url in zip(made.managers, made.health_urls, strict=True):
            program.wait_http(f"{url}/readyz")
        yield made


def _sync(folder: Path, options: Options) -> None:
    config = write_config(folder / "db.conf", options)
    sync = Program([script("holdfast"), "db", "sync", "--config", config], folder, name="sync")
    with sync:
        assert sync.kept.wait(PATIENCE_S) == 0, sync.tail()


def _manager(made: Deployment, stack: contextlib.ExitStack, number: int, common: Options) -> None:
    port = free_port()
    own = {"manager": {"name": f"manager-{number}", "health_port": port}}
    config = write_config(made.folder / f"manager-{number}.conf", merged(common, own))
    made.managers.append(_start(made, stack, "holdfast-manager", number, config))
    made.health_urls.append(f"http://127.0.0.1:{port}")


def _api(made: Deployment, stack: contextlib.ExitStack, number: int, common: Options) -> None:
    port = free_port()
    config = write_config(
        made.folder / f"api-{number}.conf", merged(common, {"api": {"port": port}})
    )
    made.apis.append(_start(made, stack, "holdfast-api", number, config))
    made.urls.append(f"http://127.0.0.1:{port}")


def _start(
    made: Deployment, stack: contextlib.ExitStack, name: str, number: int, config: Path
) -> Program:
    command: Sequence[str | Path] = [script(name), "--config-file", config]
    program = Program(command, made.folder, name=f"{name}-{number}")
    return stack.enter_context(program)
