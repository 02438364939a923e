# SPDX-License-Identifier: Apache-2.0
"""A outbox has one agent at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.app.agent import own
from holdfast.app.daemon import BadSetup

HOLD = """
import sys, time
from holdfast.app.agent import own
kept = own(sys.argv[1])
print(1, flush=True)
time.sleep(600)
"""


def test_a_second_agent_with_the_same_outbox_is_refused(tmp_path: Path) -> None:
    outbox = str(tmp_path / "deep" / "agent.outbox")
    first = own(outbox)
    with pytest.raises(BadSetup, match=r"another agent that runs has .*agent\.outbox"):
        own(outbox)
    first.close()
    own(outbox).close()


def test_one_that_was_killed_has_it_no_more(tmp_path: Path) -> None:
    outbox = str(tmp_path / "outbox")
    with subprocess.Popen([sys.executable, "-c", HOLD, outbox], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(BadSetup, match="stop it"):
            own(outbox)
        os.kill(child.pid, signal.SIGKILL)
    own(outbox).close()


def test_a_place_where_nothing_can_be_kept_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadSetup, match=r"outbox: .*file"):
        own(str(tmp_path / "file" / "outbox"))
