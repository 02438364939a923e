# SPDX-License-Identifier: Apache-2.0
"""The metric plugins of nova-compute, in a child process: `nova/compute_monitor` writes what
it sees to our standard input, a line of JSON each time, and reads a byte for each from our output.

Which plugins there are a file says, as in the agent, and it is followed as it changes. What they
have to say, and what is said of them, is written to standard error, which is nova-compute's. We end
when there is nothing more to read.
"""

import argparse
import json
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from holdfast.metrics.linux import Files, Host, OwnProcess, Qemus
from holdfast.metrics.nova_snapshots import Message, NovaSnapshots
from holdfast.metrics.plugin_events import PluginLog
from holdfast.metrics.plugin_manager import PluginManager
from holdfast.metrics.plugin_runner import Limits, PluginRunner
from holdfast.ports.metrics import Process
from holdfast.runtime.clock import SystemClock

LOG = logging.getLogger("holdfast.nova_plugins")

#: So often plugins are looked after while nothing is read.
LOOK_S: Final = 1.0
#: So long the first pass waits for the plugins to be there: the next one is a minute later.
FIRST_S: Final = 10.0


def lines(number: int) -> Iterator[bytes | None]:
    """As they come; None when none came for a while."""
    buffer = b""
    while True:
        if not select.select([number], [], [], LOOK_S)[0]:
            yield None
            continue
        read = os.read(number, 65536)
        if not read:
            return
        *whole, buffer = (buffer + read).split(b"\n")
        yield from whole


def processes(uuids: Collection[str]) -> Mapping[str, Process]:
    """Looked for each time: passes are far apart, and a server may have been started since."""
    files = Files()
    try:
        return Qemus(files, SystemClock()).read(uuids)
    finally:
        files.close()


def pipes() -> tuple[int, int]:
    """Nova's ends, for us alone: plugins read nothing, and what they print goes to the log."""
    ours = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return ours


def serve(runner: PluginRunner, told: NovaSnapshots, read: int, answer: int) -> None:
    for line in lines(read):
        if line is None:
            runner.maintain()
            continue
        try:
            message = Message.of(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            LOG.error("nova-compute's Holdfast is of another version than this: %r", error)
        else:
            runner.offer(told.snapshot(message))
        try:
            os.write(answer, b".")
        except BrokenPipeError:
            return  # nova-compute has gone before it heard


def main() -> int:
    parser = argparse.ArgumentParser(prog="holdfast.cmd.nova_plugins", description=__doc__)
    parser.add_argument("--file", required=True, help="which plugins there are")
    asked = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nova-compute's, to its whole group
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends, and then so do we
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(process)d %(levelname)s %(name)s %(message)s",
    )
    read, answer = pipes()
    clock = SystemClock()
    runner = PluginRunner(Limits(), PluginLog(), OwnProcess())
    plugins = PluginManager(runner, asked.file, clock)
    began = threading.Thread(target=_begin, args=(plugins,), name="first plugins", daemon=True)
    began.start()
    began.join(FIRST_S)
    try:
        serve(runner, NovaSnapshots(Host(Files()).read, processes, clock), read, answer)
    finally:
        plugins.stop()
        runner.close()
    return 0


def _begin(plugins: PluginManager) -> None:
    plugins.follow()
    plugins.start()


if __name__ == "__main__":
    sys.exit(main())
