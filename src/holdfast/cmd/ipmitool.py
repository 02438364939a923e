# SPDX-License-Identifier: Apache-2.0
"""`holdfast-ipmitool`: ipmitool wrapper for fence agents, hides the password from the process list.

Fence agents run `ipmitool … -P '' … chassis power off`. The wrapper replaces `-P ''` by `-f FILE`,
where the environment variable HOLDFAST_IPMI_PASSWORD_FILE names FILE. The command line then shows
the name of the password file, never the password. Nothing else of the command changes.
"""

import os
import sys
from collections.abc import Sequence

PASSWORD_FILE = "HOLDFAST_IPMI_PASSWORD_FILE"


def rewritten(words: Sequence[str], file: str) -> list[str]:
    """Return the command with `-f FILE` in place of `-P PASSWORD`."""
    command = list(words)
    if "-P" in command:
        at = command.index("-P")
        command[at : at + 2] = ["-f", file]
    return command


def main() -> None:
    file = os.environ.get(PASSWORD_FILE)
    if not file:
        sys.exit(f"{PASSWORD_FILE} is not set: this program is for fence agents")
    os.execvp("ipmitool", ["ipmitool", *rewritten(sys.argv[1:], file)])


if __name__ == "__main__":
    main()
