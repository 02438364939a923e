# SPDX-License-Identifier: Apache-2.0
"""What is made once: the virtual environment, the keys, the databases."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.processes import tail

from lab import config
from lab.parts import environment
from lab.place import HERE, PASSWORD, REGION, Place, digest, write
from lab.servers import LabMariaDB
from lab.steps import StepFailed

# another number remakes everything that an older lab of this checkout made
GENERATION = 1
# most of what no service loads
UNUSED = r"/(tests|networkx|numpy|os_ken|prompt_toolkit|pygments|redis|rich|setuptools|taskflow)/"


def pins(name: str = "") -> str:
    """A name for what is installed: another name, another installation."""
    files = [HERE / f"requirements{name}.txt", HERE / f"constraints{name}.txt"]
    lines = [line for file in files for line in file.read_text().splitlines()]
    named = [line for line in lines if not line.startswith("#")]
    return digest(named, sys.version, GENERATION)


def run(
    place: Place, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None
) -> None:
    """Run a command to its end, output to the log of that name; it dies if we do."""
    log = place.logs / f"{name}.log"
    with log.open("ab") as output:
        done = subprocess.run(
            ["setpriv", "--pdeathsig", "KILL", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment(place) if env is None else env),
            cwd=place.folder,
            check=False,
        )
    if done.returncode:
        words = " ".join([Path(command[0]).name, *command[1:]])[:200]
        raise StepFailed(f"`{words}` ended with {done.returncode}\n--- {log}\n{tail(log, 25)}")


def installer(place: Place) -> None:
    """Uv, which installs in seconds what takes pip minutes."""
    target = place.folder / "uv"
    shutil.rmtree(target, ignore_errors=True)
    words = ("-m", "pip", "install", "-q", "--target", str(target))
    pinned = ("-c", str(HERE / "constraints.txt"), "uv")
    run(place, "install", [sys.executable, *words, *pinned], env=outside())


def outside() -> dict[str, str]:
    """Our own environment: how to reach a package index is the user's matter."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env["UV_PYTHON_DOWNLOADS"] = "never"
    env["UV_LINK_MODE"] = env.get("UV_LINK_MODE", "hardlink")
    # what pip was told holds for uv
    for theirs, ours in (("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), ("PIP_CERT", "SSL_CERT_FILE")):
        if theirs in env:
            env.setdefault(ours, env[theirs])
    return env


def resolve(place: Place, name: str = "") -> None:
    """Renew the pins: the newest versions that fit together."""
    installer(place)
    file = HERE / f"constraints{name}.txt"
    old = file.read_text().splitlines(keepends=True)
    head = "".join(line for line in old if line.startswith("#"))
    new = place.folder / file.name
    new.unlink(missing_ok=True)
    uv = str(place.folder / "uv" / "bin" / "uv")
    words = ["pip", "compile", "-q", "--upgrade", "--no-header", "--no-annotate"]
    where = ["-o", str(new), str(HERE / f"requirements{name}.txt")]
    run(place, "install", [uv, *words, *where], env=outside())
    tool = "" if name else "".join(line for line in old if line.startswith("uv=="))
    write(file, head + new.read_text() + tool)


def virtual_environment(place: Place, folder: Path, name: str = "") -> None:
    """Make it anew, with the pinned versions."""
    uv = str(place.folder / "uv" / "bin" / "uv")
    shutil.rmtree(folder, ignore_errors=True)
    run(
        place, "install", [uv, "venv", "-q", "--python", sys.executable, str(folder)], env=outside()
    )
    constraints = str(HERE / f"constraints{name}.txt")
    run(
        place,
        "install",
        [
            *(uv, "pip", "install", "-q", "--python", str(folder / "bin" / "python")),
            *("-r", str(HERE / f"requirements{name}.txt")),
            *("--constraints", constraints, "--build-constraints", constraints),
        ],
        env=outside(),
    )


def peer(place: Place, name: str) -> None:
    """Install another project's service, compiled: it is measured."""
    home = place.peer(name)
    virtual_environment(place, home, f"-{name}")
    words = ("-m", "compileall", "-q", "-x", "/tests/", str(home))
    run(place, "install", [str(home / "bin" / "python"), *words])


def keys(place: Place) -> None:
    """Keystone's keys: number 0 is the next one, number 1 signs today."""
    for name in ("fernet-keys", "credential-keys"):
        folder = place.etc / "keystone" / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for number in ("0", "1"):
            (folder / number).write_bytes(base64.urlsafe_b64encode(os.urandom(32)))


def manage(
    place: Place, name: str, module: str, *chains: Sequence[Sequence[str]], venv: Path | None = None
) -> None:
    """Run commands of a service's own tool, side by side where they may."""
    python = str((venv or place.venv) / "bin" / "python")
    words = [str(HERE / "inside.py"), module, json.dumps(chains)]
    # Nova's tool alone would still load eventlet
    env = environment(place) | {"OS_NOVA_DISABLE_EVENTLET_PATCHING": "true"}
    run(place, f"{name}-schema", [python, *words], env=env)


# each makes the databases of one service from nothing: MariaDB cannot take back half a
# change of a table, so an interrupted attempt is of no use


def keystone(place: Place) -> None:
    """Tables, the first user, the roles, the catalog's first entry."""
    LabMariaDB(place).renew("keystone")
    use = ["--config-file", str(place.etc / "keystone" / "keystone.conf")]
    urls = [
        word
        for interface in ("admin", "internal", "public")
        for word in (f"--bootstrap-{interface}-url", place.auth_url)
    ]
    first = ["--bootstrap-password", PASSWORD, "--bootstrap-region-id", REGION]
    commands = [[*use, "db_sync"], [*use, "bootstrap", *first, *urls]]
    manage(place, "keystone", "keystone.cmd.manage", commands)


def placement(place: Place) -> None:
    """Tables."""
    LabMariaDB(place).renew("placement")
    use = ["--config-file", str(place.etc / "placement" / "placement.conf")]
    manage(place, "placement", "placement.cmd.manage", [[*use, "db", "sync"]])


def glance(place: Place) -> None:
    """Tables."""
    LabMariaDB(place).renew("glance")
    use = ["--config-file", str(place.etc / "glance" / "glance-api.conf")]
    manage(place, "glance", "glance.cmd.manage", [[*use, "db_sync"]])


def neutron(place: Place) -> None:
    """Tables."""
    LabMariaDB(place).renew("neutron")
    use = ["--config-file", str(place.etc / "neutron" / "neutron.conf")]
    manage(place, "neutron", "neutron.db.migration.cli", [[*use, "upgrade", "heads"]])


def nova(place: Place) -> None:
    """Tables of the API, of the cell of lost servers and of the one real cell."""
    server = LabMariaDB(place)
    for name in ("nova_api", "nova_cell0", "nova"):
        server.renew(name)
    use = ["--config-file", str(place.etc / "nova" / "nova.conf")]
    lost = ["--config-file", str(place.etc / "nova-cell0.conf")]
    cell0 = ["--database_connection", place.database_url("nova_cell0")]
    cells = [
        [*use, "api_db", "sync"],
        [*use, "cell_v2", "map_cell0", *cell0],
        [*use, "cell_v2", "create_cell", "--name", "cell1"],
    ]
    tables = ["db", "sync", "--local_cell"]
    manage(place, "nova", "nova.cmd.manage", cells, [[*use, *tables]], [[*use, *lost, *tables]])


def pastes(place: Place) -> None:
    """The pipelines that come with the packages."""
    config.copy_pastes(place)


def bytecode(place: Place) -> None:
    """Compile what the services load; the rest is compiled if it is ever needed."""
    words = ("-m", "compileall", "-q", "-j", "0", "-x", UNUSED, str(place.venv / "lib"))
    run(place, "install", [place.program("python"), *words])
