# SPDX-License-Identifier: Apache-2.0
"""A fence agent for the lab, whose machines are processes: it speaks as those of ClusterLabs do.

`key=value` lines on standard input: `action` is off, on or status, `plug` a host's name. Status
says itself in words and by its exit code, 0 for on and 2 for off.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "fence_lab"


def install(folder: Path) -> Path:
    """Put the program into the folder of agents: it is run without any environment."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / NAME
    program.write_text(
        f"#!{sys.executable}\n"
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.lab.fence_lab import main\n"
        "sys.exit(main(sys.stdin.read()))\n"
    )
    program.chmod(0o755)
    return program


def main(given: str) -> int:
    from lab.cloud import Lab
    from lab.place import Place

    words = dict(line.split("=", 1) for line in given.splitlines() if "=" in line)
    machine = Lab(Place()).compute(words["plug"])
    action = words.get("action", "off")
    if action == "off":
        machine.kill()
    elif action == "on":
        machine.launch()
    elif action == "status":
        print("Status: ON" if machine.running else "Status: OFF")
        return 0 if machine.running else 2
    else:
        print(f"{action} is nothing that can be done here", file=sys.stderr)
        return 1
    return 0
