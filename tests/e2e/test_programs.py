# SPDX-License-Identifier: Apache-2.0
"""The programs themselves: start, signals, reload, health, what they import and refuse."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from holdfast import conf as configuration
from holdfast.app import service
from holdfast.cli.status import findings
from holdfast.client.client import Client
from holdfast.client.errors import NotFound
from holdfast.db import migrations
from tests.api.views import UP, view_body
from tests.e2e.deployment import (
    Deployment,
    all_in_one,
    host_lease,
    separate,
    soon,
    wire_date,
    write_config,
)
from tests.processes import PATIENCE_S, Program, answers, eventually, free_port, script
from tests.servers.mariadb import MariaDB
from tests.servers.rabbitmq import RabbitMQ

PROGRAMS = (
    *(f"holdfast.cmd.{name}" for name in ("client", "api", "manager", "hostmonitor", "agent")),
    "holdfast.cli.up",
)
#: A program that imports everything needs two seconds; beside two test runs and four burners one
#: took more than 90.
START_S = 3 * PATIENCE_S
#: Of these the agent of a host, which lives beside customers' guests, has none.
HEAVY = ("openstack", "oslo_messaging", "sqlalchemy", "falcon", "keystoneauth1", "numpy")


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """One of our commands, to its end."""
    return subprocess.run(
        [str(word) for word in (script("holdfast"), *words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


def test_the_agent_is_light() -> None:
    code = f"import holdfast.cmd.agent, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_program_loads_eventlet() -> None:
    """One after the other, so that it is seen which does."""
    others = ("app.service", "drivers.rabbit.rpc", "app.demo", "db.migrations")
    modules = (
        *PROGRAMS,
        *(f"holdfast.{other}" for other in others),
        "keystonemiddleware.auth_token",
    )
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert sys.modules.get('eventlet') is None, name\n"
        "    assert not [m for m in sys.modules if m.startswith('eventlet.')], name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


ENFORCEMENTS = [
    {"enabled_filters": "duration", "max_lease_duration": 3600, "max_leases": 1},
    {"enabled_filters": "external", "external_service_base_endpoint": "http://127.0.0.1:9"},
]


@pytest.mark.parametrize("enforcement", ENFORCEMENTS, ids=["rule and quota", "service away"])
def test_up_starts_on_a_fresh_state_where_the_demo_leases_break_the_rules(
    tmp_path: Path, enforcement: dict[str, Any]
) -> None:
    with all_in_one(tmp_path, {"enforcement": enforcement}) as (program, client):
        eventually((tmp_path / "state" / "populated").exists)
        assert client.leases.list() == []
        assert program.terminate() == 0
    assert "demo lease nightly-tests: " in (tmp_path / "state" / "holdfast.log").read_text()


def test_a_running_process_has_no_eventlet_either(tmp_path: Path) -> None:
    """`holdfast up` with everything in it, asked from inside by a handler it does not have."""
    port = free_port()
    code = (
        "import sys, threading, os, signal, time, urllib.request\n"
        "def ready():\n"
        "    try:\n"
        f"        return urllib.request.urlopen('http://127.0.0.1:{port}/readyz').status == 200\n"
        "    except OSError:\n"
        "        return False\n"
        "def look():\n"
        "    while not ready():\n"
        "        time.sleep(0.2)\n"
        "    loaded = sys.modules.get('eventlet')\n"
        "    sys.stdout.write(f'eventlet: {loaded}\\n')\n"
        "    sys.stdout.flush()\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Thread(target=look, daemon=True).start()\n"
        "from holdfast.cmd.client import main\n"
        f"sys.exit(main(['up', '--state', {str(tmp_path)!r}, '--port', '{port}']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "eventlet: None" in done.stdout


def test_up_says_where_things_are_and_refuses_the_world_under_noauth(tmp_path: Path) -> None:
    refused = run("up", "--host", "0.0.0.0", "--state", tmp_path / "s", cwd=tmp_path)
    assert refused.returncode == 1
    assert "noauth" in refused.stderr and "loopback" in refused.stderr
    probes = free_port()
    with all_in_one(tmp_path / "up", {"api": {"health_port": probes}}) as (program, client):
        assert answers(f"http://127.0.0.1:{probes}/metrics") == 200
        assert answers(f"{client.url}/metrics") == 404
        said = eventually(lambda: text if "Ctrl-C" in (text := program.log.read_text()) else "")
        for part in ("/reservation/v1", "/instance-ha/v1", "/holdfast/v1", "lease create"):
            assert part in said
        taken = run("up", "--state", tmp_path / "up" / "state", cwd=tmp_path)
        assert taken.returncode == 1 and "in use" in taken.stderr
        port = client.url.rsplit(":", 1)[1]
        other = run("up", "--state", tmp_path / "other", "--port", port, cwd=tmp_path)
        assert other.returncode == 1 and "cannot listen" in other.stderr


def test_up_reports_a_failed_start_and_ends(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "holdfast.db").write_text("this is no database, not at all")
    (tmp_path / "file").write_text("")
    for state, why in (("bad", "not a database"), ("file", "cannot be used")):
        port = str(free_port())
        done = run("up", "--state", tmp_path / state, "--port", port, cwd=tmp_path)
        assert done.returncode == 1
        assert why in done.stderr.splitlines()[-1] and len(done.stderr.splitlines()) <= 3


FORGED = "x\n2026-01-01 00:00:00.000 1 INFO forged\r\x1b[2J\x85\u2028y"


def test_no_foreign_text_begins_a_line_of_the_log(tmp_path: Path) -> None:
    """Each line of the log begins with a date of the log's own; tracebacks too."""
    with all_in_one(tmp_path, {"DEFAULT": {"debug": True}}) as (program, client):
        with pytest.raises(NotFound):
            client.leases.show(FORGED)
        with socket.create_connection(("127.0.0.1", int(client.url.rpartition(":")[2]))) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nHost: a\x1b[2J\x85b\r\nConnection: close\r\n\r\n")
            raw.recv(100)
        state = tmp_path / "state"
        modes = {path.name: path.stat().st_mode & 0o777 for path in (state, *state.glob("holdf*"))}
        assert modes.pop("state") == 0o700
        assert set(modes.values()) == {0o600} and {"holdfast.db", "holdfast.log"} <= modes.keys()
        program.terminate()
    code = (
        "import logging, sys\nfrom holdfast import conf\nc = conf.load([], [])\n"
        "conf.set_up_logging(c, 'test')\nlog = logging.getLogger('holdfast.test')\n"
        "log.warning('guest %s of user %s', sys.argv[1], sys.argv[1])\n"
        "try:\n    raise ValueError(sys.argv[1])\nexcept ValueError:\n"
        "    log.exception('unforeseen')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, FORGED], capture_output=True, text=True, check=True
    )
    assert {"Traceback", "forged"} <= set(re.findall(r"\w+", done.stderr + done.stdout))
    for text in ((state / "holdfast.log").read_text(), done.stdout + done.stderr):
        assert "forged" in text
        assert not set("\r\x1b\x85\u2028") & set(text)
        for line in text.splitlines():
            assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \d+ [A-Z]+ ", line), line
            assert not line.startswith("2026-01-01 00:00:00.000")


def test_a_second_start_is_quick(tmp_path: Path) -> None:
    """3 s is the promise; five times that is the net against collapse: of its own time, because
    others may have the processors."""
    with all_in_one(tmp_path) as (program, _client):
        program.terminate()
    with all_in_one(tmp_path) as (program, _client):
        used = psutil.Process(program.pid).cpu_times()
    assert used.user + used.system < 15, f"a second start took {used}"


def test_sighup_reads_mutable_options_again_in_a_running_process(tmp_path: Path) -> None:
    with all_in_one(tmp_path, {"reservation": {"minutes_before_end_lease": 60}}) as (
        program,
        client,
    ):

        def before_end(name: str) -> str:
            start, end = soon(7200), soon(14400)
            lease = client.leases.create(
                name, start_date=wire_date(start), end_date=wire_date(end), reservations=[]
            )
            times = {event["event_type"]: event["time"] for event in lease["events"]}
            return times.get("before_end_lease", "none")

        assert before_end("first") != "none"
        log = tmp_path / "state" / "holdfast.log"
        debug = len([line for line in log.read_text().splitlines() if " DEBUG " in line])
        write_config(
            tmp_path / "up.conf",
            {"DEFAULT": {"debug": True}, "reservation": {"minutes_before_end_lease": 0}},
        )
        program.signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in log.read_text())
        assert before_end("second") == "none"
        client.leases.list()
        assert len([x for x in log.read_text().splitlines() if " DEBUG " in x]) > debug

        (tmp_path / "up.conf").write_text("[reservation\nbroken")
        program.signal(signal.SIGHUP)
        eventually(lambda: "the old one stays" in log.read_text())
        assert before_end("third") == "none"


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, mariadb: MariaDB, rabbitmq: RabbitMQ
) -> Iterator[Deployment]:
    """An API and a manager as programs of their own, on MariaDB."""
    folder, url = tmp_path_factory.mktemp("programs"), mariadb.new_database()
    with separate(folder, url, rabbitmq.url, apis=1, managers=1) as made:
        yield made


