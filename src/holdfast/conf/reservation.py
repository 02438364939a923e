# SPDX-License-Identifier: Apache-2.0
"""[reservation]: options of leases, their repair and reconciliation."""

from oslo_config import cfg, types

GROUP = "reservation"
OPTS = [
    cfg.IntOpt(
        "minutes_before_end_lease",
        default=60,
        min=0,
        mutable=True,
        help="Minutes before the end of a lease at which its before-end event happens, unless the "
        "request gives a date. 0: no event.",
    ),
    cfg.IntOpt(
        "cleaning_time",
        default=0,
        min=0,
        mutable=True,
        help="Minutes that a host stays unreserved after each lease.",
    ),
    cfg.FloatOpt(
        "prepare_s",
        default=60.0,
        min=0.0,
        mutable=True,
        help="Seconds before the start of a lease at which Holdfast creates the lease's pools and "
        "flavors in the cloud.",
    ),
    cfg.FloatOpt(
        "host_refresh_s",
        default=300.0,
        min=0.0,
        mutable=True,
        help="Seconds between two reads of the sizes, inventories and traits of enrolled hosts "
        "from the cloud. 0: Holdfast reads them only at enrolment.",
    ),
    cfg.BoolOpt(
        "preemptibles",
        default=False,
        mutable=True,
        help="Allow servers of preemptible flavors on unreserved hosts (the scheduler filter "
        "needs allow_preemptibles). Holdfast deletes these servers when a lease of their host "
        "starts.",
    ),
    cfg.StrOpt(
        "before_end",
        default="",
        choices=["", "snapshot"],
        mutable=True,
        help="Action at the before-end event of reservations with before_end=default.",
    ),
    cfg.ListOpt(
        "server_on_end",
        default=["stop"],
        item_type=types.String(choices=["snapshot", "stop", "suspend", "shelve", "delete"]),
        mutable=True,
        help="Actions on a leased server at the end of its lease, unless the lease names its own: "
        "one or more of snapshot, stop, suspend, shelve, delete, in that order. On an enrolled "
        "host the server is shelved after stop or suspend, because no server may stay there.",
    ),
    cfg.FloatOpt(
        "server_start_timeout_s",
        default=120.0,
        min=0.0,
        mutable=True,
        help="Seconds after the start of a lease during which Holdfast tries to start its server "
        "or to create its floating IPs. After that the lease runs without them and has the flag "
        "missing_resources.",
    ),
    cfg.FloatOpt(
        "server_sweep_s",
        default=60.0,
        min=0.0,
        mutable=True,
        help="Seconds between two searches for servers that need a lease and have none. 0: no "
        "searches.",
    ),
    cfg.BoolOpt(
        "lease_every_server",
        default=False,
        mutable=True,
        help="Create a lease for every server on a host that is not enrolled, including servers "
        "that nova-api created without Holdfast's filter. At the end of the lease server_on_end "
        "applies.",
    ),
    cfg.IntOpt(
        "default_lease_days",
        default=30,
        min=1,
        max=3650,
        mutable=True,
        help="Days that such a lease lasts. The lease starts when it is created.",
    ),
    cfg.BoolOpt(
        "repair",
        default=True,
        mutable=True,
        help="Repair reservations on failed hosts automatically: assign other resources.",
    ),
    cfg.FloatOpt(
        "repair_interval_s",
        default=10.0,
        min=0.5,
        mutable=True,
        help="Seconds between two periodic repairs, for capacity that has become free. The "
        "failure or return of a host starts a repair at once in any case.",
    ),
    cfg.FloatOpt(
        "repair_horizon_s",
        default=86_400.0,
        min=0.0,
        mutable=True,
        help="Seconds. A lease that starts later than this keeps its failed host, which may "
        "return in time. 0: repair all leases at once.",
    ),
    cfg.Opt(
        "repair_priorities",
        type=types.Dict(types.Integer(), bounds=False),
        default={},
        mutable=True,
        help="Projects whose leases are repaired first when capacity is short: project id and "
        "priority. A higher number is repaired earlier; other projects have 0.",
        sample_default="6e0fb2c4d1f04f8a9c1e52c1f7b7d0a3:10",
    ),
    cfg.FloatOpt(
        "reconcile_s",
        default=60.0,
        min=0.0,
        mutable=True,
        help="Seconds between two comparisons of the cloud's aggregates with the database. The "
        "manager corrects differences, or reports them in its log and the audit log. 0: no "
        "comparison.",
    ),
]
