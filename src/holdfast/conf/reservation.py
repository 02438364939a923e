# SPDX-License-Identifier: Apache-2.0
"""[reservation]: options of leases, their repair, mass failure and reconciliation."""

from oslo_config import cfg, types

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
    cfg.FloatOpt(
        "host_refresh_s",
        default=300.0,
        min=0.0,
        mutable=True,
        help="Seconds between two readings of the enrolled hosts' sizes, inventories and traits "
        "from the cloud; 0: only when they are enrolled.",
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
    cfg.ListOpt(
        "server_on_end",
        default=["stop"],
        item_type=types.String(choices=["snapshot", "stop", "suspend", "shelve", "delete"]),
        mutable=True,
        help="What happens to a leased server at the end of its lease unless the lease says: one "
        "or several of snapshot, stop, suspend, shelve, delete, in that order. On an enrolled host "
        "no server stays: after a stop or a suspend it is shelved.",
    ),
    cfg.FloatOpt(
        "server_start_patience_s",
        default=120.0,
        min=0.0,
        mutable=True,
        help="How long after its start a lease tries to get its server running, or its floating "
        "IPs, before it runs without: missing_resources says so.",
    ),
    cfg.FloatOpt(
        "server_sweep_s",
        default=60.0,
        min=0.0,
        mutable=True,
        help="Seconds between two looks for servers that should have a lease and have none; 0: "
        "nobody looks.",
    ),
    cfg.BoolOpt(
        "lease_every_server",
        default=False,
        mutable=True,
        help="Every server on a host that cannot be reserved gets a lease, also one that was made "
        "without nova-api's filter, or before: at its end it is stopped, or what server_on_end "
        "says.",
    ),
    cfg.IntOpt(
        "default_lease_days",
        default=30,
        min=1,
        max=3650,
        mutable=True,
        help="How long such a lease is. It starts when it is made.",
    ),
    cfg.BoolOpt(
        "repair",
        default=True,
        mutable=True,
        help="Reservations that a failed host hits get something else by themselves.",
    ),
    cfg.FloatOpt(
        "repair_look_s",
        default=10.0,
        min=0.5,
        mutable=True,
        help="Seconds between two looks for what can be repaired: capacity may have appeared. A "
        "host that fails or returns is looked at once in any case.",
    ),
    cfg.FloatOpt(
        "repair_horizon_s",
        default=86_400.0,
        min=0.0,
        mutable=True,
        help="A lease that starts later than that waits for the failed host to return; 0: all "
        "leases are repaired at once, however far ahead.",
    ),
    cfg.Opt(
        "repair_priorities",
        type=types.Dict(types.Integer(), bounds=False),
        default={},
        mutable=True,
        help="Whose leases are repaired first where there is not enough for all: project ids with "
        "a number each, the higher the sooner; others have 0.",
        sample_default="6e0fb2c4d1f04f8a9c1e52c1f7b7d0a3:10",
    ),
    cfg.IntOpt(
        "mass_failure_few",
        default=2,
        min=0,
        mutable=True,
        help="So many failed hosts of a rack (or of a zone, where racks are not known) never are "
        "too many.",
    ),
    cfg.FloatOpt(
        "mass_failure_some",
        default=0.30,
        min=0.0,
        max=1.0,
        mutable=True,
        help="Below that share of a rack or zone failures are repaired as they come.",
    ),
    cfg.FloatOpt(
        "mass_failure_many",
        default=0.55,
        min=0.0,
        max=1.0,
        mutable=True,
        help="From that share on nothing of the rack or zone is repaired until an operator says "
        "so: holdfast repair run --approve.",
    ),
    cfg.FloatOpt(
        "reconcile_s",
        default=60.0,
        min=0.0,
        mutable=True,
        help="Seconds between two comparisons of the cloud's pools with the book; what differs is "
        "put right, or told in the log and the audit. 0: nobody compares.",
    ),
]
