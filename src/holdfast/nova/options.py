# SPDX-License-Identifier: Apache-2.0
"""[holdfast] in nova.conf: options of the scheduler filter, nova-api filter and compute monitor.

Options written for BlazarFilter still work.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from oslo_config import cfg, types

from holdfast.nova import names
from holdfast.nova.admission import Options

GROUP = "holdfast"
_BLAZAR = "blazar:physical:host"

OPTS = [
    cfg.StrOpt(
        "freepool",
        default=names.FREEPOOL,
        mutable=True,
        deprecated_opts=[cfg.DeprecatedOpt("aggregate_freepool_name", group=_BLAZAR)],
        help="The aggregate of hosts that can be reserved. Its hosts take no ordinary servers.",
    ),
    cfg.BoolOpt(
        "allow_preemptibles",
        default=False,
        mutable=True,
        deprecated_opts=[cfg.DeprecatedOpt("allow_preemptibles", group=_BLAZAR)],
        help="Let servers of preemptible flavors use hosts of preemptible_pool that nobody has "
        "reserved; they then go nowhere else.",
    ),
    cfg.StrOpt(
        "preemptible_pool",
        default=names.FREEPOOL,
        mutable=True,
        deprecated_opts=[cfg.DeprecatedOpt("preemptible_aggregate", group=_BLAZAR)],
        help="The aggregate whose hosts take preemptible servers. They take no ordinary ones.",
    ),
    cfg.StrOpt(
        "preemptible_extra_spec",
        default=names.PREEMPTIBLE_SPEC,
        mutable=True,
        help="Extra spec that marks a flavor as preemptible, when its value is true.",
    ),
]

#: Options of the filter in nova-api's pipeline (`holdfast.nova.api_filter`).
API_OPTS = [
    cfg.StrOpt(
        "endpoint",
        default="",
        mutable=True,
        help="Where nova-api finds Holdfast's reservation API (http://holdfast:8780/reservation/v1);"
        " empty: in the catalog of each request's token, service type `reservation`.",
    ),
    cfg.StrOpt(
        "region_name",
        default="",
        mutable=True,
        help="Region of the catalog's endpoint; needed where the catalog has several.",
    ),
    cfg.StrOpt(
        "interface",
        default="internal",
        choices=["internal", "public", "admin"],
        mutable=True,
        help="Which of the catalog's endpoints.",
    ),
    cfg.StrOpt(
        "cafile", default="", mutable=True, help="CA certificates to check Holdfast's against."
    ),
    cfg.FloatOpt(
        "connect_timeout_s",
        default=2.0,
        min=0.1,
        max=10.0,
        mutable=True,
        help="Seconds to wait for a connection to Holdfast.",
    ),
    cfg.FloatOpt(
        "timeout_s",
        default=10.0,
        min=0.1,
        max=20.0,
        mutable=True,
        help="Seconds to wait for an answer of Holdfast.",
    ),
    cfg.BoolOpt(
        "lease_every_server",
        default=False,
        mutable=True,
        help="Give a lease to every new server that asks for none and is not inside a reservation.",
    ),
    cfg.IntOpt(
        "default_lease_days",
        default=30,
        min=1,
        max=3650,
        mutable=True,
        help="How long such a lease is, and one whose hint names no end if lease_every_server is"
        " set. It starts at once.",
    ),
    cfg.ListOpt(
        "default_on_end",
        default=[],
        item_type=types.String(choices=["snapshot", "stop", "suspend", "shelve", "delete"]),
        mutable=True,
        help="What happens to the server at the end of such a lease, one after the other; empty:"
        " what Holdfast's configuration says.",
    ),
]

#: Options of nova-compute's monitor (`holdfast.nova.compute_monitor`).
METRIC_OPTS = [
    cfg.StrOpt(
        "metric_plugins_file",
        default="",
        help="File of the metric plugins that get nova-compute's measurements "
        "(docs/reference/metric-plugins.md). Reloaded when it changes. Empty: no plugins.",
    ),
    cfg.StrOpt(
        "metric_plugins_python",
        default="",
        help="The Python that runs them, 3.11 or later with Holdfast; empty: nova-compute's own.",
    ),
]


@dataclass(frozen=True)
class MetricOptions:
    """The options of nova-compute's monitor."""

    plugins_file: str = ""
    python: str = ""


@dataclass(frozen=True)
class LeaseOptions:
    """The options of nova-api's filter."""

    endpoint: str = ""
    region: str = ""
    interface: str = "internal"
    cafile: str = ""
    timeouts: tuple[float, float] = (2.0, 10.0)  #: to connect, to answer; seconds
    every_server: bool = False
    length: timedelta = timedelta(days=30)
    on_end: str = ""


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options; a second call is harmless."""
    conf.register_opts([*OPTS, *API_OPTS, *METRIC_OPTS], group=GROUP)


def read(conf: cfg.ConfigOpts) -> Options:
    """Return the current options of the scheduler filter; SIGHUP may change them."""
    group = conf[GROUP]
    return Options(
        freepool=group.freepool,
        allow_preemptibles=group.allow_preemptibles,
        preemptible_pool=group.preemptible_pool,
        preemptible_spec=group.preemptible_extra_spec,
    )


def read_leases(conf: cfg.ConfigOpts) -> LeaseOptions:
    """Return the current options of nova-api's filter."""
    group = conf[GROUP]
    return LeaseOptions(
        endpoint=group.endpoint,
        region=group.region_name,
        interface=group.interface,
        cafile=group.cafile,
        timeouts=(group.connect_timeout_s, group.timeout_s),
        every_server=group.lease_every_server,
        length=timedelta(days=group.default_lease_days),
        on_end=",".join(group.default_on_end),
    )


def read_metrics(conf: cfg.ConfigOpts) -> MetricOptions:
    """Return the options of nova-compute's monitor."""
    group = conf[GROUP]
    return MetricOptions(group.metric_plugins_file, group.metric_plugins_python)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """List the options for `oslo-config-generator --namespace holdfast.nova`."""
    return [(GROUP, [*OPTS, *API_OPTS, *METRIC_OPTS])]
