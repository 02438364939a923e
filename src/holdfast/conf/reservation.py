# SPDX-License-Identifier: Apache-2.0
"""[reservation]: rules of leases."""

from oslo_config import cfg

GROUP = "reservation"
OPTS = [
    cfg.IntOpt(
        "minutes_before_end_lease",
        default=60,
        min=0,
        mutable=True,
        help="When the before-end event happens unless the request says; 0: none.",
    ),
    cfg.IntOpt(
        "cleaning_time",
        default=0,
        min=0,
        mutable=True,
        help="Minutes a host stays free of leases after each lease.",
    ),
    cfg.FloatOpt(
        "prepare_s",
        default=60.0,
        min=0.0,
        mutable=True,
        help="How long before its start a lease's objects are made in the cloud.",
    ),
    cfg.BoolOpt(
        "preemptibles",
        default=False,
        mutable=True,
        help="Free hosts carry servers of preemptible flavors (the scheduler filter lets them in "
        "with allow_preemptibles): they are deleted when their host's lease starts.",
    ),
    cfg.StrOpt(
        "before_end",
        default="",
        choices=["", "snapshot"],
        mutable=True,
        help="What a reservation with before_end=default does before its end.",
    ),
]
