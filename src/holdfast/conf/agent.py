# SPDX-License-Identifier: Apache-2.0
"""[agent], [metrics], [metric_sinks]: options of the agent of a compute host."""

from oslo_config import cfg

GROUP = "agent"
OPTS = [
    cfg.StrOpt(
        "host",
        help="Name of this host in Nova. Default: the machine's host name.",
    ),
    cfg.StrOpt(
        "guests",
        default="libvirt",
        help="Guest driver: an entry point of the group holdfast.guests (libvirt, sim, …).",
    ),
    cfg.StrOpt(
        "guests_address",
        default="qemu:///system",
        help="Address of the hypervisor: a libvirt URI; for the driver sim HOST@FILE of the "
        "simulated cloud.",
    ),
    cfg.StrOpt(
        "filters_file",
        help="YAML file of guest event filters, which decide which events count as a failure "
        "(docs/concepts/guests.md). The agent reloads the file when it changes. Default: built-in "
        "filters; `holdfast guest filter check` shows them.",
    ),
    cfg.ListOpt(
        "services",
        default=[],
        help="Process names of host services that must run: libvirtd, nova-compute, … The agent "
        "restarts a service by `systemctl restart NAME` a few times before it reports a failure.",
    ),
    cfg.StrOpt(
        "services_file",
        help="YAML file that describes how to recognise, check and restart each service "
        "(docs/install/agent.md). masakari-monitors' process_list.yaml is accepted. The agent "
        "reloads the file when it changes. Its entries replace those of `services`.",
    ),
    cfg.FloatOpt(
        "services_interval_s",
        default=5.0,
        min=0.5,
        help="Seconds between two checks of the services.",
    ),
    cfg.FloatOpt(
        "heartbeat_interval_s",
        default=10.0,
        min=0.0,
        help="Seconds between two QEMU guest agent pings of guests with hang detection "
        "(docs/concepts/guests.md). 0: no pings. Needs a read-write libvirt connection.",
    ),
    cfg.IntOpt(
        "heartbeat_max_missed",
        default=3,
        min=1,
        help="Consecutive pings without an answer after which a guest may count as hung.",
    ),
    cfg.FloatOpt(
        "heartbeat_idle_s",
        default=30.0,
        min=1.0,
        help="Seconds without processor time, disk and network activity that a guest must show "
        "beside missed pings before it counts as hung.",
    ),
    cfg.FloatOpt(
        "stalled_s",
        default=30.0,
        min=0.0,
        help="Seconds that a runnable vCPU must get no processor time before its guest counts as "
        "stalled. The agent reads it three times in this period. 0: no check.",
    ),
    cfg.FloatOpt(
        "expected_interval_s",
        default=60.0,
        min=0.0,
        help="Seconds between two comparisons of the servers that Nova expects on this host with "
        "the guests that libvirt runs (docs/concepts/guests.md). 0: no comparison.",
    ),
    cfg.IntOpt(
        "expected_reads",
        default=2,
        min=1,
        help="Consecutive comparisons that must show a difference before the agent reports it.",
    ),
    cfg.FloatOpt(
        "expected_grace_s",
        default=30.0,
        min=0.0,
        help="Seconds that a difference must last before the agent reports it.",
    ),
    cfg.StrOpt(
        "outbox",
        default="/var/lib/holdfast/agent.outbox",
        help="File of the agent's outbox: reports that wait for delivery.",
    ),
    cfg.StrOpt(
        "socket",
        default="/run/holdfast/agent.sock",
        help="Unix socket of the agent's admin interface, for `holdfast guest list`, `watch`, "
        "`simulate` and `status`. Only the agent's user and root may connect. The agent creates "
        "its directory. Empty: no socket.",
    ),
    cfg.StrOpt(
        "api_url",
        help="URL of Holdfast's API, for example http://controller:8780. Default: HOLDFAST_URL.",
    ),
    cfg.StrOpt(
        "token_file",
        help="File whose first line is the token of this host, from `holdfast agent token HOST` "
        "on a controller. The token is valid for this host only. Default: HOLDFAST_USER and "
        "HOLDFAST_PASSWORD of the environment.",
    ),
    cfg.FloatOpt(
        "api_timeout_s", default=10.0, min=1.0, help="Seconds that one API call may take."
    ),
]


# [metrics]: metrics collection, metric plugins and alarm rules of the agent.


