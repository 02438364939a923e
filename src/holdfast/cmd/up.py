# SPDX-License-Identifier: Apache-2.0
"""`holdfast up`: everything in one process, on SQLite and a simulated cloud."""

import argparse
import contextlib
import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cliff.command import Command
from oslo_config import cfg

from holdfast import conf as configuration
from holdfast.client.commands import Base
from holdfast.daemon import BadSetup
from holdfast.model.errors import HoldfastError


class Up(Base, Command):
    """Run everything in one process: API, manager, SQLite, a simulated cloud.

    State is kept in the state folder and found again at the next start.
    """

    example = "  holdfast up --state ~/holdfast --port 8780"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
        parser.add_argument("--port", type=int, help="port to listen on (default 8780)")
        parser.add_argument(
            "--state",
            default="state",
            metavar="DIR",
            help="folder for databases and log (default ./state)",
        )
        parser.add_argument("--config", metavar="FILE", help="configuration file")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        state = Path(parsed_args.state).expanduser().resolve()
        state.mkdir(parents=True, exist_ok=True)
        try:
            with _alone(state):
                return _run(_conf(parsed_args, state), state)
        except (BadSetup, HoldfastError, cfg.Error) as error:
            sys.stderr.write(f"holdfast up: {error}\n")
            return 1


def _conf(args: argparse.Namespace, state: Path) -> cfg.ConfigOpts:
    conf = configuration.load([], [args.config] if args.config else [])
    conf.set_default("connection", f"sqlite:///{state / 'holdfast.db'}", group="database")
    conf.set_default("database", str(state / "sim.db"), group="sim")
    conf.set_default("log_file", str(state / "holdfast.log"))
    if args.host:
        conf.set_override("host", args.host, group="api")
    if args.port is not None:
        conf.set_override("port", args.port, group="api")
    return conf


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    """One process per state folder."""
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
    from holdfast import demo, service
    from holdfast.daemon import Daemon, Stopping
    from holdfast.store import migrations

    service.check_bind(conf, conf.api.host)
    configuration.set_up_logging(conf, "holdfast")
    core = service.Core(conf)
    migrations.sync(core.store.database)
    simulated = conf.cloud.driver == "sim"
    if simulated:
        from holdfast.drivers.cloud.sim import Simulator

        demo.prepare(Simulator(conf.sim.database, core.clock))
    manager = service.ManagerPart(core, service.connect_cloud(conf, core.clock))
    services = service.api_services(
        core, manager.commands, loop_age_s=manager.loop.age_s, embedded=True
    )
    application = service.application(core, services)
    server = service.Server(conf.api.host, conf.api.port, application, conf.api.threads)

    class Manager:
        def start(self) -> None:
            manager.start()
            if simulated:
                demo.populate(manager, state / "populated", core.clock.now())

        stop = staticmethod(manager.stop)

    daemon = Daemon(conf, [Stopping(core.close), Manager(), server])
    return daemon.run(started=lambda: _greet(conf, state))


def _greet(conf: cfg.ConfigOpts, state: Path) -> None:
    host = f"[{conf.api.host}]" if ":" in conf.api.host else conf.api.host
    url = f"http://{host}:{conf.api.port}"
    option = "" if url == "http://127.0.0.1:8780" else f" --url {url}"
    tool = sys.argv[0] if sys.argv[0].endswith("holdfast") else "holdfast"
    with contextlib.suppress(ValueError):
        tool = str(Path(tool).resolve().relative_to(Path.cwd()))
    print(
        f"""
Holdfast is up (authentication: {conf.auth_strategy}, cloud: {conf.cloud.driver})

  console        {url}/
  reservations   {url}/reservation/v1   (Blazar v1)
  instance HA    {url}/instance-ha/v1   (Masakari v1)
  own API        {url}/holdfast/v1      (document: {url}/holdfast/v1/openapi.json)
  state and log  {state}

Three commands worth trying, in another terminal:

  {tool}{option} lease list
  {tool}{option} lease create my-first --hosts 2 --end +1h --wait
  {tool}{option} sim show

Ctrl-C stops it; everything is found again at the next start.
""",
        flush=True,
    )
