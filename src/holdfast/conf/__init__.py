# SPDX-License-Identifier: Apache-2.0
"""Configuration: loads, checks and reloads the options of all groups; never a global object.

Each module of this package holds the options of one group or of a few related groups.

>>> conf = load([], ["/etc/holdfast/holdfast.conf"])
>>> conf.manager.workers
256
"""

import copy
import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log
from oslo_log.formatters import ContextFormatter

import holdfast
from holdfast.conf import (
    agent,
    api,
    cloud,
    default,
    enforcement,
    hostmonitor,
    manager,
    monitors,
    publishers,
    recovery,
    reservation,
)

LOG = logging.getLogger(__name__)
#: Option groups of libraries that read Holdfast's files too.
_OTHERS = ("oslo_", "keystone_authtoken", "profiler", "healthcheck", "cors")
#: Option groups in the order of the sample file.
_GROUPS: Mapping[str, Sequence[cfg.Opt]] = {
    default.GROUP: default.OPTS,
    agent.GROUP: agent.OPTS,
    api.GROUP: api.OPTS,
    api.AUTH_GROUP: api.AUTH_OPTS,
    cloud.GROUP: cloud.OPTS,
    api.CONSOLE_GROUP: api.CONSOLE_OPTS,
    default.DATABASE_GROUP: default.DATABASE_OPTS,
    enforcement.GROUP: enforcement.OPTS,
    recovery.FENCING_GROUP: recovery.FENCING_OPTS,
    hostmonitor.GROUP: hostmonitor.OPTS,
    publishers.GROUP: publishers.OPTS,
    cloud.LIBVIRT_GROUP: cloud.LIBVIRT_OPTS,
    manager.GROUP: manager.OPTS,
    agent.METRICS_GROUP: agent.METRICS_OPTS,
    monitors.GROUP: monitors.OPTS,
    monitors.NOTIFICATIONS_GROUP: monitors.NOTIFICATIONS_OPTS,
    cloud.OPENSTACK_GROUP: cloud.OPENSTACK_OPTS,
    recovery.GROUP: recovery.OPTS,
    recovery.MASS_FAILURE_GROUP: recovery.MASS_FAILURE_OPTS,
    reservation.GROUP: reservation.OPTS,
    cloud.SIM_GROUP: cloud.SIM_OPTS,
    agent.SINKS_GROUP: agent.SINKS_OPTS,
}


def load(args: Sequence[str], files: Sequence[str] | None = None) -> cfg.ConfigOpts:
    """Load the configuration from files and command line; `files` None uses oslo's defaults."""
    conf = cfg.ConfigOpts()
    register(conf)
    log.register_options(conf)
    conf(
        args=list(args),
        project="holdfast",
        version=holdfast.__version__,
        default_config_files=list(files) if files is not None else None,
    )
    try:
        hostmonitor.register(conf)
    except ValueError as error:
        raise cfg.Error(str(error)) from error
    for group, opts in _GROUPS.items():  # an invalid value fails now, not on first use
        for opt in opts:
            _ = conf[opt.dest] if group == "DEFAULT" else conf[group][opt.dest]
    return conf


def unknown(conf: cfg.ConfigOpts) -> list[str]:
    """Return unknown groups and options in the configuration files, most likely typing errors."""
    ours = {group: {opt.dest for opt in opts} for group, opts in _GROUPS.items()}
    for name in conf.hostmonitor.networks:
        ours[hostmonitor.group(name)] = {opt.dest for opt in hostmonitor.NETWORKS_OPTS}
    for entry in importlib.metadata.entry_points(group="oslo.config.opts", name="oslo.log"):
        ours["DEFAULT"] |= {opt.dest for _group, opts in entry.load()() for opt in opts}
    strangers = []
    for path in conf.config_file:
        sections: dict[str, dict[str, Any]] = {}
        cfg.ConfigParser(path, sections).parse()
        if cloud.OPENSTACK_GROUP in sections:
            ours[cloud.OPENSTACK_GROUP] |= _of_the_login(sections[cloud.OPENSTACK_GROUP])
        for group, names in sections.items():
            if group not in ours and not group.startswith(_OTHERS):
                strangers.append(f"[{group}]")
            strange = names.keys() - ours.get(group, names.keys())
            strangers += [f"[{group}]{name}" for name in sorted(strange)]
    return strangers


