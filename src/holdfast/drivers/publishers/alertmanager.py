# SPDX-License-Identifier: Apache-2.0
"""The Alertmanager publisher: sends alarms, and nothing else, to each configured URL.

    POST /api/v2/alerts
    [{"labels": {"alertname": "hot", "severity": "critical", …}, "annotations": {…},
      "startsAt": …, "endsAt": …}]

Alertmanager identifies an alert by its labels: all messages about an alarm need the same labels.
Only the severity may change (for example when the alarm's data is missing), so each message also
ends the alert with any other severity; Alertmanager ignores the end of an unknown alert.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from oslo_config import cfg

from holdfast.alarms.central import OK
from holdfast.alarms.rules import SEVERITIES
from holdfast.drivers.publishers import http
from holdfast.drivers.publishers.http import Mailbox, Ways
from holdfast.ports.publishers import ALARMS, LeaseNotice
from holdfast.runtime.clock import Clock

PORT: Final = "alertmanager"
PATH: Final = "/api/v2/alerts"
#: End of a firing alarm: it is sent once, while Alertmanager expects a repetition every few
#: minutes unless the alert's end is known and in the future.
STANDS: Final = timedelta(days=365)
#: An end in the future of Alertmanager's clock would not override the known end.
BEHIND: Final = timedelta(seconds=5)


class Alertmanager:
    """The publisher for an Alertmanager."""

    hears = ALARMS

    def __init__(self, url: str, conf: cfg.ConfigOpts, clock: Clock) -> None:
        options = conf.publishers
        self._clock = clock
        self.timeout_s: float = options.alertmanager_timeout_s
        self._authorization_file: str | None = options.alertmanager_authorization_file
        # Private addresses are allowed: an Alertmanager is in the site's own network.
        ways = Ways(PORT, self.timeout_s, options.alertmanager_cafile, private=True)
        self._mailbox = Mailbox(url, ways, below=PATH)
        self.name = self._mailbox.name
        self._headers()  # raises at once if the file is missing

    def send(self, notice: LeaseNotice) -> None:
        body = json.dumps(alerts(notice.payload, self._clock.now())).encode()
        self._mailbox.post(body, self._headers())

    def _headers(self) -> dict[str, str]:
        if not self._authorization_file:
            return {}
        option = "alertmanager_authorization_file"
        authorization = http.read_secret(PORT, option, self._authorization_file)
        return {"Authorization": authorization.decode("latin-1")}

    def close(self) -> None:
        """Do nothing: no connection stays open."""


def alerts(alarm: Mapping[str, Any], now: datetime) -> list[dict[str, Any]]:
    """Convert an alarm into alerts: first the present severity, then the ends of all others."""
    begun = datetime.fromisoformat(alarm["fired_at"])
    changed = datetime.fromisoformat(alarm["resolved_at"] or alarm["reported_at"])
    over = max(begun, min(changed, now - BEHIND))
    ends = over if alarm["state"] == OK else max(begun, now) + STANDS
    others = [severity for severity in SEVERITIES if severity != alarm["severity"]]
    return [
        {
            "labels": {**_labels(alarm), "severity": severity},
            "annotations": _annotations(alarm),
            "startsAt": begun.isoformat(),
            "endsAt": end.isoformat(),
        }
        for severity, end in ((alarm["severity"], ends), *((other, over) for other in others))
    ]


def _labels(alarm: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels for routing and silences.

    `alarm` is the id of this occurrence: a late end of one occurrence must not end the next.
    """
    kind, _, which = alarm["subject"].partition(":")
    labels = {
        "alertname": alarm["rule"],
        "host": alarm["host"],
        "kind": alarm["kind"] or kind,
        "entity": alarm["entity"] or which,
        "name": alarm["name"],
        "project": alarm["project_id"],
        "instance": which,
        "alarm": alarm["id"],
    }
    return {name: value for name, value in labels.items() if value}


def _annotations(alarm: Mapping[str, Any]) -> dict[str, str]:
    of = alarm["name"] or alarm["entity"] or alarm["subject"]
    numbers = {name: alarm[name] for name in ("value", "threshold") if alarm[name] is not None}
    return {
        "summary": alarm["summary"] or f"{alarm['rule']} of {of} on {alarm['host']}",
        "state": alarm["state"],
        "rules_version": alarm["rules_version"],
        **{name: f"{number:g}" for name, number in numbers.items()},
    }


def connect(conf: cfg.ConfigOpts, clock: Clock) -> Sequence[Alertmanager]:
    return [Alertmanager(url, conf, clock) for url in conf.publishers.alertmanager_urls]
