# SPDX-License-Identifier: Apache-2.0
"""Puts together who hears what this process writes and does: what `service.py` is to a process."""

import socket
from collections.abc import Sequence

from oslo_config import cfg

from holdfast.daemon import BadSetup
from holdfast.drivers.sinks import connect
from holdfast.heal.news import News
from holdfast.model.errors import DriverError
from holdfast.ports.clock import Clock
from holdfast.ports.sinks import ALARMS, INSTANCE_HA, NEWS, Sink, heard_by
from holdfast.store import Store


def speak(conf: cfg.ConfigOpts, clock: Clock, store: Store) -> Sequence[Sink]:
    """Whoever wants to hear. From now on who writes to the store writes down for them what it was;
    managers tell it."""
    try:
        sinks = connect(conf, clock)
    except DriverError as error:
        raise BadSetup(error.message) from error
    store.database.herald = News(
        people=heard_by(sinks, NEWS),
        programs=heard_by(sinks, INSTANCE_HA),
        boards=heard_by(sinks, ALARMS),
        host=socket.gethostname(),
    )
    return sinks
