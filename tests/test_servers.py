# SPDX-License-Identifier: Apache-2.0
"""The servers and programs that other tests rest on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kombu
import psutil
import pytest
import sqlalchemy as sa

from tests.conftest import serve
from tests.processes import PATIENCE_S, Program, eventually, free_port
from tests.servers.base import Missing, Server
from tests.servers.mariadb import MariaDB
from tests.servers.postgresql import PostgreSQL
from tests.servers.rabbitmq import RabbitMQ

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> PostgreSQL | MariaDB:
    """Each database server in turn."""
    server: PostgreSQL | MariaDB = request.getfixturevalue(request.param)
    return server


def scalar(url: str, *statements: str) -> object:
    """Run some statements in one transaction; the value of the last."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements[:-1]:
            connection.execute(sa.text(statement))
        return connection.execute(sa.text(statements[-1])).scalar()


def names(url: str) -> list[str]:
    """The tables of a database."""
    return sa.inspect(sa.create_engine(url, poolclass=sa.NullPool)).get_table_names()


def test_fresh_database(database_url: str) -> None:
    """Every test gets an empty database that takes any text."""
    assert names(database_url) == []
    text = "Größe 尺寸 📏"
    insert = f"INSERT INTO t VALUES ('{text}')"
    create = "CREATE TABLE t (x VARCHAR(40))"
    assert scalar(database_url, create, insert, "SELECT x FROM t") == text


def test_databases_are_cheap_and_apart(database: PostgreSQL | MariaDB) -> None:
    """Making one needs no start of a server; dropping one takes its users along."""
    before = [process.pid for process in tree(database)]
    urls = [database.new_database() for _ in range(5)]
    assert database.kept is not None and database.kept.pid in before
    scalar(urls[0], "CREATE TABLE t (x INT)", "SELECT 1")
    assert [names(url) for url in urls] == [["t"], [], [], [], []]
    engine = sa.create_engine(urls[0])
    connection = engine.connect()
    connection.execute(sa.text("SELECT * FROM t"))
    for url in urls:
        database.drop_database(url)
    with pytest.raises(sa.exc.DBAPIError):
        scalar(urls[0], "SELECT 1")
    connection.invalidate()
    engine.dispose()


def test_database_survives_restart(database: PostgreSQL | MariaDB) -> None:
    """Stop, start, kill, start: same port, same data, no process left between."""
    url = database.new_database()
    scalar(url, "CREATE TABLE t (x INT)", "INSERT INTO t VALUES (7)", "SELECT 1")
    for end in (database.stop, database.kill):
        before = tree(database)
        end()
        assert not [process for process in before if process.is_running()]
        with pytest.raises(sa.exc.OperationalError):
            scalar(url, "SELECT 1")
        database.start()
        assert scalar(url, "SELECT x FROM t") == 7
    database.drop_database(url)


def test_database_paused(database: PostgreSQL | MariaDB) -> None:
    """A frozen server keeps its connections and does not answer."""
    url = database.new_database()
    scalar(url, "SELECT 1")
    with ThreadPoolExecutor() as pool:
        with database.paused():
            asking = pool.submit(scalar, url, "SELECT 42")
            with pytest.raises(TimeoutError):
                asking.result(timeout=0.5)
        assert asking.result(timeout=PATIENCE_S) == 42
    database.drop_database(url)


def test_rabbitmq(rabbitmq: RabbitMQ) -> None:
    """A persistent message outlives a restart; nothing runs in between."""
    url = rabbitmq.url.replace("rabbit:", "amqp:")

    with kombu.Connection(url) as connection:
        queue = connection.SimpleQueue("kept")
        queue.put({"x": 7})
        queue.close()
    before = tree(rabbitmq)
    assert any("beam" in process.name() for process in before)
    assert rabbitmq.epmd is not None
    before.append(psutil.Process(rabbitmq.epmd.pid))
    rabbitmq.stop()
    assert not [process for process in before if process.is_running()]
    rabbitmq.start()
    with kombu.Connection(url) as connection:
        with rabbitmq.paused(), pytest.raises(TimeoutError):
            kombu.Connection(url, connect_timeout=1).connect()
        queue = connection.SimpleQueue("kept")
        message = queue.get(timeout=PATIENCE_S)
        message.ack()
        queue.close()
    assert message.payload == {"x": 7}


