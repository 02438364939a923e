# SPDX-License-Identifier: Apache-2.0
"""Puts the sinks of an agent's metrics together, those that its configuration asks for. Only what
is used is imported."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from oslo_config import cfg

from holdfast.daemon import BadSetup
from holdfast.drivers.metric_sinks.names import Names
from holdfast.drivers.metric_sinks.udp import address
from holdfast.model.errors import HoldfastError
from holdfast.model.metric_fields import Fields
from holdfast.ports.clock import Clock
from holdfast.ports.metric_sinks import Outlet
from holdfast.watch.metrics.export import Band, Export
from holdfast.watch.metrics.part import Sink
from holdfast.watch.metrics.sink_lane import Pace, SinkLane

if TYPE_CHECKING:
    from holdfast.drivers.metric_sinks.prometheus import Prometheus


def sinks(settings: cfg.ConfigOpts, clock: Clock) -> Sequence[Sink]:
    """Of [metric_sinks]; they are at work when this returns. None is usual."""
    try:
        found: list[SinkLane | Prometheus] = [*_pushing(settings, clock), *_asked(settings, clock)]
    except HoldfastError as error:
        raise BadSetup(f"[metric_sinks] {error.message}") from error
    for one in found:
        one.start()
    return found


def _pushing(settings: cfg.ConfigOpts, clock: Clock) -> Iterator[SinkLane]:
    for outlet, fields, every_s in _outlets(settings):
        export = Export(Fields(fields), Band(settings.dead_band, settings.refresh_s))
        pace = Pace(
            every_s=every_s,
            refresh_s=settings.refresh_s,
            alarm_bytes_per_s=settings.bytes_per_s,
            bytes_per_s=settings.bytes_per_s,
            guest_bytes_per_s=settings.guest_bytes_per_s,
        )
        yield SinkLane(outlet, export, pace, clock)


def _outlets(settings: cfg.ConfigOpts) -> Iterator[tuple[Outlet, Sequence[str], float]]:
    names = Names(settings.prefix, settings.names)
    fields, every_s = settings.fields, settings.every_s
    if settings.statsd:
        from holdfast.drivers.metric_sinks.lines import Statsd

        yield Statsd(*address(settings.statsd, 8125), names), fields, every_s
    if settings.graphite:
        from holdfast.drivers.metric_sinks.lines import Graphite

        yield Graphite(*address(settings.graphite, 2003), names), fields, every_s
    if settings.ceilometer:
        from holdfast.drivers.metric_sinks import ceilometer

        outlet = ceilometer.Ceilometer(
            *address(settings.ceilometer, ceilometer.PORT), settings.telemetry_secret
        )
        wanted = settings.ceilometer_fields or ceilometer.FIELDS
        yield outlet, wanted, settings.ceilometer_every_s
    if settings.log:
        from holdfast.drivers.metric_sinks.log import LogLines

        yield LogLines(), fields, every_s


def _asked(settings: cfg.ConfigOpts, clock: Clock) -> Iterator["Prometheus"]:
    if settings.prometheus:
        from holdfast.drivers.metric_sinks.prometheus import Prometheus

        where = address(settings.prometheus)
        yield Prometheus(*where, Fields(settings.prometheus_fields), clock)
