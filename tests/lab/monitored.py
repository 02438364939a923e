# SPDX-License-Identifier: Apache-2.0
"""A house that masakari-monitors, as they come, report to: they find it through the catalog, and
have Keystone's tokens.

with monitored(lab, folder) as town, town.monitor("masakari-hostmonitor", options):
    (report,) = town.reports("COMPUTE_HOST")
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lab.steps import StepFailed
from openstack.connection import Connection

from lab import monitors
from tests.e2e.deployment import Options, merged, write_config
from tests.lab.house import House, house
from tests.processes import Program, eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

PATIENCE_S = 180.0


@dataclass
class Town:
    """A house with one segment, and the programs that are to report to it."""

    home: House
    ha: Any
    programs: Path
    segment: str

    def enlist(self, hosts: Sequence[str]) -> None:
        """Of these, what is reported is recovered."""
        for name in hosts:
            words = {"type": "COMPUTE", "control_attributes": "SSH"}
            self.ha.create_host(self.segment, name=name, **words)

    def monitor(self, name: str, options: Options, **env: str) -> Program:
        """One of the monitors with these options; to be started."""
        who = self.home.lab.credentials()
        login = {
            name: who[f"OS_{name.upper()}"]
            for name in ("auth_type", "auth_url", "username", "password", "project_name")
        }
        domains = {f"{each}_domain_name": "Default" for each in ("user", "project")}
        api = {"api": {**login, **domains, "region": self.home.region}}
        folder = self.home.folder
        config = write_config(folder / f"{name}.conf", merged(api, options))
        command: list[str | Path] = [self.programs / name, "--config-file", config]
        return Program(command, folder, name=name, env={"NO_PROXY": "*", **env})

    def reports(self, kind: str, number: int = 1) -> list[Any]:
        """All of that type, oldest first, when so many are finished."""

        def over() -> list[Any]:
            found = list(self.ha.notifications(type=kind, sort_key="id", sort_dir="asc"))
            said = [(one.status, one.payload) for one in found]
            assert [one.status for one in found] == ["finished"] * number, said
            return found

        return eventually(over, PATIENCE_S, 0.2)

    def member(self, host: str) -> Any:
        return next(one for one in self.ha.hosts(self.segment) if one.name == host)


@contextlib.contextmanager
def monitored(lab: Lab, folder: Path, **how: Any) -> Iterator[Town]:
    """`how`: of the house."""
    programs = installed(lab)
    with house(lab, folder, **how) as home, contextlib.closing(lab.connect()) as admin:
        ours = Connection(session=admin.session, region_name=home.region, ha_api_version="1.3")
        ha = ours.instance_ha
        segment = ha.create_segment(name="all", recovery_method="auto", service_type="COMPUTE")
        yield Town(home, ha, programs, segment.uuid)


def installed(lab: Lab) -> Path:
    """Where the programs are; tests are skipped where they cannot be had."""
    try:
        with lab.alone(monitors.NAME):
            return monitors.install(lab.place)
    except StepFailed as failed:
        if os.environ.get("CI") == "true":
            pytest.fail(str(failed), pytrace=False)
        pytest.skip(f"{monitors.NAME} cannot be installed: see {lab.place.logs / 'install.log'}")
