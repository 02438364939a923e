# SPDX-License-Identifier: Apache-2.0
"""A host of the lab dies with 20 servers on it: how long until all of them run elsewhere?

The nova-compute is killed and at once reported: to Masakari, then to us, with the same request; and
once to nobody, the host is forced down and its servers evacuated one after the other, which is what
Nova itself takes. Servers count when they are ACTIVE on another host with nothing under way.

Masakari runs by its defaults; `--wait` makes its `wait_period_after_service_update` another one,
and the figure says which it was. Holdfast runs as shipped: `holdfast-api` and one
`holdfast-manager`. Both are told that the host is off, and Holdfast to believe it
(`trust_host_status`). Once more without that trust: Holdfast waits until Nova's next report of the
host is overdue; the host has the fence `none`, for the lab has no BMC.

    make lab; python bench/beside_masakari.py [--wait SECONDS] [masakari | nova | holdfast]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.cloud import Lab, NotRunning
from tests.lab.house import house
from tests.lab.victim import Victim

SERVERS = 20
#: Masakari's own.
WAIT_S = 180
#: What Nova and Masakari need beside that wait, ten times over.
PATIENCE_S = 900
WANTED, WANTED_OF_NOVA = 0.1, 1.4
#: The last one at which evacuated servers end as they were.
ENDS_AS_IT_WAS = "2.94"
ENDED = ("finished", "failed", "error", "ignored")


class Failed(SystemExit):
    """No figure, and why."""


@dataclass(frozen=True)
class Took:
    """Seconds since the report."""

    first: float
    all: float
    ended: float | None = None  # when the one who was told said that it is done

    def __str__(self) -> str:
        end = "" if self.ended is None else f", {self.ended:.1f} s until it said so"
        return f"{self.first:.1f} s to the first server, {self.all:.1f} s to all {SERVERS}{end}"


@dataclass(frozen=True)
class Side:
    """One of the two that speak the instance HA contract."""

    name: str
    url: str
    session: Any  # of Keystone's administrator
    version: str = "1.3"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"OpenStack-API-Version": f"instance-ha {self.version}"}
        answer = self.session.request(
            f"{self.url}{path}", method, json=body, headers=headers, raise_exc=False, timeout=60
        )
        if answer.status_code >= 300:
            raise Failed(f"{self.name}: {method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.content else None

    def clear(self) -> None:
        """Without segments, also those of a run that was killed."""
        for segment in self.ask("GET", "/segments")["segments"]:
            self.ask("DELETE", f"/segments/{segment['uuid']}")

    def furnish(self, hosts: tuple[str, ...], **more: Any) -> None:
        """One segment with these hosts."""
        own = {"name": "beside", "recovery_method": "auto", "service_type": "COMPUTE"}
        made = self.ask("POST", "/segments", {"segment": {**own, **more}})["segment"]
        for host in hosts:
            about = {"name": host, "type": "COMPUTE", "control_attributes": "none"}
            self.ask("POST", f"/segments/{made['uuid']}/hosts", {"host": about})

    def report(self, host: str) -> str:
        """That the host is off; the notification's id."""
        payload = {"event": "STOPPED", "host_status": "NORMAL", "cluster_status": "OFFLINE"}
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
        said = {
            "type": "COMPUTE_HOST",
            "hostname": host,
            "generated_time": now,
            "payload": payload,
        }
        made = self.ask("POST", "/notifications", {"notification": said})["notification"]
        return str(made["notification_uuid"])

    def status(self, uuid: str) -> str:
        return str(self.ask("GET", f"/notifications/{uuid}")["notification"]["status"])


def race(victim: Victim, tell: Callable[[], Callable[[], str]]) -> Took:
    """Kill the host; `tell` does what is to be done about it, and returns how to ask whether that
    is over."""
    victim.fill(SERVERS)
    victim.kill()
    began = time.monotonic()
    status = tell()
    first = all_ = 0.0
    while not all_:
        time.sleep(0.3)
        moved, took = len(victim.moved()), time.monotonic() - began
        first = first or (took if moved else 0.0)
        all_ = took if moved == SERVERS else 0.0
        if took > PATIENCE_S:
            raise Failed(f"{moved} of {SERVERS} servers after {took:.0f} s; it says {status()}")
    while (said := status()) not in ENDED:
        if time.monotonic() - began > PATIENCE_S:
            raise Failed(f"all servers have moved, and it still says {said}")
        time.sleep(0.3)
    if said != "finished":
        raise Failed(f"all servers have moved, and it says {said}")
    return Took(first, all_, time.monotonic() - began)


