# SPDX-License-Identifier: Apache-2.0
"""`holdfast-ipmitool`: what fence agents run in place of ipmitool, so that the password is a file's
name on its command line and never the password.

The agents write `ipmitool … -P '' … chassis power off`; this becomes `-f FILE`, where FILE is named
by the environment of the agent. Nothing else of the command changes.
"""

import os
import sys
from collections.abc import Sequence

PASSWORD_FILE = "HOLDFAST_IPMI_PASSWORD_FILE"


def rewritten(words: Sequence[str], file: str) -> list[str]:
    """The same command with the password read from the file."""
    found = list(words)
    if "-P" in found:
        at = found.index("-P")
        found[at : at + 2] = ["-f", file]
    return found


def main() -> None:
    file = os.environ.get(PASSWORD_FILE)
    if not file:
        sys.exit(f"{PASSWORD_FILE} is not set: this program is for fence agents")
    os.execvp("ipmitool", ["ipmitool", *rewritten(sys.argv[1:], file)])


if __name__ == "__main__":
    main()
