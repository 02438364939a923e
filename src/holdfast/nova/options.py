# SPDX-License-Identifier: Apache-2.0
"""[holdfast] in nova.conf: the filter's few options. Lines written for BlazarFilter still count."""

from __future__ import annotations

from oslo_config import cfg

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


def register(conf: cfg.ConfigOpts) -> None:
    """Make the options known; again is harmless."""
    conf.register_opts(OPTS, group=GROUP)


def read(conf: cfg.ConfigOpts) -> Options:
    """The values of this moment: nova-scheduler reads its files again at SIGHUP."""
    group = conf[GROUP]
    return Options(
        freepool=group.freepool,
        allow_preemptibles=group.allow_preemptibles,
        preemptible_pool=group.preemptible_pool,
        preemptible_spec=group.preemptible_extra_spec,
    )


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For Nova's sample configuration (oslo-config-generator --namespace holdfast.nova)."""
    return [(GROUP, list(OPTS))]
