# SPDX-License-Identifier: Apache-2.0
"""`holdfast status`: check whether this installation is ready to run."""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from oslo_config import cfg
from sqlalchemy.engine import make_url

from holdfast import conf as configuration
from holdfast.cli import ListCommand, arg
from holdfast.cli.config import CONFIG
from holdfast.cli.up import use_state
from holdfast.client.errors import ClientError
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.drivers.fence.device import Device

OK, WARNING, FAILURE = "ok", "warning", "failure"
Finding = tuple[str, str]


class Status(ListCommand):
    """Check configuration and database before an upgrade or a start; with --url, the API there.

    Exit code: 0 all well, 1 a warning, 2 a failure.
    """

    example = "  holdfast status --config /etc/holdfast/holdfast.conf"
    arguments = (CONFIG, arg("--state", metavar="DIR", help="the state folder of a `holdfast up`"))

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        url = cast(Any, self.app).options.url
        local = parsed_args.config or parsed_args.state or not url
        rows = list(findings(parsed_args.config, parsed_args.state)) if local else []
        if url:
            rows.append(("api", *self._api(url)))
        results = {result for _check, result, _what in rows}
        self.exit_code = 2 if FAILURE in results else 1 if WARNING in results else 0
        return ("check", "result", "what"), rows

    def _api(self, url: str) -> Finding:
        try:
            answer = self.client.health()
        except ClientError as error:
            return FAILURE, str(error)
        return OK, f"{url} is ready: {', '.join(f'{k} {v}' for k, v in answer.items())}"


def findings(files: list[str] | None, state: str | None) -> Iterator[tuple[str, str, str]]:
    try:
        conf = configuration.load([], [] if state and not files else files)
        if state:
            use_state(conf, Path(state).expanduser().resolve())
    except cfg.Error as error:
        yield "configuration", FAILURE, str(error)
        return
    strange = configuration.unknown(conf)
    if strange:
        yield "configuration", WARNING, f"no such option: {', '.join(strange)}"
    else:
        yield "configuration", OK, ", ".join(conf.config_file) or "defaults only, no file found"
    checks: list[tuple[str, Callable[[cfg.ConfigOpts], Finding]]] = [
        ("authentication", _authentication),
        ("database", _database),
        ("cloud", _cloud),
        ("broker", _broker),
        ("fencing", _fencing),
        ("host monitors", _host_monitors),
        ("files", _files),
    ]
    for name, check in checks:
        try:
            result, sentence = check(conf)
        except Exception as error:  # an exception in a check is a finding, not a crash
            result, sentence = FAILURE, str(error)
        yield name, result, sentence


def _authentication(conf: cfg.ConfigOpts) -> Finding:
    from holdfast.app import service

    service.check_bind(conf, conf.api.host)
    service.check_auth(conf)
    if conf.auth_strategy == "noauth":
        return WARNING, "noauth: everybody on this machine is an admin"
    return OK, conf.auth_strategy


def _database(conf: cfg.ConfigOpts) -> Finding:
    from holdfast.app import service

    file = make_url(conf.database.connection)
    if file.get_backend_name() == "sqlite" and not Path(file.database or "").exists():
        where = Path(file.database or "").absolute()
        return FAILURE, f"there is no {where}: run `holdfast db sync`, or name --state DIR"
    core = service.Core(conf)
    try:
        service.check_schema(core)
    finally:
        core.close()
    return OK, "at the version of this program"


def _cloud(conf: cfg.ConfigOpts) -> Finding:
    from holdfast.app import service
    from holdfast.runtime.clock import SystemClock

    if conf.cloud.driver == "sim":
        if not Path(conf.sim.database).exists():
            return WARNING, f"sim: nothing yet at {Path(conf.sim.database).absolute()}"
        if conf.transport_url:
            return WARNING, "sim: the cloud is a simulated one; [cloud] driver names a real one"
    cloud = service.connect_cloud(conf, SystemClock())
    try:
        hosts, closed = cloud.hosts.list(), list[str]()
        with contextlib.suppress(HoldfastError):  # only an administrator may list all projects
            closed = [*cloud.slots.without_role()]
    finally:
        cloud.close()
    if not hosts:
        return WARNING, f"{conf.cloud.driver}: answers, but has no hosts"
    if closed:
        names = ", ".join(closed[:5])
        return WARNING, (
            f"{conf.cloud.driver}: {len(hosts)} hosts; our user has no role in"
            f" {len(closed)} projects ({names}, …), where leases with an affinity are refused:"
            " openstack role add --user USER --domain DOMAIN --inherited member"
        )
    return OK, f"{conf.cloud.driver}: {len(hosts)} hosts"


