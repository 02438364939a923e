# SPDX-License-Identifier: Apache-2.0
"""`holdfast notification`: listen to Nova notifications, and list unprocessable messages."""

import argparse
import contextlib
import dataclasses
import json
import queue
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast import conf as configuration
from holdfast.cli import Base, ListCommand, Table, arg, rows
from holdfast.cli.config import CONFIG
from holdfast.model.nova_notification import Notice
from holdfast.runtime.clock import SystemClock

if TYPE_CHECKING:
    from holdfast.drivers.nova_notifications import Broker

#: After this time without a notification the command prints HINT.
HINT_AFTER_S = 5.0
HINT = """\
nothing yet. Nova speaks when something changes: disable and enable a compute service, or boot a
server. If it stays silent, nova.conf of API, conductor and computes needs
  [notifications]
  notification_format = versioned
  notify_on_state_change = vm_and_task_state
  [oslo_messaging_notifications]
  driver = messagingv2
and holdfast.conf the same broker, virtual host and exchange:
  [notifications]
  transport_url = rabbit://user:secret@host:5672/vhost
  exchange = nova"""


class Listen(Base):
    """Print Nova notifications, a line each, until interrupted.

    The command reads from a queue of its own: managers and other readers lose nothing, and the
    command leaves nothing behind.

    Exit code: 0 a notification arrived, 1 none did, or the broker cannot be reached.
    """

    example = """\
  holdfast notification listen --config /etc/holdfast/holdfast.conf
  holdfast notification listen --seconds 60 --json"""
    arguments = (
        CONFIG,
        arg(
            "--seconds",
            type=float,
            metavar="N",
            help="end after this many seconds (default: never)",
        ),
        arg(
            "--json", action="store_true", help="a JSON object per line, with Nova's whole payload"
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        try:
            from holdfast.drivers import nova_notifications
        except ImportError as error:
            raise RuntimeError(
                f"{error.name} is not installed: pip install holdfast[rabbit]"
            ) from error
        conf = configuration.load([], parsed_args.config)
        notices = nova_notifications.NovaNotices(conf, SystemClock(), shared=False)
        try:
            self._describe(notices.broker)
        except nova_notifications.AWAY as error:
            raise RuntimeError(
                f"the broker at {notices.broker.shown} cannot be used:"
                f" {str(error) or type(error).__name__}"
            ) from error
        received: queue.SimpleQueue[Notice] = queue.SimpleQueue()
        notices.listen(received.put)
        try:
            self._print(received, parsed_args)
        finally:
            notices.stop()

    def _describe(self, broker: "Broker") -> None:
        from holdfast.drivers.nova_notifications import close

        connection = broker.connect_to_any()
        try:
            broker.check_exchange(connection)
            depth = broker.depth(connection)
        finally:
            close(connection)
        full = f"{depth.messages} waiting, {depth.readers} readers" if depth else "not there yet"
        self.say(f"exchange {broker.exchange} at {broker.shown}; the managers' queue: {full}")

    def _print(self, received: "queue.SimpleQueue[Notice]", args: argparse.Namespace) -> None:
        clock = SystemClock()
        began, hinted, self.exit_code = clock.monotonic(), False, 1
        while True:
            passed = clock.monotonic() - began
            if args.seconds is not None and passed >= args.seconds:
                break
            try:
                left = 1.0 if args.seconds is None else min(1.0, args.seconds - passed)
                notice = received.get(timeout=left)
            except queue.Empty:
                if self.exit_code and passed >= HINT_AFTER_S and not hinted:
                    hinted = True
                    self.app.LOG.warning(HINT)
                continue
            self.exit_code = 0
            line = as_json(notice) if args.json else as_line(notice)
            print(line, file=self.app.stdout, flush=True)
        if self.exit_code:
            if passed >= HINT_AFTER_S and not hinted:  # the time ended before the hint was printed
                self.app.LOG.warning(HINT)
            self.app.LOG.error("nothing was heard")


class Parked(ListCommand):
    """List messages that a monitor failed to process three times, newest first.

    The command reads the configured database, which keeps the newest thousand.
    """

    example = """\
  holdfast notification parked --config /etc/holdfast/holdfast.conf
  holdfast notification parked --long -f json"""
    arguments = (
        CONFIG,
        arg(
            "--most",
            type=int,
            default=20,
            metavar="N",
            help="maximum number of messages (default 20)",
        ),
        arg("--long", action="store_true", help="with the messages themselves"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        from holdfast.db import Store

        conf = configuration.load([], parsed_args.config)
        with contextlib.closing(Store(conf.database.connection, SystemClock())) as store:
            messages = store.host_status.parked(parsed_args.most)
        columns = ("at", "monitor", "event_type", "message_id", "why")
        return rows(
            (*columns, "message") if parsed_args.long else columns,
            [{**dataclasses.asdict(message), "at": message.at.isoformat()} for message in messages],
        )


def as_line(notice: Notice) -> str:
    return f"{notice.at:%H:%M:%S.%f} {notice.priority} {notice.event_type} {notice.says()}"


def as_json(notice: Notice) -> str:
    return json.dumps(dataclasses.asdict(notice), default=_plain, sort_keys=True)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