METRICS_GROUP = "metrics"
METRICS_OPTS = [
    cfg.BoolOpt(
        "enabled",
        default=True,
        help="Collect metrics of the host and its libvirt guests (docs/concepts/metrics.md). "
        "Without rules, plugins and sinks no metric leaves the host.",
    ),
    cfg.FloatOpt(
        "interval_s",
        default=1.0,
        min=0.1,
        max=3600.0,
        help="Seconds between two reads of the kernel's metrics: processors, memory, network "
        "interfaces.",
    ),
    cfg.FloatOpt(
        "libvirt_interval_s",
        default=30.0,
        min=1.0,
        max=3600.0,
        help="Seconds between two reads of libvirt's metrics: disks and balloon statistics.",
    ),
    cfg.StrOpt(
        "rules_file",
        help="YAML file of alarm rules (docs/concepts/alarms.md). The agent reloads the file when "
        "it changes and at SIGHUP; an invalid file leaves the previous rules in force. A "
        "central rule replaces the rule of the file with the same id.",
    ),
    cfg.ListOpt(
        "groups",
        default=[],
        help="Groups of this host, for alarm rules of the file with `group`. [auth] agent_groups "
        "of the API decides which central rules of scope `group:NAME` the host gets.",
    ),
    cfg.StrOpt(
        "plugins_file",
        help="YAML file of metric plugins and their configuration "
        "(docs/reference/metric-plugins.md). The agent reloads the file when it changes. Without "
        "it `holdfast metric plugin add` adds plugins.",
    ),
    cfg.IntOpt(
        "plugins_memory_mib",
        default=192,
        min=64,
        help="Memory limit of the process of the metric plugins, in MiB. Above it the agent kills "
        "the process and switches off the plugin during whose work the process grew most.",
    ),
]


# [metric_sinks]: where the agent sends metrics (docs/operate/metric-sinks.md); nowhere by default.


SINKS_GROUP = "metric_sinks"
FIELDS = [
    *("host.cpu_util_ratio", "host.mem_free_bytes", "host.load1", "host.vms_running"),
    *("guest.util_ratio", "guest.steal_ratio", "guest.used_ratio", "guest.rss_kib"),
    *("disk.rd_bytes_per_s", "disk.wr_bytes_per_s", "disk.iops", "disk.mean_latency_ns"),
    *("disk.fill_ratio", "nic.rx_bps", "nic.tx_bps", "nic.over_contract_ratio"),
]
SINKS_OPTS = [
    cfg.StrOpt("statsd", help="HOST:PORT of a statsd server; the agent sends metrics by UDP."),
    cfg.StrOpt(
        "graphite",
        help="HOST:PORT of a carbon server; the agent sends metrics by UDP in plaintext format.",
    ),
    cfg.StrOpt(
        "ceilometer",
        help="HOST or HOST:PORT (default 4952) of the receiver of Ceilometer's UDP publisher.",
    ),
    cfg.StrOpt(
        "prometheus",
        help="Address of the Prometheus exporter, for example 127.0.0.1:9177; the page is "
        "/metrics. The page contains names of guests and projects and needs no authentication: "
        "bind it to a network that customers cannot reach.",
    ),
    cfg.BoolOpt("log", default=False, help="Write metrics to the agent's log."),
    cfg.ListOpt(
        "fields",
        default=FIELDS,
        help="Metrics for statsd, graphite and the log: KIND.NAME of docs/concepts/metrics.md, "
        "with * as wildcard.",
    ),
    cfg.ListOpt(
        "ceilometer_fields",
        default=[],
        help="Metrics for Ceilometer. Empty: all metrics that Ceilometer has meters for.",
    ),
    cfg.ListOpt("prometheus_fields", default=["*"], help="Metrics for Prometheus."),
    cfg.FloatOpt(
        "interval_s",
        default=10.0,
        min=0.1,
        help="Seconds between two sends to a sink.",
    ),
    cfg.FloatOpt(
        "ceilometer_interval_s",
        default=60.0,
        min=1.0,
        help="Seconds between two sends to Ceilometer.",
    ),
    cfg.FloatOpt(
        "dead_band",
        default=0.05,
        min=0.0,
        max=1.0,
        help="Relative change since the last sent value that makes the agent send a gauge again. "
        "Counters are sent when they grew.",
    ),
    cfg.FloatOpt(
        "refresh_s",
        default=300.0,
        min=1.0,
        help="Seconds after which a metric is sent again, changed or not.",
    ),
    cfg.FloatOpt(
        "bytes_per_s",
        default=1000.0,
        min=100.0,
        help="Bytes per second that each sink may send for metrics, and as much again for alarms. "
        "Further metrics wait.",
    ),
    cfg.FloatOpt(
        "guest_bytes_per_s",
        default=200.0,
        min=0.0,
        help="Bytes per second that are added to bytes_per_s for each guest.",
    ),
    cfg.StrOpt(
        "prefix", default="holdfast", help="First part of metric paths in statsd and graphite."
    ),
    cfg.StrOpt(
        "names",
        default="id",
        choices=[
            ("id", "The UUID of the guest."),
            ("name", "The name of the guest, followed by a hash of its UUID."),
        ],
        help="Name of a guest in statsd and graphite paths.",
    ),
    cfg.StrOpt(
        "telemetry_secret",
        default="",
        secret=True,
        help="[publisher] telemetry_secret of ceilometer.conf, which signs samples. Empty: "
        "samples are not signed.",
    ),
]
