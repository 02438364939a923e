# SPDX-License-Identifier: Apache-2.0
"""The ears of a manager as a program: `python -m tests.hoststatus.hearing CONFIG [HOW]`.

HOW is `before` or `after`: it kills itself when it has something to write, or has just written it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from holdfast import conf as configuration
from holdfast.app.manager import Watching
from holdfast.app.service import Core, new_id


def main(file: str, how: str = "") -> None:
    core = Core(configuration.load([], [file]))
    add = core.store.observations.add

    def dying(*about: Any) -> Any:
        if how == "after":
            add(*about)
        os.kill(os.getpid(), signal.SIGKILL)

    watched: Any = core.store.observations
    watched.add = dying if how else add
    nowhere: Any = None  # nobody looks, so no cloud is asked
    watching = Watching(core, nowhere, repair=None, new_id=new_id, wake=lambda: None)
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    watching.part.start()
    end.wait()
    watching.part.stop()
    core.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
