# SPDX-License-Identifier: Apache-2.0
"""The sample configurations of agents: Consul takes them, and they say what the docs say."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.base import Missing, which
from tests.servers.networks import Namespace, NotRoot

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "etc" / "consul"
AGENTS = sorted(SAMPLES.glob("*/*.hcl"))
NETWORKS = ("manage", "tenant", "storage")


@pytest.fixture(scope="module")
def host() -> Iterator[Namespace]:
    """A host with an address on each of the networks that the samples name."""
    missing = None
    if which("consul") is None:
        missing = Missing("Consul", "consul")
    elif os.geteuid() != 0:
        missing = NotRoot()
    if missing is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    made = Namespace()
    for number, network in enumerate(NETWORKS, 1):
        made.ip(
            f"link add {network} type veth peer name other{number}",
            f"addr add 10.{number}.0.14/24 dev {network}",
            f"link set {network} up",
            f"link set other{number} up",
        )
    yield made
    made.close()


def validate(host: Namespace, *files: Path) -> str:
    consul = which("consul")
    assert consul is not None
    done = host.do(
        lambda: subprocess.run(
            [consul, "validate", *map(str, files)], capture_output=True, text=True, check=False
        )
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_is_a_sample_for_each_network_of_both_kinds_of_hosts() -> None:
    names = {str(path.relative_to(SAMPLES)) for path in AGENTS}
    assert names == {f"{role}/{net}.hcl" for role in ("compute", "controller") for net in NETWORKS}


@pytest.mark.parametrize("path", AGENTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_consul_takes_the_sample(host: Namespace, path: Path) -> None:
    assert "Configuration is valid!" in validate(host, path)


@pytest.mark.parametrize("role", ["compute", "controller"])
def test_consul_takes_the_sample_with_tokens_and_certificates(host: Namespace, role: str) -> None:
    validate(host, SAMPLES / role / "storage.hcl", SAMPLES / "secured.hcl")


def test_a_sample_with_an_error_in_it_is_found_out(host: Namespace, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.hcl"
    wrong.write_text((SAMPLES / "compute" / "manage.hcl").read_text() + 'retry_joni = ["x"]\n')
    with pytest.raises(AssertionError, match="retry_joni"):
        validate(host, wrong)


def test_the_agents_of_one_host_do_not_meet_each_other() -> None:
    for role in ("compute", "controller"):
        texts = [(SAMPLES / role / f"{network}.hcl").read_text() for network in NETWORKS]
        for pattern in (r"http +=.*", r"data_dir +=.*", r"datacenter +=.*", r"bind_addr +=.*"):
            assert len({re.search(pattern, text)[0] for text in texts}) == len(NETWORKS)  # type: ignore[index]


def test_the_samples_and_the_docs_name_the_same_ports() -> None:
    docs = (ROOT / "docs/install/consul.md").read_text()
    for path in AGENTS:
        port = re.search(r"http +=\s*(\d+)", path.read_text())
        assert port is not None
        assert f"`{path.stem}`" in docs
        assert port[1] in docs


def test_the_unit_starts_an_agent_of_any_network() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(SAMPLES / "holdfast-consul@.service")
    assert unit["Service"]["ExecStart"] == "/usr/bin/consul agent -config-file=/etc/consul/%i.hcl"
    assert unit["Service"]["Restart"] == "always"
