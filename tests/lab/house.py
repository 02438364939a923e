# SPDX-License-Identifier: Apache-2.0
"""Holdfast in the lab's cloud: real programs, Keystone's tokens, found through its catalog.

with house(lab, tmp_path) as home:
    home.openstack("reservation", "lease", "list", credentials=lab.credentials("ana", "blue"))
    home.client(lab.credentials("ana", "blue")).leases.list()
    home.manager.kill()

The lab has one broker: one house stands on it at a time, whoever else would like to has to wait.
One with a broker of its own, in a region of its own, stands beside others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.client import auth
from holdfast.client.client import Client
from tests.e2e.deployment import Deployment, Options, merged, separate
from tests.processes import Program, script

if TYPE_CHECKING:
    from lab.cloud import Lab

#: Of our own, so that whatever else serves these types in the lab is not in the way.
REGION = "house"
TYPES = ("reservation", "instance-ha")
PATIENCE_S = 900
#: Commands that are for us; all others go to the lab's cloud.
OURS = {"reservation", "segment", "notification"}
_WITHOUT_OUTPUT = {"delete", "set", "unset", "add", "remove", "stop", "start", "lock", "unlock"}


class Failed(AssertionError):
    """A command that did not end with 0: what it said."""

    def __init__(self, words: list[str], code: int, out: str, err: str) -> None:
        super().__init__(f"{' '.join(words)}: {code}\n{out}{err}")
        self.code, self.out, self.err = code, out, err


@dataclass
class House:
    """One API, managers as many as asked for, and ways to talk to them."""

    lab: Lab
    folder: Path
    region: str
    database_url: str
    deployment: Deployment
    _clients: list[Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.deployment.urls[0]

    @property
    def api(self) -> Program:
        return self.deployment.apis[0]

    @property
    def managers(self) -> list[Program]:
        return self.deployment.managers

    @property
    def manager(self) -> Program:
        return self.managers[0]

    def restart(self, program: Program, timeout: float = 180) -> None:
        """Start a program that was killed or terminated, and wait until it is ready."""
        both = [*zip(self.deployment.apis, self.deployment.urls, strict=True)]
        both += zip(self.managers, self.deployment.health_urls, strict=True)
        url = next(url for known, url in both if known is program)
        program.start().wait_http(f"{url}/readyz", timeout)

    def environment(self, credentials: Mapping[str, str] | None = None) -> dict[str, str]:
        """The credentials (the lab's admin unless given), and nobody else's, in our region."""
        who = credentials if credentials is not None else self.lab.credentials()
        return environment({**who, "OS_REGION_NAME": self.region})

    def client(self, credentials: Mapping[str, str] | None = None) -> Client:
        """Our library, as these OS_* variables; the catalog tells it where to go."""
        made = Client(session=auth.connect(self.environment(credentials)))
        self._clients.append(made)
        return made

    def openstack(self, *words: str, credentials: Mapping[str, str] | None = None) -> Any:
        """`openstack …` as people have it: its JSON, None where it prints none."""
        env = self.environment(credentials)
        if words[0] not in OURS:
            env["OS_REGION_NAME"] = self.lab.region
        found = documents(run("openstack", *as_json(words), env=env))
        return found[0] if found else None

    def reservations(
        self, *lines: Sequence[str], credentials: Mapping[str, str] | None = None
    ) -> list[Any]:
        """Several `openstack reservation …`."""
        return self.commands(*(["reservation", *line] for line in lines), credentials=credentials)

    def commands(
        self, *lines: Sequence[str], credentials: Mapping[str, str] | None = None
    ) -> list[Any]:
        """Several `openstack …` for us in one process, which is most of their cost."""
        commands = [as_json(line) for line in lines]
        text = "".join(f"{shlex.join(each)}\n" for each in commands)
        try:
            out, err = run("openstack", env=self.environment(credentials), given=text), ""
        except Failed as failed:  # its shell does not always end with 0: what it printed counts
            out, err = failed.out, failed.err
        found = documents(out)
        if len(found) != sum("json" in each for each in commands):
            raise Failed(["openstack", text], 1, out, err)
        return found

    def holdfast(self, *words: str, credentials: Mapping[str, str] | None = None) -> str:
        """`holdfast …`: what it printed."""
        return run("holdfast", *words, env=self.environment(credentials))


def as_json(words: Sequence[str]) -> Sequence[str]:
    """The command, asked for JSON unless it prints nothing."""
    return words if _WITHOUT_OUTPUT & set(words[:4]) else [*words, "-f", "json"]


def documents(text: str) -> list[Any]:
    """The JSON in what a command printed, without the sentences between."""
    found, at, decoder = [], 0, json.JSONDecoder()
    while start := re.compile(r"^[{\[]", re.MULTILINE).search(text, at):
        value, at = decoder.raw_decode(text, start.start())
        found.append(value)
    return found


def environment(credentials: Mapping[str, str]) -> dict[str, str]:
    """Our own environment, with these credentials in the place of any others."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("OS_", "HOLDFAST_"))}
    return {**mine, "NO_PROXY": "*", **credentials}


def run(program: str, *words: str, env: Mapping[str, str], given: str = "") -> str:
    """What a command printed; Failed with what it complained about."""
    done = subprocess.run(
        [str(script(program)), *words],
        env=dict(env),
        input=given,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode:
        raise Failed([program, *words], done.returncode, done.stdout, done.stderr)
    return done.stdout


@contextlib.contextmanager
def house(
    lab: Lab,
    folder: Path,
    *,
    cloud: str = "sim",
    managers: int = 1,
    hosts: int = 4,
    database_url: str | None = None,
    transport_url: str | None = None,
    region: str = REGION,
    extra: Options | None = None,
) -> Iterator[House]:
    """`holdfast-api` and `holdfast-manager`, registered in the catalog for as long as they run.

    `hosts` are those of the simulated cloud. `extra` is configuration above ours.
    """
    with contextlib.ExitStack() as stack:
        if transport_url is None:
            stack.enter_context(alone(lab))
        if database_url is None:
            database_url = lab.new_database(f"house_{os.getpid()}_{time.monotonic_ns()}")
            stack.callback(lab.drop_database, database_url)
        deployment = stack.enter_context(
            separate(
                folder,
                database_url,
                transport_url or lab.transport_url,
                apis=1,
                managers=managers,
                hosts=hosts,
                options=merged(options(lab, cloud), extra or {}),
            )
        )
        made = House(lab, folder, region, database_url, deployment)
        stack.enter_context(registered(lab, made.url, region))
        stack.callback(lambda: [each.close() for each in made._clients])
        yield made


def options(lab: Lab, cloud: str) -> dict[str, dict[str, object]]:
    """What an operator would write into holdfast.conf."""
    found: dict[str, dict[str, object]] = {
        "DEFAULT": {"auth_strategy": "keystone"},
        "cloud": {"driver": cloud},
        "keystone_authtoken": {
            "auth_type": "password",
            "auth_url": lab.auth_url,
            "www_authenticate_uri": lab.auth_url,
            "username": "holdfast",
            "password": "pw",
            "user_domain_name": "Default",
            "project_name": "service",
            "project_domain_name": "Default",
            "service_token_roles_required": True,
        },
    }
    if cloud == "nova":
        found["openstack"] = {"auth_section": "keystone_authtoken", "region_name": lab.region}
        # tests that end computes or the broker do not mean to fail hosts; who does says so
        found["monitors"] = {"poll": False, "push": False}
    return found


@contextlib.contextmanager
def alone(lab: Lab) -> Iterator[None]:
    """Wait until no other house stands in this lab: they would take each other's messages."""
    with _locked(lab, "house"):
        yield


@contextlib.contextmanager
def _locked(lab: Lab, what: str) -> Iterator[None]:
    deadline = time.monotonic() + PATIENCE_S
    with (lab.folder / f"{what}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < deadline, f"another has the {what} for {PATIENCE_S} s"
                time.sleep(0.2)
        yield


@contextlib.contextmanager
def registered(lab: Lab, url: str, region: str) -> Iterator[str]:
    """In the catalog by `holdfast keystone register`; out of it afterwards. What it said."""
    with contextlib.closing(lab.connect()) as cloud:
        if region not in {each.id for each in cloud.identity.regions()}:
            cloud.identity.create_region(id=region)
        try:
            with _locked(lab, "catalog"):
                said = run(
                    "holdfast", "keystone", "register", "--public-url", url, "--region", region,
                    "--service-user", "holdfast", "--service-password-file", "-",
                    env=environment(lab.credentials()), given="pw\n",
                )  # fmt: skip
            yield said
        finally:
            with _locked(lab, "catalog"):
                unregister(cloud, region)


def unregister(cloud: Any, region: str) -> None:
    """Take a region's endpoints out again, and services that have none left; the region stays."""
    identity = cloud.identity
    for each in list(identity.endpoints(region_id=region)):
        identity.delete_endpoint(each)
    used = {each.service_id for each in identity.endpoints()}
    for each in list(identity.services()):
        if each.type in TYPES and each.name.startswith("holdfast") and each.id not in used:
            identity.delete_service(each)