def _of_the_login(section: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the option names of the login plugin of [openstack], not registered at this time."""
    opts = cloud.plugin_opts({*cloud.SHOWN, *section.get("auth_type", ())})
    old = {str(old.name).replace("-", "_") for opt in opts for old in opt.deprecated_opts}
    return old | {opt.dest for opt in opts}


def register(conf: cfg.ConfigOpts) -> None:
    for group, opts in _GROUPS.items():
        conf.register_opts(opts, group=None if group == "DEFAULT" else group)


def set_up_logging(conf: cfg.ConfigOpts, program: str) -> None:
    """Set up oslo.log with request ids; each reload applies the log levels of the file."""
    log.set_defaults(
        logging_context_format_string="%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s"
        " [%(global_request_id)s %(request_id)s %(user)s %(project)s] %(message)s",
        default_log_levels=[
            *log.get_default_log_levels(),
            "alembic=WARN",
            "waitress=WARN",
            "waitress.queue=ERROR",
        ],
    )
    log.setup(conf, program)
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, ContextFormatter):
            handler.setFormatter(_OneLine(handler.formatter))
    for name in unknown(conf):
        LOG.warning("no such option, left aside: %s", name)
    conf.register_mutate_hook(_levels)


#: Control characters, and the two line separators of Unicode: foreign text may contain them.
_CONTROL = {n: repr(chr(n))[1:-1] for n in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


class _OneLine(logging.Formatter):
    """Formats a record as one line: foreign text cannot imitate another line of the log.

    Each line of a traceback has oslo.log's prefix: the date and the logger.
    """

    def __init__(self, inner: ContextFormatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        plain = copy.copy(record)
        plain.exc_info = plain.exc_text = None
        lines = [self._inner.format(plain)]
        if record.exc_info:
            trace = self._inner.formatException(record.exc_info, record=plain)
            lines += trace.rstrip().split("\n")
        return "\n".join(line.translate(_CONTROL) for line in lines)


def reload(conf: cfg.ConfigOpts) -> str:
    """Read the files again: mutable options change; others keep their value and are logged."""
    try:
        changed = conf.mutate_config_files()
        # oslo.config empties its cache before it reads the files: an option that another thread
        # reads meanwhile would keep its old value until the next reload. This call empties the
        # cache again.
        conf.register_opts([])
    except Exception as error:  # a broken file must not stop a running program
        LOG.error("configuration not reloaded, the old one stays: %s", error)
        return f"configuration not reloaded: {error}"
    text = ", ".join(
        f"[{group}]{name}: {old} -> {new}" for (group, name), (old, new) in changed.items()
    )
    LOG.info("configuration reloaded: %s", text or "nothing changed")
    return f"reloaded: {text or 'nothing changed'}"


def _levels(conf: cfg.ConfigOpts, fresh: dict[Any, Any]) -> None:
    """Apply default_log_levels after a reload; oslo.log itself only applies `debug`."""
    if (None, "default_log_levels") in fresh or ("DEFAULT", "default_log_levels") in fresh:
        for pair in conf.default_log_levels:
            name, _, level = pair.partition("=")
            logging.getLogger(name).setLevel(level)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """List all options for oslo-config-generator and `holdfast config sample`."""
    shown = {group: list(opts) for group, opts in _GROUPS.items()}
    shown[cloud.OPENSTACK_GROUP] += cloud.plugin_opts()
    shown |= {
        hostmonitor.group(name): list(hostmonitor.NETWORKS_OPTS) for name in hostmonitor.USUAL
    }
    return list(shown.items())
