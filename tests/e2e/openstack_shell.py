# SPDX-License-Identifier: Apache-2.0
"""Runs `openstack …` again and again in one process: its start alone takes seconds.

Each line of stdin is a command's words as a JSON list; each line of stdout what came of it.
"""

import contextlib
import io
import json
import sys

from openstackclient import shell


def main() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = shell.main(json.loads(line))
            except SystemExit as ended:
                code = ended.code
        answers.write(json.dumps([code or 0, out.getvalue(), err.getvalue()]) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