def answered(base: str) -> Any:
    """Whether it is ready, as it says itself."""
    return requests.get(f"{base}/readyz", timeout=PATIENCE_S).json()


def test_separate_programs_on_mariadb_serve_health_and_reload(deployment: Deployment) -> None:
    for program in (*deployment.apis, *deployment.managers):
        assert "Umask:\t0077" in Path(f"/proc/{program.pid}/status").read_text()
    client = deployment.client()
    client.hosts.create("host-000", {"gpu": "True"})
    lease = client.leases.create(
        "on-mariadb", end_date=wire_date(soon(3600)), reservations=[host_lease(1, 1)]
    )
    eventually(lambda: client.leases.show(lease["id"])["status"] == "ACTIVE")
    well = {"status": "ok", "database": "ok", "rpc": "ok"}
    for base in (*deployment.urls, *deployment.health_urls):
        assert requests.get(f"{base}/healthcheck", timeout=PATIENCE_S).text == "OK"
        assert requests.get(f"{base}/livez", timeout=PATIENCE_S).status_code == 200
        # which asks the other side, and has little patience with it
        eventually(lambda base=base: answered(base) == well)
        shown = requests.get(f"{base}/metrics", timeout=PATIENCE_S).text
        assert "holdfast_operations_open" in shown
    counted = 'holdfast_operations_ended_total{kind="lease_start",status="done"} 1.0'
    manager = f"{deployment.health_urls[0]}/metrics"
    # what starts a lease goes on a little after the lease is active
    eventually(lambda: counted in requests.get(manager, timeout=PATIENCE_S).text)
    for program in (*deployment.apis, *deployment.managers):
        program.signal(signal.SIGHUP)
        program.wait_until(lambda p=program: "configuration reloaded" in p.log.read_text())
        assert "Traceback" not in program.log.read_text()