def tree(server: Server) -> list[psutil.Process]:
    """The processes of a server."""
    assert server.kept is not None
    found = server.kept.tree()
    assert found
    return found


def test_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the binaries: skip with the reason, fail in CI."""

    class Absent(PostgreSQL):
        def find(self) -> None:
            raise Missing("Absent", "absent")

    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install absent"):
        next(serve(Absent()))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install absent"):
        next(serve(Absent()))


# programs

SERVE = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print("here", flush=True)
handler = http.server.SimpleHTTPRequestHandler
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
"""


def test_program(tmp_path: Path) -> None:
    """Start, wait, end, start again, kill."""
    port = free_port()
    assert port != free_port()
    program = Program([sys.executable, "-c", SERVE, str(port)], tmp_path, name="web")
    with program.start():
        assert program.wait_http(f"http://127.0.0.1:{port}/") == 200
        assert program.terminate() == 3
        assert program.poll() == 3
        program.start()
        program.wait_http(f"http://127.0.0.1:{port}/none")
        assert program.tail().count("here") == 2
        program.kill()
        assert program.poll() == -signal.SIGKILL
        with pytest.raises(AssertionError, match="web ended with"):
            program.wait_until(lambda: False)


def test_program_that_does_not_end(tmp_path: Path) -> None:
    """terminate says which program, and shows its log."""
    code = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('deaf', flush=True)\n"
        "time.sleep(60)\n"
    )
    with Program([sys.executable, "-c", code], tmp_path) as program:
        program.wait_until(lambda: "deaf" in program.tail())
        with pytest.raises(AssertionError, match=r"still runs after 0\.2 s\n(?s:.)*deaf"):
            program.terminate(0.2)


def test_program_that_leaves_a_child(tmp_path: Path) -> None:
    """A child that outlives its parent, even as a daemon, is found and ended."""
    code = (
        "import subprocess, sys, time\n"
        "left = subprocess.Popen(['sleep', '61'], start_new_session=True)\n"
        "print(left.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    program = Program([sys.executable, "-c", code], tmp_path, name="parent").start()
    program.wait_until(lambda: program.log.exists() and program.log.read_text())
    child = psutil.Process(int(program.log.read_text()))
    with pytest.raises(AssertionError, match=r"left behind \['\d+ sleep 61'\]"):
        program.terminate(children_s=0.5)
    assert not child.is_running()


def test_eventually() -> None:
    """It returns the answer, or fails with the last one."""
    answers = iter([0, None, 5])
    assert eventually(lambda: next(answers), every=0.001) == 5
    with pytest.raises(AssertionError, match=r"not within 0\.01 s; last: \[\]"):
        eventually(lambda: [], 0.01, 0.001)


# the end of a session

SLOPPY = """
import os, signal, time
from tests.processes import Program
from tests.servers import PostgreSQL

def test_sloppy(tmp_path):
    # ignored when this runs in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = [Program(["sleep", "62"], tmp_path).start().kept]
    folder = tmp_path
    if "SERVER" in os.environ:
        server = PostgreSQL().start()
        folder = server.folder
        started.append(server.kept)
    with open(os.environ["OUT"], "w") as out:
        print(*[kept.pid for kept in started], folder, file=out)
    time.sleep(float(os.environ["NAP"]))
"""


@pytest.mark.parametrize("end", ["left", "interrupted", "killed"])
def test_session_leaves_nothing(end: str, tmp_path: Path, postgresql: PostgreSQL) -> None:
    """A run that leaves processes behind fails, and however it ends they end."""
    (tmp_path / "test_sloppy.py").write_text(SLOPPY)
    out = tmp_path / "out"
    environment = {**os.environ, "OUT": str(out), "NAP": "0", "PYTHONPATH": str(ROOT)}
    if end != "left":
        environment |= {"NAP": "60", "SERVER": ""}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "test_sloppy.py"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as session:
        eventually(lambda: out.exists() and out.read_text().endswith("\n"))
        if end != "left":
            number = signal.SIGINT if end == "interrupted" else signal.SIGKILL
            session.send_signal(number)
        said = session.communicate(timeout=PATIENCE_S)[0]
    *pids, folder = out.read_text().split()
    eventually(lambda: not [pid for pid in pids if psutil.pid_exists(int(pid))])
    eventually(lambda: end == "left" or not Path(folder).exists())
    if end == "left":
        assert session.returncode == 1, said
        assert "left running by a test, ended now:" in said
        assert "sleep 62" in said
