# SPDX-License-Identifier: Apache-2.0
"""Runs commands of one program, which takes seconds to load, after loading it once.

The cloud's own interpreter runs this file; nothing of the lab is imported. Arguments: the
module whose `main` it is, and JSON: chains of commands, a command being its words. Chains
run side by side, the commands of a chain one after the other, each in a fork of its own.
The first command that fails ends its chain, and this program with its exit code.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def fork(do: Callable[[], object]) -> int:
    """Do something in a child that does not outlive us; returns its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    return os.fork() or end_with(do, parent)


def end_with(do: Callable[[], object], parent: int) -> NoReturn:
    """Do it, and leave with the exit code that it asks for."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)
    try:
        code = do()
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


def code_of(child: int) -> int:
    """Wait for a child; its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def chain(module: str, commands: list[list[str]]) -> int:
    """Run commands one after the other."""
    main = importlib.import_module(module).main
    for words in commands:
        sys.argv = [module, *words]
        if code := code_of(fork(main)):
            print(f"{module} {' '.join(words)} ended with {code}", file=sys.stderr)
            return 1
    return 0


def run(module: str, chains: list[list[list[str]]]) -> int:
    """Run chains side by side."""
    importlib.import_module(module)
    children = [fork(partial(chain, module, one)) for one in chains]
    return max([code_of(child) for child in children])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], json.loads(sys.argv[2])))
