# SPDX-License-Identifier: Apache-2.0
"""Blazar in the same cloud, with a free pool that is not ours. The catalog's entry `reservation` is
not taken either.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lab import bootstrap, build, config
from lab.part import Recipe
from lab.parts import environment, serves
from lab.place import PASSWORD, REGION, Place, write
from lab.servers import LabMariaDB, LabRabbitMQ

if TYPE_CHECKING:
    from lab.cloud import Lab

KIND = "blazar-peer"
POOL = "blazar-freepool"


def url(place: Place) -> str:
    """Where its API answers."""
    return f"{place.url('blazar-api')}/v1"


def schema(place: Place) -> None:
    """Tables."""
    LabMariaDB(place).renew("blazar")
    use = ["--config-file", str(file(place))]
    commands = [[*use, "upgrade", "head"]]
    build.manage(place, "blazar", "blazar.db.migration.cli", commands, venv=place.peer("blazar"))


def user(lab: Lab) -> None:
    """Its user, its entry of the catalog and its free pool."""
    cloud = lab.connect()
    bootstrap.grant(cloud.identity, "service", "blazar", "admin", "service")
    bootstrap.publish(cloud.identity, name="blazar", kind=KIND, url=url(lab.place))
    if not any(pool.name == POOL for pool in cloud.compute.aggregates()):
        cloud.compute.create_aggregate(name=POOL)


def file(place: Place) -> Path:
    """Its configuration."""
    return place.etc / "blazar" / "blazar.conf"


def write_config(place: Place, settings: config.Settings) -> None:
    """Write that file; `settings` are options of its [DEFAULT]."""
    sections: config.Sections = {
        "DEFAULT": {
            **config.LOGGING,
            "host": "127.0.0.1",
            "port": place.ports["blazar-api"],
            "transport_url": place.transport_url,
            "os_auth_host": "127.0.0.1",
            "os_auth_port": place.ports["keystone"],
            "os_auth_protocol": "http",
            "os_admin_username": "blazar",
            "os_admin_password": PASSWORD,
            "os_admin_project_name": "service",
            "identity_service": "identity",
            "os_region_name": REGION,
            **settings,
        },
        "manager": {"plugins": "physical.host.plugin,virtual.instance.plugin"},
        "nova": {"aggregate_freepool_name": POOL},
        "physical:host": {
            "enable_polling_monitor": "false",
            "enable_notification_monitor": "false",
        },
        "database": {"connection": place.database_url("blazar"), **config.POOL},
        "enforcement": {"enabled_filters": ""},
        "keystone_authtoken": config.authtoken(place, "blazar", "reservation"),
    }
    file(place).parent.mkdir(parents=True, exist_ok=True)
    write(file(place), config.ini(sections))


def recipes(place: Place) -> Iterator[Recipe]:
    """The API under uWSGI, one process of four threads, and the manager."""
    programs = place.peer("blazar") / "bin"
    env = environment(place) | {
        "PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin",
        "OS_BLAZAR_CONFIG_DIR": str(file(place).parent),
    }
    port = place.ports["blazar-api"]
    use = ("--config-file", str(file(place)))
    server = place.etc / "uwsgi.ini"
    yield Recipe(
        name="blazar-api",
        command=(
            *(str(programs / "uwsgi"), "--ini", str(server)),
            *("--http-socket", f"127.0.0.1:{port}", "--threads", "4"),
            *("--module", "blazar.wsgi.api:application", "--pyargv", " ".join(use)),
        ),
        env=env,
        ready=serves(f"http://127.0.0.1:{port}/"),
        files=(server, file(place)),
        port=port,
    )
    broker = LabRabbitMQ(place)
    yield Recipe(
        name="blazar-manager",
        command=(str(programs / "blazar-manager"), *use),
        env=env,
        ready=lambda: broker.consumers("blazar.manager") > 0,
        files=(file(place),),
    )