def test_request_ids_are_in_the_log_lines_of_api_and_manager(deployment: Deployment) -> None:
    body = {"name": "x", "start_date": "now", "end_date": "2020-01-01 00:00"}
    there = f"{deployment.urls[0]}/reservation/v1/leases"
    answer = requests.post(there, json=body, timeout=PATIENCE_S)
    assert answer.status_code == 400
    request_id = answer.headers["x-openstack-request-id"]
    for program in (deployment.apis[0], deployment.managers[0]):
        program.wait_until(lambda p=program: request_id in p.log.read_text())


#: As docs/operate/running.md starts them.
WSGI_SERVERS = {
    "gunicorn": "--workers 2 --threads 4 --bind 127.0.0.1:PORT holdfast.wsgi:application",
    "uwsgi": "--master --lazy-apps --enable-threads --die-on-term --need-app --processes 2"
    " --threads 4 --http-socket 127.0.0.1:PORT --module holdfast.wsgi:application",
}


@pytest.mark.parametrize("name", WSGI_SERVERS)
def test_another_server_serves_the_wsgi_application(
    deployment: Deployment, tmp_path: Path, name: str
) -> None:
    port, log, config = free_port(), tmp_path / "api.log", tmp_path / "api.conf"
    shared = (deployment.folder / "manager-0.conf").read_text()
    config.write_text(shared.replace("[DEFAULT]", f"[DEFAULT]\nlog_file = {log}"))
    command = [script(name), *WSGI_SERVERS[name].replace("PORT", str(port)).split()]
    with Program(command, tmp_path, env={"HOLDFAST_CONFIG": str(config)}, name=name) as server:
        base = f"http://127.0.0.1:{port}"
        server.wait_http(f"{base}/readyz")
        with contextlib.closing(Client(base, timeout_s=PATIENCE_S)) as client:
            host = client.hosts.create("host-001", {})
            assert "host-001" in [host["hypervisor_hostname"] for host in client.hosts.list()]
            assert "host-001" in str(deployment.simulator.effects(call="pools.add_host"))
            _attack(port, f"/reservation/v1/os-hosts/{host['id']}")
            client.hosts.delete(host["id"])
        assert "every user and program of this machine is an admin" in log.read_text()
        assert log.stat().st_mode & 0o777 == 0o600
        server.terminate()


