# SPDX-License-Identifier: Apache-2.0
"""Holdfast on plain libvirt hosts with the agent of each, all of them the real programs.

with manned(folder, {"cmp-1": host.url}) as site:
    site.begin("cmp-1", guest)           # its agent runs, and knows this guest
    site.said(guest)                     # ["failed stopped failed"], as the API has it
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.agent.outbox import Outbox
from holdfast.client.client import Client
from tests.e2e.deployment import Options, all_in_one, merged, write_config
from tests.processes import PATIENCE_S, Program, eventually, script

MOST = 1000


@dataclass
class Site:
    folder: Path
    up: Program
    client: Client
    agents: dict[str, Program] = field(default_factory=dict)

    # agents

    def outbox(self, host: str) -> Path:
        return self.folder / f"{host}.outbox"

    def begin(self, host: str, *guests: str) -> Program:
        """Its agent runs and has written down that these guests are there."""
        self.agents[host].start()
        self.knows(host, *guests)
        return self.agents[host]

    def knows(self, host: str, *guests: str) -> None:
        def so() -> bool:
            said = self.noted(host)
            return bool(said) and all(guest in said for guest in guests)

        self.agents[host].wait_until(so)

    def noted(self, host: str) -> str:
        """What it remembers of guests, as it is on disk."""
        with contextlib.closing(Outbox(str(self.outbox(host)))) as outbox:
            return str(outbox.note("guests") or "")

    def waiting(self, host: str) -> int:
        """Reports that it has not delivered."""
        with contextlib.closing(Outbox(str(self.outbox(host)))) as outbox:
            return outbox.counts()[0]

    # what the API has

    def observations(self, guest: str = "") -> list[dict[str, Any]]:
        """Oldest first."""
        query: dict[str, Any] = {"limit": MOST}
        if guest:
            query["subject"] = f"server:{guest}"
        found: list[dict[str, Any]] = self.client.wire.call(
            "GET", "/holdfast/v1/observations", query=query, key="observations"
        )
        return found[::-1]

    def said(self, guest: str) -> list[str]:
        """failed stopped failed, …; without that it runs again, and what an agent that was started
        anew said again."""
        found = [
            observation
            for observation in self.observations(guest)
            if observation["state"] != "well"
        ]
        return [verdict(one) for one in found if "told_before" not in one["evidence"]]

    def incidents(self, guest: str) -> list[dict[str, Any]]:
        found = self.client.incidents.list(kind="guest", limit=MOST)
        return [one for one in found if one["subject"] == f"server:{guest}"]

    def statuses(self, guest: str) -> list[str]:
        return [incident["status"] for incident in self.incidents(guest)]

    def segment(self, *hosts: str) -> None:
        """Hosts whose guests are recovered."""
        wire, prefix = self.client.wire, "/instance-ha/v1/segments"
        body = {"name": f"of-{hosts[0]}", "recovery_method": "auto", "service_type": "COMPUTE"}
        made = wire.call("POST", prefix, body={"segment": body}, key="segment")
        for host in hosts:
            member = {"name": host, "type": "COMPUTE", "control_attributes": "none"}
            wire.call("POST", f"{prefix}/{made['uuid']}/hosts", body={"host": member})


def verdict(one: Mapping[str, Any]) -> str:
    said = one["evidence"]
    return " ".join(filter(None, (one["state"], said["event"], said["detail"])))


@contextlib.contextmanager
def manned(
    folder: Path,
    hosts: Mapping[str, str],
    options: Options | None = None,
    *,
    shared: Path | None = None,
    agent: Mapping[str, object] | None = None,
    filters: str = "",
) -> Iterator[Site]:
    """`hosts`: name and URI of each; their agents are ready to be started. `filters`: what is in
    their filter file."""
    told = settings(folder, hosts, options, shared)
    with contextlib.ExitStack() as stack:
        up, client = stack.enter_context(all_in_one(folder, told))
        site = Site(folder, up, client)
        stack.enter_context(staffed(site, hosts, told, agent, filters))
        site.segment(*hosts)
        yield site


def settings(
    folder: Path, hosts: Mapping[str, str], more: Options | None = None, shared: Path | None = None
) -> Options:
    """Of a Holdfast whose cloud is these hosts, and which lets their agents in."""
    secret = folder / "secret"
    secret.write_text("a secret of at least 32 characters\n")
    own: Options = {
        "cloud": {"driver": "libvirt"},
        "libvirt": {
            "hosts": ", ".join(f"{name}:{uri}" for name, uri in hosts.items()),
            "shared": shared or folder,
            "state": folder / "libvirt.db",
        },
        "auth": {"agent_secret_file": secret},
        "recovery": {"restart_all": True},
    }
    return merged(own, more or {})


@contextlib.contextmanager
def staffed(
    site: Site,
    hosts: Mapping[str, str],
    told: Options,
    agent: Mapping[str, object] | None = None,
    filters: str = "",
) -> Iterator[Site]:
    """The same of a Holdfast that runs with these settings; the hosts are in no segment."""
    more = dict(agent or {})
    if filters:
        more["filters_file"] = site.folder / "filters.yaml"
        (site.folder / "filters.yaml").write_text(filters)
    central = write_config(site.folder / "central.conf", told)
    with contextlib.ExitStack() as stack:
        for name, uri in hosts.items():
            site.agents[name] = _agent(site, central, name, {"guests_address": uri, **more})
            stack.callback(site.agents[name].kill)
        yield site


def _agent(site: Site, central: Path, host: str, more: Mapping[str, object]) -> Program:
    token = site.folder / f"{host}.token"
    with token.open("w") as file:
        command = [script("holdfast"), "agent", "token", host, "--config", central]
        subprocess.run(command, check=True, stdout=file, timeout=90)
    about = {
        "host": host,
        "outbox": site.outbox(host),
        "api_url": site.client.url,
        "token_file": token,
        "socket": "",  # its path would be too long
        **more,
    }
    config = write_config(site.folder / f"{host}.conf", {"agent": about})
    command = [script("holdfast-agent"), "--config-file", config]
    return Program(command, site.folder, name=f"agent-{host}")


def recovered(site: Site, guest: str, times: int, within_s: float = PATIENCE_S) -> None:
    """It died so often, and was brought back as often."""

    def so() -> bool:
        found = [(incident["status"], incident["sentence"]) for incident in site.incidents(guest)]
        assert [status for status, _ in found] == ["recovered"] * times, found
        return True

    eventually(so, within_s)