def _broker(conf: cfg.ConfigOpts) -> Finding:
    if not conf.transport_url:
        return OK, "none: API and manager are one process (`holdfast up`)"
    from holdfast.drivers.rabbit.rpc import RemoteManager
    from holdfast.runtime.clock import SystemClock

    manager = RemoteManager(conf, SystemClock().now)
    try:
        return OK, f"manager {manager.ping()} answers"
    finally:
        manager.close()


def _fencing(conf: cfg.ConfigOpts) -> Finding:
    """Check the devices file; `holdfast fence check` asks the devices themselves."""
    if not conf.fencing.devices_file:
        if conf.cloud.driver == "sim":
            return OK, "sim: the simulated cloud's own"
        return WARNING, "[fencing] devices_file is not set: no host can be fenced"
    devices = _devices(conf)
    unsafe = [device.hosts for device in devices if device.driver == "none"]
    if unsafe:
        return WARNING, f"driver none, so that servers may run twice: {', '.join(unsafe)}"
    return OK, f"{len(devices)} devices; `holdfast fence check` asks them"


def _devices(conf: cfg.ConfigOpts) -> Sequence["Device"]:
    from holdfast.drivers.fence import connect
    from holdfast.runtime.clock import SystemClock

    with contextlib.closing(connect(conf, SystemClock())) as fences:
        return fences.device_file().devices


def _files(conf: cfg.ConfigOpts) -> Finding:
    """Check that only the service's user and group can reach configuration, secrets and state."""
    paths = [Path(path) for path in _private(conf) if path]
    there = {path.absolute() for path in paths if path.exists()}
    open_ones = sorted(str(path) for path in there if path.stat().st_mode & 0o007)
    if open_ones:
        return WARNING, f"open to every user of this machine: chmod o-rwx {' '.join(open_ones)}"
    return OK, f"{len(there)} files and folders are closed to other users"


def _private(conf: cfg.ConfigOpts) -> Iterator[str | None]:
    """Yield the paths of configuration, secrets, database and log, as far as they are named."""
    yield from conf.config_file
    yield from (str(file) for folder in conf.config_dir for file in Path(folder).glob("*.conf"))
    yield from (conf.auth.htpasswd_file, conf.auth.users_file, conf.auth.agent_secret_file)
    yield from (conf.agent.token_file, conf.hostmonitor.token_file)
    yield from (conf.hostmonitor.api_password_file, conf.publishers.webhook_secret_file)
    yield conf.publishers.alertmanager_authorization_file
    if conf.fencing.devices_file:
        yield conf.fencing.devices_file
        for device in _devices(conf):
            yield from (device.password_file, *device.secret_files.values())
    database = make_url(conf.database.connection)
    file = Path(database.database or "")
    if database.get_backend_name() == "sqlite" and file.is_file():
        yield from (str(file), str(file.absolute().parent))
    yield from (conf.sim.database, conf.libvirt.state, conf.log_file)
    yield from (conf.agent.outbox, conf.hostmonitor.outbox)


def _host_monitors(conf: cfg.ConfigOpts) -> Finding:
    """Check whether the monitors with recent reports are registered voters, without warnings."""
    from holdfast.app import service
    from holdfast.model.votes import without_network

    if _database(conf)[0] != OK:
        return WARNING, "the database cannot be read"
    core = service.Core(conf)
    try:
        now, listed = core.store.monitors.listed()
    finally:
        core.close()
    fresh = [
        monitor.view
        for monitor in listed
        if monitor.view is not None and monitor.view.is_fresh(now)
    ]
    registered = {monitor.observer for monitor in listed if monitor.registration is not None}
    strangers = [view.observer for view in fresh if view.observer not in registered]
    warnings = [
        f"{view.observer}: {network}: {sight.warning}"
        for view in fresh
        for network, sight in view.picture.networks.items()
        if sight.warning
    ]
    if strangers:
        names = ", ".join(strangers)
        warnings.append(f"not registered, so without a vote (`holdfast monitor register`): {names}")
    warnings += filter(None, [without_network(fresh, conf.recovery.heartbeat_network)])
    if len(registered) == 2:
        warnings.append("2 monitors are registered: if they differ no host fails; register 3")
    if warnings:
        return WARNING, "; ".join(warnings)
    return OK, f"reported lately: {', '.join(view.observer for view in fresh) or 'none'}"