def _attack(port: int, host: str) -> None:
    """Everything that the embedded server refuses is refused under another server too."""
    here, chunks = f"Host: 127.0.0.1:{port}", "Transfer-Encoding: chunked"
    for line in ("Host: cloud.example", f"{here}\r\nVia: 1.1 x", f"{here}\r\nX-Real-IP: ::1"):
        assert _statuses(port, f"GET {host} HTTP/1.1\r\n{line}\r\n\r\n") == [403]
    assert _statuses(port, f"GET {host} HTTP/1.0\r\n{here}\r\n\r\n") == [403]
    delete = f"DELETE {host} HTTP/1.1\r\n{here}\r\n\r\n"
    for framing in (
        f"Content-Length: 5\r\n{chunks}",
        f"{chunks}\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 99",
        f"{chunks}\r\n{chunks}",
        f"Transfer-Encoding : chunked\r\nContent-Length: {len(delete) + 5}",
    ):
        start = f"POST /reservation/v1/os-hosts HTTP/1.1\r\n{here}\r\n{framing}\r\n\r\n"
        (status,) = _statuses(port, f"{start}0\r\n\r\n{delete}")
        assert status >= 400, framing
    assert _statuses(port, f"GET {host} HTTP/1.1\r\n{here}\r\nConnection: close\r\n\r\n") == [200]
    # a body in chunks is read or refused, and never taken for an empty body
    plan = f"POST /holdfast/v1/repair/plan HTTP/1.1\r\n{here}\r\n{chunks}\r\n\r\n"
    (status,) = _statuses(port, plan + 'd\r\n{"colour": 1}\r\n0\r\n\r\n')
    assert status in (400, 411)
    large = f"http://127.0.0.1:{port}/reservation/v1/os-hosts"
    assert requests.post(large, b"[" * 13_000_000, timeout=PATIENCE_S).status_code == 413


