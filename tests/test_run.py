# SPDX-License-Identifier: Apache-2.0
"""tools/test: how it reads what pytest reports, what it prints, and how it ends."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from tests.processes import PATIENCE_S, eventually

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow("each of these runs pytest")

MIXED = """
import pytest

def test_good():
    pass

@pytest.mark.parametrize("word", ["a b", "x/y[z]", "it's"])
def test_with_words(word):
    assert word != "it's"

class TestInAClass:
    def test_bad(self):
        raise ValueError("bad")

@pytest.fixture
def cracked():
    yield
    raise OSError("cannot clean up")

def test_bad_twice(cracked):
    assert False

def test_not_here():
    pytest.skip("no such part")
"""


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The program as a module, with reports in a folder of this test."""
    loader = importlib.machinery.SourceFileLoader("run_tests", str(ROOT / "tools/test"))
    spec = importlib.util.spec_from_loader("run_tests", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_tests", module)
    loader.exec_module(module)
    monkeypatch.setattr(module, "REPORTS", tmp_path)
    monkeypatch.setattr(module, "PYTHON", sys.executable)
    return module


def suite(runner: ModuleType, folder: Path, text: str) -> object:
    """A suite of one file."""
    folder.mkdir()
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    options = (str(folder), "-p", "no:cacheprovider", "-p", "no:xdist")
    return runner.Suite(folder.name, options)


def test_every_suite_runs_and_every_failure_has_its_command(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A suite that fails, one that cannot be read and one that passes, side by side."""
    mixed = suite(runner, tmp_path / "mixed", MIXED)
    broken = suite(runner, tmp_path / "broken", "import nothing_of_this_name\n")
    good = suite(runner, tmp_path / "good", "def test_good(): pass\n")
    run = runner.Run([])
    run.one(mixed)
    run.results += run.side_by_side(lambda: run.track(broken), lambda: run.track(good))
    runner.summary(run.results, 60.0)
    said = capfd.readouterr().out
    lines = said.splitlines()
    counts = [line.split()[:4] for line in lines if line.startswith(("mixed ", "broken ", "good "))]
    assert counts == [["mixed", "3", "3", "1"], ["broken", "0", "2", "0"], ["good", "1", "0", "0"]]
    assert lines[-1] == "4 passed, 5 failed, 1 skipped"
    failed = [line for line in lines if line.startswith(f"    {sys.executable} -m pytest ")]
    assert len(failed) == 5
    assert any("test_it.py::TestInAClass::test_bad" in line for line in failed)
    assert "skipped: test_it.py::test_not_here: no such part" in said


def test_a_command_that_repeats_a_failure_repeats_it(runner: ModuleType, tmp_path: Path) -> None:
    """Odd characters in a test's name included."""
    folder = tmp_path / "mixed"
    run = runner.Run([])
    run.one(suite(runner, folder, MIXED))
    bad = [test.id for test in run.results[0].tests if test.outcome == "failed"]
    assert len(bad) == 3
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *bad]
    again = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert "3 failed, 1 error" in again.stdout


def test_a_suite_that_dies_is_a_failure(runner: ModuleType, tmp_path: Path) -> None:
    """Without a report nothing passed."""
    text = "import os\ndef test_dies(): os._exit(0)\n"
    run = runner.Run([])
    run.one(suite(runner, tmp_path / "dies", text))
    (result,) = run.results
    assert (result.count("passed"), result.count("failed")) == (0, 1)
    assert "pytest ended with 0 and 0 tests in its report" in result.trouble


def test_a_suite_that_does_not_end_is_ended_and_fails(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suites behind it still run."""
    monkeypatch.setattr(runner, "SUITE_LIMIT_S", 5)
    text = "import time\ndef test_hangs(): time.sleep(600)\n"
    run = runner.Run([])
    run.one(suite(runner, tmp_path / "hangs", text))
    assert run.results[0].count("failed") == 1


SLEEPY = """
import os, sys, time
from tests.processes import Program

def test_sleeps(tmp_path):
    sleeper = Program(["sleep", "63"], tmp_path).start()
    with open(os.environ["OUT"], "w") as out:
        print(os.getpid(), sleeper.pid, file=out)
    time.sleep(600)
"""

DRIVER = """
import importlib.machinery, importlib.util, sys
from pathlib import Path
loader = importlib.machinery.SourceFileLoader("run_tests", sys.argv[1])
spec = importlib.util.spec_from_loader("run_tests", loader)
module = sys.modules["run_tests"] = importlib.util.module_from_spec(spec)
loader.exec_module(module)
module.PYTHON, module.REPORTS = sys.executable, Path(sys.argv[3])
options = (sys.argv[2], "-p", "no:cacheprovider", "-p", "tests.conftest")
sleepy, later = module.Suite("sleepy", options), module.Suite("later", options)
module.Run.all = lambda self: self.side_by_side(lambda: self.track(sleepy, later))
sys.argv[1:] = []
sys.exit(module.main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process(
    runner: ModuleType, tmp_path: Path, number: signal.Signals
) -> None:
    """Neither pytest nor what a test started; the suite behind it does not begin."""
    suite(runner, tmp_path / "sleepy", SLEEPY)
    out = tmp_path / "out"
    run = subprocess.Popen(
        [sys.executable, "-c", DRIVER, ROOT / "tools/test", tmp_path / "sleepy", tmp_path / "xml"],
        cwd=ROOT,
        env={**os.environ, "OUT": str(out), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    with run:
        eventually(lambda: out.exists() and out.read_text().endswith("\n"))
        run.send_signal(number)
        run.communicate(timeout=PATIENCE_S)
    pids = [int(pid) for pid in out.read_text().split()]
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert run.returncode == (130 if number != signal.SIGKILL else -number)
