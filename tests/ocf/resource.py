# SPDX-License-Identifier: Apache-2.0
"""Our resource agents, asked as Pacemaker asks them: an action, parameters in the environment."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.processes import Kept
from tests.servers.base import search_path

OCF_ROOT = Path("/usr/lib/ocf")
#: What one action may take on a machine that is busy.
LONGEST_S = 240.0
OK, FAILED, ARGS, UNIMPLEMENTED, PERM, INSTALLED, CONFIGURED, NOT_RUNNING = range(8)


@dataclass(frozen=True)
class Done:
    code: int
    said: str


@dataclass
class Resource:
    """A resource of a cluster: which agent, with which parameters."""

    program: Path
    folder: Path
    parameters: dict[str, object]
    kept: list[Kept] = field(default_factory=list)

    def environment(self, *, probe: bool = False, **other: object) -> dict[str, str]:
        parameters = {**self.parameters, **other}
        return {
            "PATH": search_path(),
            "OCF_ROOT": str(OCF_ROOT),
            "OCF_RA_VERSION_MAJOR": "1",
            "OCF_RA_VERSION_MINOR": "0",
            "OCF_RESOURCE_INSTANCE": "holdfast",
            "OCF_RESKEY_CRM_meta_timeout": "240000",
            "OCF_RESKEY_CRM_meta_interval": "0" if probe else "10000",
            **{f"OCF_RESKEY_{name}": str(value) for name, value in parameters.items()},
        }

    def do(
        self,
        *words: str,
        probe: bool = False,
        root: Path = OCF_ROOT,
        account: str = "",
        **other: object,
    ) -> Done:
        """One action, to its end; `other` are parameters."""
        done = subprocess.run(
            [self.program, *words],
            env={**self.environment(probe=probe, **other), "OCF_ROOT": str(root)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
            user=account or None,
        )
        return Done(done.returncode, done.stdout + done.stderr)

    def begin(self, **other: object) -> Kept:
        """A start that is under way; what it leaves running ends with this resource."""
        return self._keep([self.program, "start"], self.environment(**other))

    def start(self, **other: object) -> Done:
        kept = self.begin(**other)
        code = kept.wait(LONGEST_S)
        return Done(code, kept.log.read_text())

    def test(self, tester: str) -> Done:
        """`ocf-tester` on it."""
        options = [
            word for name, value in self.parameters.items() for word in ("-o", f"{name}={value}")
        ]
        command = [tester, "-n", "holdfast", *options, self.program]
        kept = self._keep(command, {"PATH": search_path(), "HOME": str(self.folder)})
        code = kept.wait(2 * LONGEST_S)
        return Done(code, kept.log.read_text())

    def _keep(self, command: list[str | Path], env: dict[str, str]) -> Kept:
        kept = Kept(command, log=self.folder / f"{len(self.kept)}.out", env=env, cwd=self.folder)
        self.kept.append(kept)
        return kept

    @property
    def process(self) -> psutil.Process:
        """What its pidfile says."""
        pidfile = Path(str(self.parameters["pidfile"]))
        return psutil.Process(int(pidfile.read_text().split()[0]))

    def close(self) -> None:
        for kept in self.kept:
            kept.close()


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
