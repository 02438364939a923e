# SPDX-License-Identifier: Apache-2.0
"""Bringing the lab up, from whatever is there, and taking it down."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tests.processes import eventually

from lab import bootstrap, build, config, monitors
from lab.cloud import Lab, connect
from lab.part import Part
from lab.peer import PEERS
from lab.place import COMPUTES, Place, digest, write
from lab.servers import LabMariaDB, LabRabbitMQ
from lab.steps import Progress, Stamps, Step, do_all

SCHEMAS: dict[str, Callable[[Place], None]] = {
    "keystone": build.keystone,
    "placement": build.placement,
    "glance": build.glance,
    "neutron": build.neutron,
    "nova": build.nova,
}
KEPT = (
    *("installer", "virtual environment", "bytecode"),
    *(f"{name} installed" for name in (*PEERS, monitors.NAME)),
)
DATA = ("mariadb", "rabbitmq", "images", "nova", "neutron", "locks", "masakari-turns")


def up(place: Place, progress: Progress) -> None:
    """Do what is missing until everything answers."""
    place.make()
    generation = digest(build.pins(), place.made_with)
    renew(place, generation, progress)
    config.write_all(place)
    LabRabbitMQ(place).prepare()
    lab = Lab(place)
    if place.state.exists() and all(part.current for part in lab.parts):
        return  # whoever uses it is not disturbed
    place.state.unlink(missing_ok=True)
    end(part for part in lab.parts if part.running and not part.current)
    made: dict[str, str] = {}
    do_all(plan(lab, generation, made), Stamps(place.stamps), progress)
    write(place.state, json.dumps(made))


def renew(place: Place, generation: str, progress: Progress) -> None:
    """Forget what another generation made: other versions, other ports."""
    if Stamps(place.stamps).has("generation", generation):
        return
    if any(place.stamps.iterdir()):
        progress.say("other pins or ports than before, or cleaned: making the databases anew")
    down(place)
    clean(place)
    Stamps(place.stamps).set("generation", generation)


def plan(lab: Lab, generation: str, made: dict[str, str]) -> list[Step]:
    """All steps of a lab that is not there yet."""
    place = lab.place
    pins = build.pins()

    def once(name: str, do: Callable[[Place], None], *needs: str, stamp: str = generation) -> Step:
        return Step(name, partial(do, place), needs, stamp)

    def run(name: str, *needs: str) -> Step:
        return Step(name, lab.part(name).start, needs)

    steps = [
        once("installer", build.installer, stamp=pins),
        once(
            "virtual environment",
            lambda place: build.virtual_environment(place, place.venv),
            "installer",
            stamp=pins,
        ),
        once("pipelines", build.pastes, "virtual environment"),
        once("bytecode", build.bytecode, "virtual environment", stamp=pins),
        once("keys", build.keys),
        once("database files", lambda place: LabMariaDB(place).prepare()),
        run("mariadb", "database files"),
        run("epmd"),
        run("rabbitmq", "epmd"),
    ]
    for name, schema in SCHEMAS.items():
        steps.append(once(f"{name} schema", schema, "bytecode", "pipelines", "mariadb"))
    steps += [
        run("keystone", "keystone schema", "keys"),
        run("placement", "placement schema"),
        run("glance", "glance schema"),
        run("neutron", "neutron schema", "rabbitmq"),
        run("nova-api", "nova schema", "rabbitmq"),
    ]
    steps.append(
        Step("people and catalog", lambda: identity(place), ["keystone"], stamp=generation)
    )
    for name in ("nova-conductor", "nova-scheduler"):
        steps.append(run(name, "nova schema", "people and catalog", "rabbitmq"))
    needs = ("keystone", "placement", "nova-conductor", "people and catalog")
    steps += [run(f"nova-compute-{number}", *needs) for number in range(1, len(COMPUTES) + 1)]
    return steps + furnish(lab, made)


def furnish(lab: Lab, made: dict[str, str]) -> list[Step]:
    """What the APIs are asked for once they answer."""

    def ask(name: str, do: Callable[[Any], str], *needs: str) -> Step:
        def step() -> None:
            made[name] = do(lab.connect())

        return Step(name, step, ["people and catalog", "keystone", *needs])

    computes = [part.name for part in lab.parts if part.name.startswith("nova-compute")]
    return [
        ask("flavor", bootstrap.flavor, "nova-api"),
        ask("image", bootstrap.image, "glance"),
        ask("external_network", bootstrap.external_network, "neutron"),
        Step(
            "computes seen",
            lambda: see_computes(lab),
            ["nova-api", "nova-scheduler", "placement", *computes],
        ),
    ]


def identity(place: Place) -> None:
    """Users, projects and the catalog."""
    bootstrap.identity(place, connect(place.auth_url, "admin", "admin"))


def see_computes(lab: Lab) -> None:
    """Wait until Nova and Placement know every compute, and servers may go there."""
    cloud = lab.connect()
    for service in cloud.compute.services(binary="nova-compute"):
        if service.is_forced_down:
            # Nova refuses until the host has looked what was evacuated from it
            lab.compute(service.host).restart()
            cloud.compute.update_service_forced_down(service, service.host, service.binary, False)
        if service.status == "disabled":
            cloud.compute.enable_service(service)

    def seen() -> bool:
        hosts = {host.name for host in cloud.compute.hypervisors() if host.state == "up"}
        providers = {provider.name for provider in cloud.placement.resource_providers()}
        assert hosts >= set(COMPUTES), f"Nova sees up: {sorted(hosts)}"
        assert providers >= set(COMPUTES), f"Placement sees: {sorted(providers)}"
        return True

    eventually(seen, 300, 0.2)


def down(place: Place) -> None:
    """Stop everything; the data stays."""
    place.state.unlink(missing_ok=True)
    lab = Lab(place)
    end(lab.peers)
    parts = lab.parts
    below = [part for part in parts if part.name in ("mariadb", "rabbitmq", "epmd")]
    end(part for part in parts if part not in below)
    end(part for part in below if part.name != "epmd")
    end(below)


def end(parts: Iterable[Part]) -> None:
    """Stop these side by side."""
    chosen = list(parts)
    for part in chosen:
        part.ask_to_end()
    with ThreadPoolExecutor(max_workers=max(1, len(chosen))) as pool:
        list(pool.map(Part.see_it_end, chosen))


def clean(place: Place) -> None:
    """Remove the data of a lab that is down; what was installed stays."""
    for name in DATA:
        shutil.rmtree(place.folder / name, ignore_errors=True)
    for stamp in place.stamps.iterdir():
        if stamp.name not in KEPT:
            stamp.unlink()
