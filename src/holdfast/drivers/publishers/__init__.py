# SPDX-License-Identifier: Apache-2.0
"""Publishers of lease events and alarms: message broker, webhooks, Alertmanager, plugins."""

from typing import Any

from oslo_config import cfg
from stevedore import extension

from holdfast.model.errors import DriverError
from holdfast.ports.publishers import Sink
from holdfast.runtime.clock import Clock

NAMESPACE = "holdfast.sinks"
#: The length of the database column that holds the name.
LONGEST_NAME = 64


def connect(conf: cfg.ConfigOpts, clock: Clock) -> tuple[Sink, ...]:
    """Create every publisher of the configuration.

    An unusable publisher is an error, not a log line.
    """

    def failed(_manager: Any, entry: Any, error: BaseException) -> None:
        raise DriverError("sinks", f"{entry.name} cannot be loaded: {error}", retryable=False)

    extensions: Any = extension.ExtensionManager(NAMESPACE, on_load_failure_callback=failed)
    sinks: list[Sink] = [sink for item in extensions for sink in item.plugin(conf, clock)]
    _check_names([sink.name for sink in sinks])
    return tuple(sinks)


def _check_names(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DriverError("sinks", f"{name} is configured twice", retryable=False)
        if not 0 < len(name) <= LONGEST_NAME:
            raise DriverError(
                "sinks",
                f"the name {name!r} must have 1 to {LONGEST_NAME} characters",
                retryable=False,
            )
