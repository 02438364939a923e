# SPDX-License-Identifier: Apache-2.0
"""Configuration: one file per group, an object that is passed in, never a global.

>>> conf = load([], ["/etc/holdfast/holdfast.conf"])
>>> conf.manager.workers
256
"""

import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from oslo_config import cfg
from oslo_log import log

import holdfast
from holdfast.conf import (
    agent,
    api,
    auth,
    cloud,
    console,
    database,
    default,
    enforcement,
    fencing,
    hostmonitor,
    lease_notifications,
    libvirt,
    manager,
    metrics,
    monitors,
    networks,
    notifications,
    openstack,
    recovery,
    reservation,
    sim,
    sinks,
)

LOG = logging.getLogger(__name__)
#: Groups of libraries that read our files too.
_OTHERS = ("oslo_", "keystone_authtoken", "profiler", "healthcheck", "cors")
_GROUPS = (
    default,
    agent,
    api,
    auth,
    cloud,
    console,
    database,
    enforcement,
    fencing,
    hostmonitor,
    lease_notifications,
    libvirt,
    manager,
    metrics,
    monitors,
    notifications,
    openstack,
    recovery,
    reservation,
    sim,
    sinks,
)


def load(args: Sequence[str], files: Sequence[str] | None = None) -> cfg.ConfigOpts:
    """A configuration from files and a command line; `files` None looks in the usual places."""
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
        networks.register(conf)
    except ValueError as error:
        raise cfg.Error(str(error)) from error
    for group in _GROUPS:  # a value that cannot be is found now, not when it is first used
        for opt in group.OPTS:
            _ = conf[opt.dest] if group.GROUP == "DEFAULT" else conf[group.GROUP][opt.dest]
    return conf


def unknown(conf: cfg.ConfigOpts) -> list[str]:
    """Options in our groups of the files that do not exist: typing errors, most likely."""
    ours = {group.GROUP: {opt.dest for opt in group.OPTS} for group in _GROUPS}
    for name in conf.hostmonitor.networks:
        ours[networks.group(name)] = {opt.dest for opt in networks.OPTS}
    for entry in importlib.metadata.entry_points(group="oslo.config.opts", name="oslo.log"):
        ours["DEFAULT"] |= {opt.dest for _group, opts in entry.load()() for opt in opts}
    found = []
    for path in conf.config_file:
        sections: dict[str, dict[str, Any]] = {}
        cfg.ConfigParser(path, sections).parse()
        if openstack.GROUP in sections:
            ours[openstack.GROUP] |= _of_the_login(sections[openstack.GROUP])
        for group, names in sections.items():
            if group not in ours and not group.startswith(_OTHERS):
                found.append(f"[{group}]")
            strange = names.keys() - ours.get(group, names.keys())
            found += [f"[{group}]{name}" for name in sorted(strange)]
    return found


def _of_the_login(section: Mapping[str, Sequence[str]]) -> set[str]:
    """Names that the login plugin of [openstack] understands; nobody registers them before it."""
    opts = openstack.plugin_opts({*openstack.SHOWN, *section.get("auth_type", ())})
    old = {str(old.name).replace("-", "_") for opt in opts for old in opt.deprecated_opts}
    return old | {opt.dest for opt in opts}


def register(conf: cfg.ConfigOpts) -> None:
    for group in _GROUPS:
        conf.register_opts(group.OPTS, group=None if group.GROUP == "DEFAULT" else group.GROUP)


def set_up_logging(conf: cfg.ConfigOpts, program: str) -> None:
    """Log lines with request ids, by oslo.log; levels follow the file at every reload."""
    log.set_defaults(
        logging_context_format_string="%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s"
        " [%(global_request_id)s %(request_id)s %(user)s %(project)s] %(message)s",
        default_log_levels=[*log.get_default_log_levels(), "alembic=WARN", "cheroot=WARN"],
    )
    log.setup(conf, program)
    for name in unknown(conf):
        LOG.warning("no such option, left aside: %s", name)
    conf.register_mutate_hook(_levels)


def reload(conf: cfg.ConfigOpts) -> str:
    """Read the files again: mutable options change, others are named in the log and kept."""
    try:
        changed = conf.mutate_config_files()
        # oslo.config empties its cache before it reads the files: what another thread asked for
        # meanwhile would keep its old value until the next reload. This empties it again.
        conf.register_opts([])
    except Exception as error:  # a broken file must not stop a running program
        LOG.error("configuration not reloaded, the old one stays: %s", error)
        return f"configuration not reloaded: {error}"
    said = ", ".join(
        f"[{group}]{name}: {old} -> {new}" for (group, name), (old, new) in changed.items()
    )
    LOG.info("configuration reloaded: %s", said or "nothing changed")
    return f"reloaded: {said or 'nothing changed'}"


def _levels(conf: cfg.ConfigOpts, fresh: dict[Any, Any]) -> None:
    """oslo.log follows its own `debug` option; the list of levels is ours to apply."""
    if (None, "default_log_levels") in fresh or ("DEFAULT", "default_log_levels") in fresh:
        for pair in conf.default_log_levels:
            name, _, level = pair.partition("=")
            logging.getLogger(name).setLevel(level)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For oslo-config-generator and `holdfast config sample`."""
    shown = {group.GROUP: list(group.OPTS) for group in _GROUPS}
    shown[openstack.GROUP] += openstack.plugin_opts()
    shown |= {networks.group(name): list(networks.OPTS) for name in networks.USUAL}
    return list(shown.items())
