# SPDX-License-Identifier: Apache-2.0
"""[agent], [metrics], [metric_sinks]: options of the agent of a compute host."""

from oslo_config import cfg

GROUP = "agent"
OPTS = [
    cfg.StrOpt(
        "host",
        help="What the cloud calls this host. Default: the machine's name.",
    ),
    cfg.StrOpt(
        "guests",
        default="libvirt",
        help="Entry point of the group holdfast.guests: libvirt, sim, …",
    ),
    cfg.StrOpt(
        "guests_address",
        default="qemu:///system",
        help="Where the hypervisor is asked: a URI of libvirt's; for sim, HOST@FILE of the cloud.",
    ),
    cfg.StrOpt(
        "filters_file",
        help="YAML file that says what counts as a failure of a guest (docs/guests.md). Read again "
        "by itself when it changes. Without it: the default set, which `holdfast guests filters "
        "check` shows.",
    ),
    cfg.ListOpt(
        "services",
        default=[],
        help="Services of the host that must run, as the names of their processes: libvirtd, "
        "nova-compute, … Each is restarted by `systemctl restart NAME` a few times before it is "
        "reported.",
    ),
    cfg.StrOpt(
        "services_file",
        help="YAML file that says more about services (docs/agent.md): how each is known, checked "
        "and restarted; masakari-monitors' process_list.yaml is taken too. Read again by itself "
        "when it changes. What it says about a service of the list above counts.",
    ),
    cfg.FloatOpt("services_every_s", default=5.0, min=0.5, help="So often they are looked at."),
    cfg.FloatOpt(
        "heartbeats_every_s",
        default=10.0,
        min=0.0,
        help="So often the agents of guests that want it are asked whether the guest hangs "
        "(docs/guests.md). 0: never. Needs to write to libvirt once a guest wants it.",
    ),
    cfg.IntOpt(
        "heartbeats_missed",
        default=3,
        min=1,
        help="So many questions a guest may leave unanswered.",
    ),
    cfg.FloatOpt(
        "heartbeats_quiet_s",
        default=30.0,
        min=1.0,
        help="And for so long it must have done nothing, before it hangs.",
    ),
    cfg.FloatOpt(
        "stalled_s",
        default=30.0,
        min=0.0,
        help="A processor of a guest that wants to run and gets no time of the host's for so long "
        "is stalled. Looked at three times in that while. 0: not looked at.",
    ),
    cfg.FloatOpt(
        "expectation_every_s",
        default=60.0,
        min=0.0,
        help="So often what should run on this host is asked of Holdfast and compared with what "
        "does (docs/guests.md). 0: never.",
    ),
    cfg.IntOpt(
        "expectation_looks",
        default=2,
        min=1,
        help="In so many looks, one after the other, a difference must be seen before it counts.",
    ),
    cfg.FloatOpt(
        "expectation_grace_s",
        default=30.0,
        min=0.0,
        help="And for so long.",
    ),
    cfg.StrOpt(
        "spool",
        default="/var/lib/holdfast/agent.spool",
        help="File in which reports wait until they are delivered.",
    ),
    cfg.StrOpt(
        "socket",
        default="/run/holdfast/agent.sock",
        help="Unix socket on which `holdfast guests list`, `watch`, `simulate` and `status` ask "
        "the agent; for its own user and root alone. Its folder is made if it is missing. "
        "Empty: none.",
    ),
    cfg.StrOpt(
        "api_url",
        help="Where Holdfast is: http://controller:8780. Default: HOLDFAST_URL.",
    ),
    cfg.StrOpt(
        "token_file",
        help="File whose first line is the token of this host, made on a controller by `holdfast "
        "agent token HOST`. It is good for this host alone. Without it: HOLDFAST_USER and its "
        "companions from the environment.",
    ),
    cfg.FloatOpt(
        "api_timeout_s", default=10.0, min=1.0, help="Longest that one call to the API takes."
    ),
]


# [metrics]: metrics collection, metric plugins and alarm rules of the agent.


METRICS_GROUP = "metrics"
METRICS_OPTS = [
    cfg.BoolOpt(
        "enabled",
        default=True,
        help="Whether the agent measures its host and guests (docs/metrics.md). Without rules, "
        "plugins and sinks nothing of it leaves the host. Only guests of libvirt are measured.",
    ),
    cfg.FloatOpt(
        "every_s",
        default=1.0,
        min=0.1,
        max=3600.0,
        help="So often the kernel is asked: processors, network interfaces, the host itself.",
    ),
    cfg.FloatOpt(
        "libvirt_every_s",
        default=30.0,
        min=1.0,
        max=3600.0,
        help="So often libvirt is asked: disks, and what guests do with their memory.",
    ),
    cfg.StrOpt(
        "rules_file",
        help="YAML file of alarm rules (docs/alarms.md). Read again by itself when it changes, and "
        "at SIGHUP. Rules of the same id that are kept centrally, or set by the socket, count "
        "before those of the file. A file that cannot be used leaves the one before it in force.",
    ),
    cfg.ListOpt(
        "groups",
        default=[],
        help="Groups that this host is in, for alarm rules whose `group` names some only. Which "
        "central rules of scope `group:NAME` it gets is for [auth] agent_groups of the API to say.",
    ),
    cfg.StrOpt(
        "plugins_file",
        help="YAML file that names the metric plugins and their configuration "
        "(docs/metric-plugins.md). Read again by itself when it changes. Without it there are "
        "none but those that `holdfast metrics plugins add` adds.",
    ),
    cfg.IntOpt(
        "plugins_memory_mib",
        default=192,
        min=64,
        help="Memory limit of the process of the metric plugins, in MiB. Above it the agent kills "
        "the process and switches off the plugin during whose work the process grew most.",
    ),
]


# [metric_sinks]: where the agent sends metrics (docs/metric-sinks.md). The default is nowhere.


SINKS_GROUP = "metric_sinks"
FIELDS = [
    *("host.cpu_util_ratio", "host.mem_free_bytes", "host.load1", "host.vms_running"),
    *("guest.util_ratio", "guest.steal_ratio", "guest.used_ratio", "guest.rss_kib"),
    *("disk.rd_bytes_per_s", "disk.wr_bytes_per_s", "disk.iops", "disk.mean_latency_ns"),
    *("disk.fill_ratio", "nic.rx_bps", "nic.tx_bps", "nic.over_contract_ratio"),
]
SINKS_OPTS = [
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
