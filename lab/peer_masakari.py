# SPDX-License-Identifier: Apache-2.0
"""Masakari in the same cloud: API and engine, as their own programs run them.

Its options are its defaults, but for addresses. It keeps its workflows in its database and takes
turns by a file, without which it would sleep before each notification. The catalog's entry
`instance-ha` is not taken: that is ours.
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

KIND = "masakari-peer"


def url(place: Place) -> str:
    """Where its API answers."""
    return f"{place.url('masakari-api')}/v1"


def schema(place: Place) -> None:
    """Tables."""
    LabMariaDB(place).renew("masakari")
    use = ["--config-file", str(file(place))]
    home = place.peer("masakari")
    build.manage(place, "masakari", "masakari.cmd.manage", [[*use, "db", "sync"]], venv=home)


def user(lab: Lab) -> None:
    """Its user and its entry of the catalog."""
    cloud = lab.connect()
    bootstrap.grant(cloud.identity, "service", "masakari", "admin", "service")
    bootstrap.publish(cloud.identity, name="masakari", kind=KIND, url=url(lab.place))


def file(place: Place) -> Path:
    """Its configuration."""
    return place.etc / "masakari" / "masakari.conf"


def write_config(place: Place, settings: config.Settings) -> None:
    """Write that file; `settings` are options of its [DEFAULT]."""
    database = place.database_url("masakari")
    sections: config.Sections = {
        "DEFAULT": {
            **config.LOGGING,
            "transport_url": place.transport_url,
            "masakari_api_listen": "127.0.0.1",
            "masakari_api_listen_port": place.ports["masakari-api"],
            "masakari_api_workers": 1,
            "os_privileged_user_name": "masakari",
            "os_privileged_user_password": PASSWORD,
            "os_privileged_user_tenant": "service",
            "os_privileged_user_auth_url": place.auth_url,
            "os_user_domain_name": "Default",
            "os_project_domain_name": "Default",
            "os_region_name": REGION,
            "nova_catalog_admin_info": "compute:nova:publicURL",
            "auth_strategy": "keystone",
            **settings,
        },
        "wsgi": {
            "api_paste_config": str(place.peer("masakari") / "etc" / "masakari" / "api-paste.ini")
        },
        "database": {"connection": database, **config.POOL},
        "taskflow": {"connection": database},
        "coordination": {"backend_url": f"file://{place.folder / 'masakari-turns'}"},
        "keystone_authtoken": config.authtoken(place, "masakari", "instance-ha"),
    }
    file(place).parent.mkdir(parents=True, exist_ok=True)
    write(file(place), config.ini(sections))


def recipes(place: Place) -> Iterator[Recipe]:
    """The API with one worker, and one engine."""
    programs = place.peer("masakari") / "bin"
    env = environment(place) | {"PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"}
    use = ("--config-file", str(file(place)))
    port = place.ports["masakari-api"]
    yield Recipe(
        name="masakari-api",
        command=(str(programs / "masakari-api"), *use),
        env=env,
        ready=serves(f"http://127.0.0.1:{port}/"),
        files=(file(place),),
        port=port,
    )
    broker = LabRabbitMQ(place)
    yield Recipe(
        name="masakari-engine",
        command=(str(programs / "masakari-engine"), *use),
        env=env,
        ready=lambda: broker.consumers("ha_engine") > 0,
        files=(file(place),),
    )