def _statuses(port: int, sent: str) -> list[int]:
    """Return the status of every answer until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as line:
        line.sendall(sent.encode())
        line.shutdown(socket.SHUT_WR)
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while got := line.recv(65536):
                heard += got
    return [int(found) for found in re.findall(rb"HTTP/1\.[01] (\d{3}) ", heard)]


def test_programs_name_missing_options(tmp_path: Path) -> None:
    config = write_config(tmp_path / "x.conf", {"DEFAULT": {"auth_strategy": "noauth"}})
    for name in ("holdfast-api", "holdfast-manager"):
        done = subprocess.run(
            [str(script(name)), "--config-file", str(config)],
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 1
        assert "transport_url is not set" in done.stderr


@pytest.mark.slow("commands of which each loads for a second")
def test_db_and_status_and_config_commands(tmp_path: Path) -> None:
    config = write_config(
        tmp_path / "x.conf",
        {
            "database": {"connection": f"sqlite:///{tmp_path / 'x.db'}"},
            "sim": {"database": tmp_path / "sim.db"},
        },
    )
    empty = run("db", "version", "--config", config, "-f", "json", cwd=tmp_path)
    assert empty.returncode == 1
    assert json.loads(empty.stdout)["database"] == "empty"
    status = run("status", "--config", config, "-f", "json", cwd=tmp_path)
    assert status.returncode == 2
    rows = {row["check"]: row for row in json.loads(status.stdout)}
    assert "holdfast db sync" in rows["database"]["what"]

    first = run("db", "sync", "--config", config, cwd=tmp_path)
    assert first.returncode == 0 and "empty" in first.stdout
    again = run("db", "sync", "--config", config, cwd=tmp_path)
    assert again.returncode == 0 and "already" in again.stdout
    fit = run("status", "--config", config, cwd=tmp_path)
    assert fit.returncode == 1, "noauth and an empty cloud are warnings\n" + fit.stdout

    bad = write_config(tmp_path / "bad.conf", {"manager": {"workers": "many"}})
    wrong = run("status", "--config", bad, "-f", "json", cwd=tmp_path)
    assert wrong.returncode == 2 and "workers" in wrong.stdout

    sample = run("config", "sample", cwd=tmp_path)
    assert sample.returncode == 0
    for expected in ("[manager]", "#workers = 256", "#auth_strategy = noauth", "#debug = false"):
        assert expected in sample.stdout


def test_status_names_the_command_for_each_file_that_others_can_reach(tmp_path: Path) -> None:
    secrets = {
        name: tmp_path / name for name in ("secret", "token", "webhook", "bmc", "fences.yaml")
    }
    for name, path in secrets.items():
        path.write_text(f"{name}\n" * 8)
    secrets["fences.yaml"].write_text(
        "hosts:\n  a: {driver: redfish, address: 192.0.2.1, user: u,"
        f" password_file: {secrets['bmc']}, system: /redfish/v1/Systems/1}}\n"
    )
    state = tmp_path / "state"
    state.mkdir()
    secrets |= {"db": state / "x.db", "log": state / "x.log", "state": state}
    secrets["guests"] = tmp_path / "libvirt.db"
    config = write_config(
        tmp_path / "x.conf",
        {
            "DEFAULT": {"log_file": secrets["log"]},
            "auth": {"agent_secret_file": secrets["secret"]},
            "agent": {"token_file": secrets["token"]},
            "publishers": {"webhook_secret_file": secrets["webhook"]},
            "fencing": {"devices_file": secrets["fences.yaml"]},
            "database": {"connection": f"sqlite:///{secrets['db']}"},
            "libvirt": {"state": secrets["guests"]},
        },
    )
    secrets["config"] = config
    for path in (secrets["db"], secrets["log"], secrets["guests"]):
        path.touch()

    def said() -> tuple[str, str]:
        return next(row[1:] for row in findings([str(config)], None) if row[0] == "files")

    for path in secrets.values():
        path.chmod(0o750)
    assert said() == ("ok", f"{len(secrets)} files and folders are closed to other users")
    for path in secrets.values():
        path.chmod(0o755)
        result, what = said()
        assert (result, what.partition(": ")[2]) == ("warning", f"chmod o-rwx {path}")
        path.chmod(0o750)


def test_status_warns_of_monitors_without_a_vote_and_of_consul_clusters_too_small_to_prove(
    tmp_path: Path,
) -> None:
    config = write_config(
        tmp_path / "x.conf",
        {
            "database": {"connection": f"sqlite:///{tmp_path / 'x.db'}"},
            "sim": {"database": tmp_path / "sim.db"},
        },
    )

    def found() -> tuple[str, str]:
        rows = {check: (result, what) for check, result, what in findings([str(config)], None)}
        return rows["host monitors"]

    assert found() == ("warning", "the database cannot be read")
    assert not (tmp_path / "x.db").exists()
    with contextlib.closing(service.Core(configuration.load([], [str(config)]))) as core:
        migrations.sync(core.store.database)
        assert found() == ("ok", "reported lately: none")
        sent = view_body((UP, "none", ["cmp-1"]))
        core.store.monitors.put("ctl-1", datetime.fromisoformat(sent.pop("at")), sent)
        not_registered = "not registered, so without a vote (`holdfast monitor register`): ctl-1"
        assert found() == ("warning", not_registered)
        core.store.monitors.register("ctl-1", "ann")
        core.store.monitors.put("ctl-1", datetime.now(UTC), sent)
        assert found() == ("ok", "reported lately: ctl-1")
        core.store.monitors.register("ctl-2", "ann")
        assert found() == (
            "warning",
            "2 monitors are registered: if they differ no host fails; register 3",
        )
        core.store.monitors.unregister("ctl-2")
        sight = {**sent["networks"]["storage"], "warning": "the cluster has 1 server"}
        sent["networks"] = {**sent["networks"], "storage": sight}
        core.store.monitors.put("ctl-1", datetime.now(UTC), sent)
        assert found() == ("warning", "ctl-1: storage: the cluster has 1 server")


def test_the_manager_notifies_systemd_when_it_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ears:
        ears.bind(str(path))
        ears.settimeout(PATIENCE_S)
        state = tmp_path / "state"
        command = [script("holdfast"), "up", "--state", state, "--port", str(free_port())]
        with Program(command, tmp_path, env={"NOTIFY_SOCKET": str(path)}, name="up") as program:
            assert ears.recv(100) == b"READY=1"
            program.signal(signal.SIGTERM)
            assert ears.recv(100) == b"STOPPING=1"
            assert program.kept.wait(PATIENCE_S) == 0


def test_no_signal_is_lost_however_many_come(tmp_path: Path) -> None:
    """A stop right among reloads: the handlers must not wait for a lock of the main thread."""
    code = (
        "from holdfast import conf; from holdfast.app.daemon import Daemon\n"
        "made = conf.load([], [])\n"
        "raise SystemExit(Daemon(made, []).run(started=lambda: print('up', flush=True)))\n"
    )
    for _ in range(3):
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            for _number in range(500):
                process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
