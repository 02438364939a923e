# SPDX-License-Identifier: Apache-2.0
"""The lab as programs see it.

lab = Lab.running()
lab.connect("red-member", "red").compute.servers()
lab.compute("cmp2").kill()
lab.wait_compute("cmp2", up=False)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.processes import eventually

from lab import peer
from lab.part import Part
from lab.parts import all_parts
from lab.place import COMPUTES, PASSWORD, REGION, Place
from lab.servers import LabMariaDB

if TYPE_CHECKING:
    from openstack.connection import Connection


class NotRunning(Exception):
    """There is no lab to use."""


class Lab:
    """The running cloud of one place."""

    region = REGION
    computes: tuple[str, ...] = COMPUTES

    def __init__(self, place: Place) -> None:
        """Look at it, whether it runs or not."""
        self.place = place
        self.folder = place.folder
        self.auth_url = place.auth_url
        self.transport_url = place.transport_url
        self._parts = all_parts(place)
        self._peers = {recipe.name: Part(place, recipe) for recipe in peer.recipes(place)}
        self._database = LabMariaDB(place)

    @classmethod
    def running(cls) -> Lab:
        """The lab of this checkout, or NotRunning."""
        place = Place()
        if not place.state.exists():
            raise NotRunning("the lab does not run: start it with `make lab`")
        lab = cls(place)
        if not any(part.running for part in lab.parts):
            raise NotRunning("the lab ran, and was ended by force: start it with `make lab`")
        return lab

    @property
    def parts(self) -> tuple[Part, ...]:
        """All of them, in the order in which they may be started."""
        return tuple(self._parts.values())

    @property
    def peers(self) -> tuple[Part, ...]:
        """Parts of other projects' services, of which `up` knows nothing."""
        return tuple(self._peers.values())

    def part(self, name: str) -> Part:
        """One part by its name."""
        known = self._parts | self._peers
        if name not in known:
            raise KeyError(f"no part {name!r}; there are {', '.join(known)}")
        return known[name]

    def compute(self, host: str) -> Part:
        """The nova-compute of a host."""
        return self.part(f"nova-compute-{self.computes.index(host) + 1}")

    @property
    def flavor(self) -> str:
        """The id of a small flavor."""
        return self._made("flavor")

    @property
    def image(self) -> str:
        """The id of an image."""
        return self._made("image")

    @property
    def external_network(self) -> str:
        """The id of the network that floating addresses come from."""
        return self._made("external_network")

    def _made(self, name: str) -> str:
        return str(json.loads(self.place.state.read_text())[name])

    def credentials(self, user: str = "admin", project: str = "admin") -> dict[str, str]:
        """The OS_* variables of a user, for a command."""
        return {
            "OS_AUTH_URL": self.auth_url,
            "OS_AUTH_TYPE": "password",
            "OS_IDENTITY_API_VERSION": "3",
            "OS_USERNAME": user,
            "OS_PASSWORD": PASSWORD,
            "OS_PROJECT_NAME": project,
            "OS_USER_DOMAIN_NAME": "Default",
            "OS_PROJECT_DOMAIN_NAME": "Default",
            "OS_REGION_NAME": self.region,
        }

    def connect(self, user: str = "admin", project: str = "admin") -> Connection:
        """A connection of the SDK as that user; no proxy stands between."""
        return connect(self.auth_url, user, project)

    def new_database(self, name: str) -> str:
        """Make an empty database in the lab's MariaDB and return its SQLAlchemy URL."""
        self._database.create(name)
        return self._database.database_url(name)

    def drop_database(self, url: str) -> None:
        """Remove it, with whoever is still connected."""
        self._database.drop(url.rpartition("/")[2].partition("?")[0])

    @contextlib.contextmanager
    def alone(self, *names: str) -> Iterator[None]:
        """Have parts or hosts to oneself, among tests that run side by side and ask too."""
        with contextlib.ExitStack() as stack:
            for name in sorted(names):
                file = stack.enter_context((self.place.run / f"{name}.alone").open("w"))
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def wait_compute(self, host: str, *, up: bool = True, timeout: float = 180) -> None:
        """Wait until Nova sees the compute service of a host up, or down."""
        compute = self.connect().compute

        def seen() -> bool:
            services = compute.services(binary="nova-compute", host=host)
            return [service.state for service in services] == ["up" if up else "down"]

        eventually(seen, timeout, 0.25)


def connect(auth_url: str, user: str, project: str) -> Connection:
    """A connection of the SDK."""
    import openstack.connection
    import requests
    from keystoneauth1.identity.v3 import Password
    from keystoneauth1.session import Session

    direct = requests.Session()
    direct.trust_env = False
    login = Password(
        auth_url=auth_url,
        username=user,
        password=PASSWORD,
        project_name=project,
        user_domain_name="Default",
        project_domain_name="Default",
    )
    return openstack.connection.Connection(
        session=Session(auth=login, session=direct, timeout=60),
        region_name=REGION,
    )
