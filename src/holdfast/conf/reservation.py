# SPDX-License-Identifier: Apache-2.0
"""[reservation]: rules of leases."""

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
]
