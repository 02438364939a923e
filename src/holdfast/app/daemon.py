# SPDX-License-Identifier: Apache-2.0
"""Daemon lifecycle: start the parts, reload on SIGHUP, stop on SIGTERM and SIGINT.

Signal handlers only set flags and write a byte to a pipe; the main thread does the rest. A
threading.Event would not do: its lock is not reentrant, and a signal that arrives while the main
thread holds the lock would hang the process.
"""

import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from oslo_config import cfg

from holdfast import conf as configuration
from holdfast.model.errors import HoldfastError
from holdfast.runtime import threads

LOG = logging.getLogger(__name__)


class BadSetup(Exception):
    """The configuration cannot work; the message names the option to change."""


class Part(Protocol):
    """A part of a program that the daemon starts and stops."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Daemon:
    """Starts parts in order, and stops the parts in reverse order."""

    def __init__(self, conf: cfg.ConfigOpts, parts: Sequence[Part]) -> None:
        self._conf = conf
        self._parts = parts
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._reload = False
        self._signal = 0
        self._hung = ""

    def run(self, started: Callable[[], None] = lambda: None) -> int:
        """Run until SIGTERM or SIGINT; return the exit code."""
        running: list[Part] = []
        self._listen()
        try:
            for part in self._parts:
                part.start()
                running.append(part)
            started()
            _tell_systemd("READY=1")
            self._until_stopped()
        finally:
            _tell_systemd("STOPPING=1")
            for part in reversed(running):
                part.stop()
        LOG.info("stopped by %s", signal.Signals(self._signal).name)
        return 0

    def _until_stopped(self) -> None:
        every_s = _watchdog_s()
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        while not self._signal:
            if poll.poll(every_s and every_s * 1000):
                os.read(self._woken, 1)
            if every_s is not None:
                self._feed_watchdog()
            if self._reload:
                self._reload = False
                configuration.reload(self._conf)

    def _feed_watchdog(self) -> None:
        """Tell systemd that the program works, unless one of its threads hangs."""
        why = threads.hung()
        if not why:
            _tell_systemd("WATCHDOG=1")
        elif not self._hung:
            LOG.error("systemd's watchdog is not fed: %s", why)
        self._hung = why

    def _listen(self) -> None:
        def stop(number: int, _frame: object) -> None:
            if self._signal:  # the second signal: stop at once
                sys.stderr.write("stopping at once\n")
                os._exit(128 + number)
            self._signal = number
            os.write(self._wake, b"!")

        def reload(_number: int, _frame: object) -> None:
            if not self._reload:
                self._reload = True
                os.write(self._wake, b"!")

        # the kernel may deliver a signal to another thread, and the main thread would sleep on
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, reload)


def main(name: str, parts: Callable[[cfg.ConfigOpts], Sequence[Part]]) -> int:
    """Run a program: load the configuration, build and run the parts, return the exit code."""
    os.umask(0o077)  # log and outbox hold names of projects and guests
    try:
        conf = configuration.load(sys.argv[1:])
        configuration.set_up_logging(conf, name)
        return Daemon(conf, parts(conf)).run()
    except (BadSetup, HoldfastError, cfg.Error) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1


class Stopping:
    """A part with only a stop function."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop

    def start(self) -> None:
        """Do nothing."""


def _watchdog_s() -> float | None:
    """Return how often systemd's watchdog wants to be fed (WatchdogSec=); None if it does not."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    usec = os.environ.get("WATCHDOG_USEC", "")
    return int(usec) / 1e6 / 3 if usec.isdecimal() and int(usec) else None


def _tell_systemd(message: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            sender.sendall(message.encode())
        except OSError as error:
            LOG.warning("systemd did not hear %s: %s", message, error)
