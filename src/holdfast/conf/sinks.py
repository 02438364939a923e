# SPDX-License-Identifier: Apache-2.0
"""[metric_sinks]: where numbers of a compute host go (docs/metric-sinks.md). Nowhere, if nothing is
set here."""

from oslo_config import cfg

GROUP = "metric_sinks"
FIELDS = [
    *("host.cpu_util_ratio", "host.mem_free_bytes", "host.load1", "host.vms_running"),
    *("guest.util_ratio", "guest.steal_ratio", "guest.used_ratio", "guest.rss_kib"),
    *("disk.rd_bytes_per_s", "disk.wr_bytes_per_s", "disk.iops", "disk.mean_latency_ns"),
    *("disk.fill_ratio", "nic.rx_bps", "nic.tx_bps", "nic.over_contract_ratio"),
]
OPTS = [
    cfg.StrOpt("statsd", help="HOST:PORT of a statsd that gets numbers by UDP."),
    cfg.StrOpt("graphite", help="HOST:PORT of a carbon that gets numbers by UDP, as plain text."),
    cfg.StrOpt(
        "ceilometer",
        help="HOST or HOST:PORT (4952) of who takes the datagrams of Ceilometer's udp publisher.",
    ),
    cfg.StrOpt(
        "prometheus",
        help="Address to listen on for Prometheus, as 127.0.0.1:9177; the page is /metrics. It has "
        "the names of guests and projects and asks nobody who he is: bind it to a network that "
        "customers cannot reach.",
    ),
    cfg.BoolOpt("log", default=False, help="Write numbers to the agent's log."),
    cfg.ListOpt(
        "fields",
        default=FIELDS,
        help="Numbers for statsd, graphite and the log: KIND.NAME of docs/metrics.md, in which * "
        "stands for anything.",
    ),
    cfg.ListOpt(
        "ceilometer_fields",
        default=[],
        help="Numbers for Ceilometer. Empty: those that it has meters for.",
    ),
    cfg.ListOpt("prometheus_fields", default=["*"], help="Numbers for Prometheus."),
    cfg.FloatOpt(
        "every_s",
        default=10.0,
        min=0.1,
        help="So often it is looked whether there is something to send.",
    ),
    cfg.FloatOpt("ceilometer_every_s", default=60.0, min=1.0, help="The same, for Ceilometer."),
    cfg.FloatOpt(
        "dead_band",
        default=0.05,
        min=0.0,
        max=1.0,
        help="A number is sent when it differs by more than this share from what was sent last. "
        "Counters are sent when they grew.",
    ),
    cfg.FloatOpt("refresh_s", default=300.0, min=1.0, help="And each of them so often anyway."),
    cfg.FloatOpt(
        "bytes_per_s",
        default=1000.0,
        min=100.0,
        help="Each sink sends at most so much, and so much of alarms beside; the rest waits.",
    ),
    cfg.FloatOpt(
        "guest_bytes_per_s", default=200.0, min=0.0, help="And so much more for each guest."
    ),
    cfg.StrOpt("prefix", default="holdfast", help="How paths in statsd and graphite begin."),
    cfg.StrOpt(
        "names",
        default="id",
        choices=[
            ("id", "Guests are called by their uuid."),
            ("name", "By their name, with a hash of the uuid behind."),
        ],
        help="What guests are called in statsd and graphite.",
    ),
    cfg.StrOpt(
        "telemetry_secret",
        default="",
        secret=True,
        help="[publisher] telemetry_secret of ceilometer.conf, by which its samples are signed. "
        "Empty: not at all.",
    ),
]
