# SPDX-License-Identifier: Apache-2.0
"""Runs the metric plugins beside nova-compute.

`nova/compute_monitor` writes each snapshot as a line of JSON to the standard input of this process
and reads one byte per line from its standard output. A file lists the plugins, as for the agent;
the process reloads the file when it changes. Plugin messages and log lines go to standard error,
which belongs to nova-compute. The process ends when its input ends. The plugins themselves run in a
child of this process, as beside the agent.
"""

import argparse
import functools
import json
import logging
import os
import signal
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from typing import Final

from holdfast.metrics.linux import Files, Host, Qemus
from holdfast.metrics.nova_snapshots import Message, NovaSnapshots
from holdfast.metrics.plugin_events import PluginLog
from holdfast.metrics.plugin_manager import PluginManager
from holdfast.metrics.plugin_runner import Limits, PluginRunner
from holdfast.ports.metrics import Process
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.text import printable
from holdfast.runtime.threads import start_call

LOG = logging.getLogger("holdfast.nova_plugins")

#: The first message waits this long for the plugins to load: the next one comes a minute later.
FIRST_S: Final = 10.0


class _OneLine(logging.Formatter):
    """Formats a record, and its traceback, as one line: foreign text cannot imitate another."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def processes(uuids: Collection[str]) -> Mapping[str, Process]:
    """Find the QEMU processes anew on each pass, because servers may start between passes."""
    files = Files()
    try:
        return Qemus(files, SystemClock()).read(uuids)
    finally:
        files.close()


def serve(runner: PluginRunner, snapshots: NovaSnapshots) -> None:
    for line in sys.stdin.buffer:
        try:
            message = Message.of(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            LOG.error("nova-compute's Holdfast is of another version than this: %r", error)
        else:
            runner.offer(snapshots.snapshot(message))
        try:
            os.write(1, b".")
        except BrokenPipeError:
            return  # nova-compute has ended


def main() -> int:
    parser = argparse.ArgumentParser(prog="holdfast.cmd.nova_plugins", description=__doc__)
    parser.add_argument("--file", required=True, help="which plugins there are")
    arguments = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # sent to nova-compute's process group
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nova-compute ends, and so does the input
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    clock = SystemClock()
    runner = PluginRunner(Limits(), PluginLog())
    plugins = PluginManager(runner, arguments.file, clock)
    began = start_call("first plugins", functools.partial(_begin, plugins))
    began.add_done_callback(_log_failure)
    wait([began], FIRST_S)
    try:
        serve(runner, NovaSnapshots(Host(Files()).read, processes, clock))
    finally:
        plugins.stop()
        runner.close()
    return 0


def _begin(plugins: PluginManager) -> None:
    plugins.follow()
    plugins.start()


def _log_failure(began: Future[None]) -> None:
    if error := began.exception():
        LOG.error("the plugins cannot be loaded", exc_info=error)


if __name__ == "__main__":
    sys.exit(main())
