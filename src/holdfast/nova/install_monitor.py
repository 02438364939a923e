# SPDX-License-Identifier: Apache-2.0
"""Installs the compute monitor into Nova: `python -m holdfast.nova.install_monitor [--remove]`.

Run it with the Python of nova-compute. Nova finds monitors by entry points but accepts only modules
of its own package nova.compute.monitors.cpu, and skips all others. This program therefore writes a
file with one import into that package. No package owns the file: it survives an in-place upgrade of
Nova, and must be written again after a new installation.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

PACKAGE = "nova.compute.monitors.cpu"
TEXT = """\
# Written by `python -m holdfast.nova.install_monitor`, which with --remove takes it away.
from holdfast.nova.compute_monitor import Monitor  # noqa: F401
"""


def place() -> Path:
    """Return the path of the file; ModuleNotFoundError if Nova is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise ModuleNotFoundError(f"no module named {PACKAGE}")
    return Path(folders[0]) / "holdfast.py"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.nova.install_monitor")
    parser.add_argument("--remove", action="store_true", help="take it away again")
    asked = parser.parse_args(words)
    try:
        file = place()
        if asked.remove:
            file.unlink(missing_ok=True)
        else:
            file.write_text(TEXT)
    except ModuleNotFoundError:
        print(f"{sys.executable} has no Nova: run this with nova-compute's Python", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}: run this as its owner", file=sys.stderr)
        return 1
    print(f"{file} is {'gone' if asked.remove else 'there'}: restart nova-compute")
    return 0


if __name__ == "__main__":
    sys.exit(main())
