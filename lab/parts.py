# SPDX-License-Identifier: Apache-2.0
"""All parts of the lab: what runs, with which words, and when it is ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.processes import answers

from lab.config import OUR_FILTER_FILE
from lab.part import Part, Recipe
from lab.place import COMPUTES, ROOT, Place
from lab.servers import LabMariaDB, LabRabbitMQ

# what Nova loads of ours
OUR_FILES = tuple(sorted(OUR_FILTER_FILE.parent.glob("*.py")))
# name, WSGI module, the variable that names its folder of configuration, its file, threads
APIS = (
    ("keystone", "keystone.wsgi.api", "OS_KEYSTONE_CONFIG_DIR", "keystone.conf", 6),
    ("placement", "placement.wsgi.api", "OS_PLACEMENT_CONFIG_DIR", "placement.conf", 4),
    ("glance", "glance.wsgi.api", "OS_GLANCE_CONFIG_DIR", "glance-api.conf", 3),
    ("neutron", "neutron.wsgi.api", "OS_NEUTRON_CONFIG_DIR", "neutron.conf", 4),
    ("nova-api", "nova.wsgi.osapi_compute", "OS_NOVA_CONFIG_DIR", "nova.conf", 8),
)


def all_parts(place: Place) -> dict[str, Part]:
    """Every part by name, in the order in which they may be started."""
    return {recipe.name: Part(place, recipe) for recipe in recipes(place)}


def recipes(place: Place) -> Iterator[Recipe]:
    """How each part is run."""
    broker = LabRabbitMQ(place)
    yield mariadb(place)
    yield from rabbitmq(broker)
    for name, module, variable, file, threads in APIS:
        folder = place.etc / name.removesuffix("-api")
        env = {variable: str(folder)}
        files = (folder / file,)
        if name == "neutron":
            env["OS_NEUTRON_CONFIG_FILES"] = file
        if name == "nova-api":
            read = ("api-paste.ini", file, "nova-api.conf")
            env |= {"OS_NOVA_CONFIG_FILES": ";".join(read), "PYTHONPATH": str(ROOT / "src")}
            files = (*(folder / one for one in read), *OUR_FILES)
        words = ("--module", f"{module}:application", "--threads", str(threads))
        yield wsgi(place, name, words, env, *files)
    for name in ("nova-conductor", "nova-scheduler"):
        yield nova(place, name, name, name.removeprefix("nova-"), broker)
    for number, host in enumerate(COMPUTES, 1):
        name = f"nova-compute-{number}"
        extra_file = place.etc / f"{name}.conf"
        yield nova(place, name, "nova-compute", f"compute.{host}", broker, extra_file)


def mariadb(place: Place) -> Recipe:
    """The database server."""
    server = LabMariaDB(place)
    return Recipe(
        name="mariadb",
        command=tuple(server.command()),
        env=server.environment(),
        ready=server.ready,
        port=server.port,
        grace_s=30,
    )


def rabbitmq(server: LabRabbitMQ) -> Iterator[Recipe]:
    """The broker, and Erlang's name server that it registers with."""
    yield Recipe(
        name="epmd",
        command=tuple(server.epmd_command()),
        env=server.environment(),
        ready=server.epmd_ready,
        port=server.epmd_port,
        grace_s=1,  # nobody's loss
    )
    yield Recipe(
        name="rabbitmq",
        command=tuple(server.command()),
        env=server.environment(),
        ready=server.ready,
        files=(server.folder / "rabbitmq.conf",),
        port=server.port,
        grace_s=20,
    )


def environment(place: Place) -> dict[str, str]:
    """The whole environment of a program of the cloud: nothing of ours leaks in."""
    return {
        "PATH": f"{place.venv / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(place.folder),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
    }


def wsgi(
    place: Place, name: str, words: tuple[str, ...], env: dict[str, str], *files: Path
) -> Recipe:
    """An API under uWSGI."""
    port = place.ports[name]
    server = place.etc / "uwsgi.ini"
    return Recipe(
        name=name,
        command=(
            place.program("uwsgi"),
            *("--ini", str(server), "--http-socket", f"127.0.0.1:{port}"),
            *words,
        ),
        env=environment(place) | env,
        ready=serves(f"http://127.0.0.1:{port}/"),
        files=(server, *files),
        port=port,
    )


def serves(url: str) -> Callable[[], bool]:
    """Whether a URL answers with anything but a failure."""

    def ready() -> bool:
        status = answers(url)
        return status is not None and status < 500

    return ready


def nova(
    place: Place, name: str, program: str, queue: str, broker: LabRabbitMQ, *more: Path
) -> Recipe:
    """A program of Nova; it works when it reads its queue, the last thing of its start."""
    files = (place.etc / "nova" / "nova.conf", *more)
    words = [word for file in files for word in ("--config-file", str(file))]
    env = environment(place)
    if program == "nova-scheduler":
        env["PYTHONPATH"] = str(ROOT / "src")
        files += OUR_FILES
    return Recipe(
        name=name,
        command=(place.program(program), *words),
        env=env,
        ready=lambda: broker.consumers(queue) > 0,
        files=files,
    )
