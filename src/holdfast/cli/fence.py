# SPDX-License-Identifier: Apache-2.0
"""`holdfast fence`: test the fencing of every host, and switch the power of a host by hand.

The commands run locally with the configured devices file and need no Holdfast server, so they
work when nothing else does.
"""

import argparse
import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oslo_config import cfg
from sqlalchemy.engine import make_url

from holdfast import conf as configuration
from holdfast.cli import Base, ListCommand, ShowCommand, Table, arg, one, rows
from holdfast.cli.config import CONFIG
from holdfast.model.errors import DriverError, HoldfastError, NotFound
from holdfast.ports.fence import OFF, ON, UNKNOWN
from holdfast.runtime.clock import SystemClock

if TYPE_CHECKING:
    from holdfast.drivers.fence.fences import Fences

PARALLEL = 32
POLL_S = 0.5


class Check(ListCommand):
    """Read the power state of every fencing device, and list unusable devices. Switches nothing.

    Without hosts the command checks all hosts in the devices file and all hosts that Holdfast
    knows.

    Exit code: 0 all can be read, 1 some cannot, or have no device.
    """

    example = """\
  holdfast fence check --config /etc/holdfast/holdfast.conf
  holdfast fence check cmp-1 cmp-2 -f json"""
    arguments = (CONFIG, arg("hosts", nargs="*", metavar="HOST", help="these only"))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        conf = configuration.load([], parsed_args.config)
        with _fences(conf) as fences:
            hosts = parsed_args.hosts or self._all(conf, fences)
            with ThreadPoolExecutor(PARALLEL) as pool:
                states = list(pool.map(lambda host: read_power(fences, host), hosts))
        self.exit_code = int(any(row["power"] not in (ON, OFF) for row in states))
        return rows(("host", "driver", "device", "power", "took_s", "why"), states)

    def _all(self, conf: cfg.ConfigOpts, fences: "Fences") -> Sequence[str]:
        device_file = fences.device_file()
        hosts = set(device_file.names())
        try:
            hosts |= set(_enrolled(conf))
        except HoldfastError as error:
            self.app.LOG.warning("only what the file names: %s", error.message)
        for device in device_file.devices:
            if device.many and not any(device.covers(host) for host in hosts):
                self.app.LOG.warning("%s fits no host that is known: name some", device.hosts)
        return sorted(hosts)


class Status(ShowCommand):
    """Read the current power state of a host from its fencing device.

    Exit code: 0 the host is on or off, 1 the state is unknown.
    """

    example = "  holdfast fence status cmp-1 --config /etc/holdfast/holdfast.conf"
    arguments = (CONFIG, arg("host", metavar="HOST"))

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        conf = configuration.load([], parsed_args.config)
        with _fences(conf) as fences:
            state = read_power(fences, parsed_args.host)
        self.exit_code = int(state["power"] not in (ON, OFF))
        return one(state)


class Switch(Base):
    """The base of `fence off` and `fence on`.

    Sends the command, then reads the power state until it matches, because the device's answer
    alone is no proof.
    """

    wanted = ""
    means = ""
    arguments = (
        CONFIG,
        arg("host", metavar="HOST"),
        arg("--yes", action="store_true", help="it is meant: without it nothing is"),
        arg(
            "--wait",
            type=float,
            default=60.0,
            metavar="S",
            help="seconds until the device must read the new state (default 60)",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        host, clock = parsed_args.host, SystemClock()
        conf = configuration.load([], parsed_args.config)
        with _fences(conf) as fences:
            device = fences.device(host)
            where = device.of(host).address or device.agent
            title = f"{host} ({' '.join(filter(None, (device.driver, where)))})"
            if not parsed_args.yes:
                raise RuntimeError(f"{self.means.format(title)}; say --yes if you mean it")
            began = clock.monotonic()
            self.switch(fences, host)
            state = self._read(fences, host)
            while state != self.wanted and clock.monotonic() - began < parsed_args.wait:
                clock.wait(threading.Event(), POLL_S)
                state = self._read(fences, host)
        took = clock.monotonic() - began
        if state != self.wanted:
            raise RuntimeError(
                f"{title} took the order and reads {state} after {took:.0f} s: it is not proven to"
                f" be {self.wanted}"
            )
        self.app.stdout.write(f"{host} is {self.wanted}, read back after {took:.1f} s\n")

    def switch(self, fences: "Fences", host: str) -> None:
        raise NotImplementedError

    def _read(self, fences: "Fences", host: str) -> str:
        """Read the power state; UNKNOWN if a device busy with switching does not answer."""
        try:
            return fences.power(host)
        except DriverError as error:
            if not error.retryable:
                raise
            self.app.LOG.warning("%s", error.message)
            return UNKNOWN


class Off(Switch):
    """Cut the power of a host, hard and at once, and read the state back.

    Exit code: 0 only when the device reads off.
    """

    example = "  holdfast fence off cmp-1 --yes --config /etc/holdfast/holdfast.conf"
    wanted = OFF
    means = "this cuts the power of {} at once, with everything that runs on it"

    def switch(self, fences: "Fences", host: str) -> None:
        fences.off(host)


class On(Switch):
    """Switch the power of a host on, and read the state back.

    Exit code: 0 only when the device reads on.
    """

    example = "  holdfast fence on cmp-1 --yes --config /etc/holdfast/holdfast.conf"
    wanted = ON
    means = "this switches {} on"

    def switch(self, fences: "Fences", host: str) -> None:
        fences.on(host)


def read_power(fences: "Fences", host: str) -> Mapping[str, Any]:
    """Return the device and power state of a host; an error becomes the column `why`."""
    clock = SystemClock()
    row: dict[str, Any] = {"host": host, "driver": "", "device": "", "power": UNKNOWN}
    began = clock.monotonic()
    try:
        device = fences.device(host)
        row |= {"driver": device.driver, "device": device.of(host).address or device.agent}
        row["power"] = fences.power(host)
        why = _why_unknown(device.driver) if row["power"] == UNKNOWN else ""
    except NotFound as error:
        why = error.message
    except HoldfastError as error:
        why = error.message.removeprefix("fence: ")
    return row | {"took_s": round(clock.monotonic() - began, 2), "why": why}


def _why_unknown(driver: str) -> str:
    if driver == "none":
        return "driver none: nothing proves that it is off"
    return "the device does not say"


@contextlib.contextmanager
def _fences(conf: cfg.ConfigOpts) -> Iterator["Fences"]:
    from holdfast.drivers.fence import connect

    try:
        fences = connect(conf, SystemClock())
    except HoldfastError as error:
        raise RuntimeError(error.message) from error
    try:
        with contextlib.closing(fences):
            yield fences
    except HoldfastError as error:
        raise RuntimeError(error.message) from error


def _enrolled(conf: cfg.ConfigOpts) -> Sequence[str]:
    """Return the hosts Holdfast knows; none without a database."""
    from holdfast.db import Store

    url = make_url(conf.database.connection)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return ()
    with contextlib.closing(Store(conf.database.connection, SystemClock())) as store:
        return [host.name for host in store.host_status.watched()]
