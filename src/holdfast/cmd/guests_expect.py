# SPDX-License-Identifier: Apache-2.0
"""`holdfast guests expect`: what should run on this host compared with what does, now, by whoever
asks. It needs no agent, only its configuration."""

import argparse
import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from oslo_config import cfg

from holdfast import agent
from holdfast import conf as configuration
from holdfast.client import clock
from holdfast.client.commands import ListCommand, Table, rows
from holdfast.client.errors import ClientError
from holdfast.cmd.guests_live import add_config
from holdfast.drivers.guests import connect
from holdfast.model.errors import HoldfastError
from holdfast.model.host import normalise
from holdfast.ports.clock import SystemClock
from holdfast.ports.guests import Guest
from holdfast.watch.expectation import Difference, Look, differences, look

#: A program that dies of something else ends with 1, so that is nobody's answer.
DIFFERS, NOT_ASKED = 11, 2
GRACE_S: Final = 5.0
_SHOWN = ("name", "uuid", "difference", "found", "cloud_says")


class Expect(ListCommand):
    """Compare what should run on this host, by the word of the cloud, with what does.

    Holdfast is asked by the token of the host's agent, the hypervisor as [agent] guests says; the
    agent need not run. Listed are servers that are missing, or off though nobody switched them off,
    and guests that run and should not. What differs is looked at again a little later: the cloud's
    word may be older than what is found.

    Exit code: 0 nothing differs, 11 something does, 2 one side could not be asked.
    """

    example = """  holdfast guests expect
  holdfast guests expect --config-file /etc/holdfast/holdfast.conf --grace 0 -f json"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_config(parser)
        parser.add_argument("--host", help="what the cloud calls this host; default: [agent] host")
        parser.add_argument(
            "--grace",
            metavar="SECONDS",
            type=float,
            default=GRACE_S,
            help="what differs is looked at again so much later; 0: it is not (default: 5)",
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            return super().run(parsed_args)
        except BrokenPipeError:
            raise
        except Exception as error:  # the top of a program
            if not isinstance(error, HoldfastError | ClientError | cfg.Error):
                self.app.LOG.debug("unforeseen", exc_info=True)
            self.app.LOG.error("it could not be found out: %s", error)
            return NOT_ASKED

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        settings = configuration.load([], parsed_args.config).agent
        host = normalise(parsed_args.host or settings.host or socket.gethostname())
        found, last = compared(settings, host, parsed_args.grace)
        if not found:
            running = sum(one.state == "running" for one in last.guests)
            self.say(f"nothing differs on {host}: {running} guests run, as they should")
        self.exit_code = DIFFERS if found else 0
        guests = {one.uuid: one for one in last.guests}
        return rows(_SHOWN, [_row(one, guests) for one in found])


def compared(
    settings: cfg.ConfigOpts, host: str, grace_s: float
) -> tuple[Sequence[Difference], Look]:
    """What differs, and still did after the grace."""
    real = SystemClock()
    with (
        contextlib.closing(connect(settings.guests, settings.guests_address, real)) as guests,
        contextlib.closing(agent.expected(settings)) as cloud,
    ):
        last = look(host, cloud, guests, real)
        found = differences(last.expected, last.guests)
        if not found or grace_s <= 0:
            return found, last
        clock.sleep(grace_s)
        last = look(host, cloud, guests, real)
        before = {(one.uuid, one.detail) for one in found}
        again = differences(last.expected, last.guests)
        return [one for one in again if (one.uuid, one.detail) in before], last


def _row(one: Difference, guests: Mapping[str, Guest]) -> dict[str, Any]:
    guest = guests.get(one.uuid)
    found = f"{guest.state} {guest.reason}" if guest else "nothing"
    return {
        "name": one.name,
        "uuid": one.uuid,
        "difference": one.detail,
        "found": found,
        "cloud_says": one.why,
    }
