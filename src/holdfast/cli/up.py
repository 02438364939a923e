# SPDX-License-Identifier: Apache-2.0
"""`holdfast up`: API, manager, SQLite and a simulated cloud in a single process."""

import argparse
import contextlib
import fcntl
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from oslo_config import cfg

from holdfast import conf as configuration
from holdfast.app.daemon import BadSetup
from holdfast.cli import Base, arg
from holdfast.conf import hostmonitor
from holdfast.model.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.api.request import Services
    from holdfast.app import service
    from holdfast.app.http_server import Server

LOG = logging.getLogger(__name__)
_OPEN = (
    "holdfast up: other users of this machine can enter the state folder {state}, which holds"
    " tokens and names of all projects: chmod 700 it, or choose another --state\n"
)


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text) < 65_536:
        return int(text)
    raise argparse.ArgumentTypeError("a number from 1 to 65535 is wanted")


class Up(Base):
    """Run everything in a single process: API, manager, SQLite, a simulated cloud.

    The state folder keeps all state for the next start.
    """

    example = "  holdfast up --state ~/holdfast --port 8780"
    arguments = (
        arg("--host", help="address to listen on (default 127.0.0.1)"),
        arg("--port", type=_port, help="port to listen on (default 8780)"),
        arg(
            "--state",
            default="state",
            metavar="DIR",
            help="folder for databases and log (default ./state)",
        ),
        arg("--config-file", "--config", dest="config", metavar="FILE", help="configuration file"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        state = Path(parsed_args.state).expanduser().resolve()
        try:
            os.umask(0o077)  # databases and log hold tokens and names of other projects
            state.mkdir(parents=True, exist_ok=True)  # 0700, by the umask
            if state.stat().st_mode & 0o077:
                sys.stderr.write(_OPEN.format(state=state))
                _close_files(state)
            with _alone(state):
                return _run(_conf(parsed_args, state), state)
        except OSError as error:
            sys.stderr.write(f"holdfast up: the state folder {state} cannot be used: {error}\n")
        except (BadSetup, HoldfastError, cfg.Error, ValueError) as error:
            sys.stderr.write(f"holdfast up: {error}\n")
        except Exception as error:  # logging is set up by now and prints nothing on the terminal
            LOG.exception("cannot start")
            where = f"the whole story is in {state / 'holdfast.log'}"
            sys.stderr.write(f"holdfast up: cannot start: {str(error).splitlines()[0]}; {where}\n")
        return 1


def _close_files(state: Path) -> None:
    """Close our files in an open folder to other users; an older version made them readable."""
    for name in ("holdfast.db*", "sim.db*", "libvirt.db*", "holdfast.log*", "hostmonitor.outbox*"):
        for file in state.glob(name):
            if not file.is_symlink() and file.stat().st_uid == os.geteuid():
                file.chmod(0o600)


def use_state(conf: cfg.ConfigOpts, state: Path) -> None:
    """Set default paths in the state folder; the configuration can override each."""
    conf.set_default("connection", f"sqlite:///{state / 'holdfast.db'}", group="database")
    conf.set_default("database", str(state / "sim.db"), group="sim")
    conf.set_default("state", str(state / "libvirt.db"), group="libvirt")
    conf.set_default("log_file", str(state / "holdfast.log"))
    conf.set_default("outbox", str(state / "hostmonitor.outbox"), group="hostmonitor")
    if conf.cloud.driver == "sim":
        for network in conf.hostmonitor.networks:
            conf.set_default("driver", "sim", group=hostmonitor.group(network))
        # Short times: a demo user wants to see a host come back without waiting ten minutes.
        conf.set_default("poll_interval_s", 5.0, group="monitors")
        conf.set_default("healthy_after_s", 5.0, group="monitors")
        conf.set_default("flap_holdoff_s", 15.0, group="monitors")
        conf.set_default("bring_back_after_s", 5.0, group="recovery")
        conf.set_default("healthy_after_s", 3.0, group="hostmonitor")


def _conf(args: argparse.Namespace, state: Path) -> cfg.ConfigOpts:
    conf = configuration.load([], [args.config] if args.config else [])
    use_state(conf, state)
    if args.host:
        conf.set_override("host", args.host, group="api")
    if args.port is not None:
        conf.set_override("port", args.port, group="api")
    return conf


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Lock the state folder, because only a single process may use it."""
    lock: IO[str]
    with open(state / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadSetup(
                f"{state} is in use by another `holdfast up`; stop it or choose another --state"
            ) from None
        yield


def _run(conf: cfg.ConfigOpts, state: Path) -> int:
    from holdfast.app import service

    service.check_bind(conf, conf.api.host)
    service.check_auth(conf)
    for name in configuration.unknown(conf):
        sys.stderr.write(f"holdfast up: no such option, left aside: {name}\n")
    configuration.set_up_logging(conf, "holdfast")
    if warning := service.auth_warning(conf):
        LOG.warning("%s", warning)
        sys.stderr.write(f"holdfast up: {warning}\n")
    core = service.Core(conf)
    manager = service.ManagerPart(core, service.connect_cloud(conf, core.clock))
    services = service.api_services(
        core, manager.commands, loop_age_s=manager.loop.age_s, wake=manager.loop.wake
    )
    application = service.application(core, services)
    server = service.http_server(conf, application)
    server.bind()  # bind first: if this fails, nothing has changed yet
    try:
        return _serve(conf, state, core, manager, services, server)
    except BaseException:
        server.stop()  # the server has threads as soon as it is bound
        raise


def _serve(
    conf: cfg.ConfigOpts,
    state: Path,
    core: "service.Core",
    manager: "service.ManagerPart",
    services: "Services",
    server: "Server",
) -> int:
    from holdfast.app import demo, service
    from holdfast.app.daemon import Daemon, Part, Stopping
    from holdfast.app.demo import samples_part
    from holdfast.app.hostmonitor import HostMonitorPart, InHouse, observer, register_own
    from holdfast.db import migrations

    migrations.sync(core.store.database)
    if core.store.database.dialect == "sqlite" and (taken := core.store.operations.take_over_all()):
        LOG.info("%s operations of a process that was killed are taken over", taken)
    if services.sim is not None:
        demo.prepare(services.sim())

    class Manager:
        def start(self) -> None:
            manager.start()
            if services.sim is not None:
                demo.populate(manager, core.store, state / "populated", core.clock.now())

        stop = staticmethod(manager.stop)

    probes = service.health_servers(core, services, conf.api.health_port)
    parts: list[Part] = [Stopping(core.close), Manager(), *probes, server]
    parts.append(Stopping(services.feed.stop))
    if services.sim is not None:  # simulated hosts have networks to cut
        register_own(core.store, observer(conf))
        parts.append(HostMonitorPart(conf, InHouse(core.store, manager.loop.wake), core.clock))
        parts.append(samples_part(services.sim, core.store.samples, core.clock))
    daemon = Daemon(conf, parts)
    return daemon.run(started=lambda: _greet(conf, state))


def _greet(conf: cfg.ConfigOpts, state: Path) -> None:
    host = f"[{conf.api.host}]" if ":" in conf.api.host else conf.api.host
    url = f"http://{host}:{conf.api.port}"
    option = "" if url == "http://127.0.0.1:8780" else f" --url {url}"
    if conf.auth_strategy == "http_basic":
        option += " --user NAME --password-file FILE"
    tool = sys.argv[0] if sys.argv[0].endswith("holdfast") else "holdfast"
    with contextlib.suppress(ValueError):
        tool = str(Path(tool).resolve().relative_to(Path.cwd()))
    print(
        f"""
Holdfast is up (authentication: {conf.auth_strategy}, cloud: {conf.cloud.driver})

  console        {url}/   (break a host there, and watch it heal)
  reservations   {url}/reservation/v1   (Blazar v1)
  instance HA    {url}/instance-ha/v1   (Masakari v1)
  own API        {url}/holdfast/v1      (document: {url}/holdfast/v1/openapi.json)
  state and log  {state}

Three commands worth trying, in another terminal:

  {tool}{option} lease list
  {tool}{option} lease create my-first --hosts 2 --end +1h --where 'rack=rack-c' --wait
  {tool}{option} sim show

Ctrl-C stops it; everything is found again at the next start.
""",
        flush=True,
    )