def reported(side: Side, victim: Victim) -> Took:
    def tell() -> Callable[[], str]:
        uuid = side.report(victim.host)
        return lambda: side.status(uuid)

    return race(victim, tell)


def by_hand(victim: Victim) -> Took:
    """Nova alone."""
    compute = victim.admin.compute

    def tell() -> Callable[[], str]:
        compute.update_service_forced_down(victim.service(), forced=True)
        for server in victim.servers():
            path = f"/servers/{server.id}/action"
            answer = compute.post(path, json={"evacuate": {}}, microversion=ENDS_AS_IT_WAS)
            if answer.status_code != 200:
                raise Failed(f"Nova: evacuate: {answer.status_code} {answer.text[:300]}")
        return lambda: "finished"

    took = race(victim, tell)
    return Took(took.first, took.all)


@contextlib.contextmanager
def masakari(lab: Lab, wait_s: int) -> Iterator[Side]:
    """In the lab, for as long as it is needed."""
    setting = f"wait_period_after_service_update={wait_s}"
    command = [sys.executable, "-m", "lab", "peer", "masakari", "--set", setting]
    where = lab.folder.parent
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=where)
    with contextlib.closing(lab.connect()) as cloud:
        made = Side("Masakari", said.stdout.split()[-1], cloud.session)
        made.clear()
        try:
            yield made
        finally:
            for part in ("masakari-api", "masakari-engine"):
                lab.part(part).stop()


@contextlib.contextmanager
def holdfast(lab: Lab, *, trusts: bool) -> Iterator[Side]:
    with (
        tempfile.TemporaryDirectory() as folder,
        house(lab, Path(folder), cloud="nova", extra=fences(Path(folder), not trusts)) as made,
        contextlib.closing(lab.connect()) as cloud,
    ):
        yield Side("Holdfast", f"{made.url}/instance-ha/v1", cloud.session, "latest")


def fences(folder: Path, wanted: bool) -> dict[str, dict[str, object]]:
    """Options by which every host has the fence `none`, if wanted."""
    if not wanted:
        return {}
    file = folder / "fences.yaml"
    file.write_text(
        'hosts:\n  "*":\n    driver: none\n    i_accept_that_servers_may_run_twice: true\n'
    )
    return {"fencing": {"devices_file": str(file)}}


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


def measure(lab: Lab, name: str, run: Callable[[Victim], Took]) -> Took:
    with contextlib.closing(lab.connect()) as admin, lab.alone(*lab.computes):
        victim = Victim(lab, admin, lab.computes[0], "beside")
        victim.restore()
        try:
            took = run(victim)
            print(f"  {name}: {took}; {load()}", flush=True)
            return took
        finally:
            victim.restore()


def with_masakari(lab: Lab, wait_s: int) -> Took:
    with masakari(lab, wait_s) as side:
        side.furnish(lab.computes)
        word = "its default" if wait_s == WAIT_S else f"its default is {WAIT_S} s"
        name = f"Masakari, wait_period_after_service_update {wait_s} s ({word})"
        return measure(lab, name, lambda victim: reported(side, victim))


def with_holdfast(lab: Lab, *, trusts: bool = True) -> Took:
    name = "Holdfast" if trusts else "Holdfast without trust_host_status"
    with holdfast(lab, trusts=trusts) as side:
        side.furnish(lab.computes, trust_host_status=trusts)
        return measure(lab, name, lambda victim: reported(side, victim))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wait", type=int, default=WAIT_S, help="Masakari's, in seconds")
    parser.add_argument("only", nargs="?", choices=["masakari", "nova", "holdfast"])
    options = parser.parse_args()
    try:
        lab = Lab.running()
    except NotRunning as error:  # the other figures do not need it
        print(f"  left out: {error}")
        return
    print(f"a host with {SERVERS} servers is reported dead")
    theirs = own = alone = None
    if options.only in (None, "holdfast"):
        own = with_holdfast(lab)
        with_holdfast(lab, trusts=False)
    if options.only in (None, "nova"):
        alone = measure(lab, "Nova alone, forced down and evacuated one by one", by_hand)
    if options.only in (None, "masakari"):
        theirs = with_masakari(lab, options.wait)
    if own and alone:
        ratio = own.all / alone.all
        print(f"  Holdfast / Nova alone: {ratio:.2f} (wanted: at most {WANTED_OF_NOVA})")
    if own and theirs:
        ratio = own.all / theirs.all
        print(f"  Holdfast / Masakari: {ratio:.3f} (wanted: at most {WANTED}, by its defaults)")


if __name__ == "__main__":
    main()
