# SPDX-License-Identifier: Apache-2.0
"""Every action shows the command that does the same. All pages of a house where much has happened
are walked; what they show is understood by the real `holdfast`, names what there is, and, where it
only looks, is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from html import unescape
from itertools import groupby
from pathlib import Path
from urllib.parse import urlencode

import pytest

from holdfast.cmd.client import HoldfastApp, main
from tests.api.house import LEASES, copy
from tests.console.people import Person
from tests.console.site import Site
from tests.console.test_wall import QUIET
from tests.console.tour import UUID, furnish, walked

#: Placeholders: words in capitals, and file names.
FILLED = {
    **{"TEXT": "because", "HOST": "cmp-1", "RACK": "rack-a", "NETWORK": "storage", "NAME": "n"},
    **{"SEGMENT": "north", "DATE": "+2h", "ID": "x"},
}
#: Commands that change nothing run for real; a new lease runs as a dry run.
LOOKS = {"list", "show", "explain", "status", "health", "export", "what-if", "plan"}
LOOKS |= {"availability"}
DRY = {"lease create", "lease set"}


@pytest.fixture(scope="module")
def site(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    state = copy(furnished, tmp_path_factory.mktemp("commands") / "state")
    with Site(state, QUIET) as made:
        furnish(made)
        yield made


# Commands on the pages


def shown(text: str) -> list[list[str]]:
    """Return the commands of a page, split into words."""
    lines = re.findall(r"<code data-copy>(.*?)</code>", text, re.DOTALL)
    return [
        [*words]
        for line in lines
        for joins, words in groupby(shlex.split(unescape(line)), lambda word: word == "&&")
        if not joins
    ]


@pytest.fixture(scope="module")
def commands(site: Site) -> dict[tuple[str, ...], str]:
    """Return each command with the first page that shows it."""
    found: dict[tuple[str, ...], str] = {}
    for path, text in walked(site):
        for words in shown(text):
            found.setdefault(tuple(words), path)
    return found


def filled(words: Sequence[str]) -> list[str]:
    return [FILLED.get(word, word) for word in words]


# Checks


def test_the_client_parses_every_command(
    commands: dict[tuple[str, ...], str], capsys: pytest.CaptureFixture[str]
) -> None:
    app, wrong = HoldfastApp(), []
    for words, path in commands.items():
        assert words[0] == "holdfast", (path, words)
        try:
            factory, name, rest = app.command_manager.find_command(filled(words[1:]))
            factory(app, None, name).get_parser(f"holdfast {name}").parse_args(rest)
        except (SystemExit, ValueError):
            wrong.append((path, shlex.join(words), capsys.readouterr().err.splitlines()[-1:]))
    assert not wrong, wrong
    assert len(commands) > 60


def test_every_id_in_a_command_exists(site: Site, commands: dict[tuple[str, ...], str]) -> None:
    known = "\n".join(site.dump())
    hosts = {host["name"] for host in site.services.sim().world()["hosts"]}
    for words, path in commands.items():
        for word in words:
            assert not re.fullmatch(r"cmp-\w+", word) or word in hosts, (path, words)
            assert not UUID.fullmatch(word) or word in known, (path, words)


def test_every_read_only_command_succeeds(
    site: Site,
    commands: dict[tuple[str, ...], str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", site.url)
    leases, run, wrong = site.call("GET", LEASES).json, set[str](), []
    for words, path in commands.items():
        named = " ".join(words[1:3])
        dry = ["--dry-run"] if named in DRY else []
        if not dry and not LOOKS & {*words[1:3]}:
            continue
        run.add(named)
        code, said = main([*filled(words[1:]), *dry]), capfd.readouterr().err
        if code and "Not enough hosts" not in said:  # a refusal is a valid answer too
            wrong.append((path, shlex.join(words), said[-300:]))
    assert not wrong, wrong
    assert run >= {"lease create", "lease set", "lease show", "incident explain"}
    assert any(named.startswith("what-if ") for named in run)
    assert site.call("GET", LEASES).json == leases


def test_the_commands_of_fault_injection_equal_the_buttons(site: Site) -> None:
    person = Person(site)
    asked = urlencode({"rack": "rack-a", "fail": "cmp-6"})
    assert ["holdfast", "what-if", "--fail-rack", "rack-a"] in shown(
        person.get(f"/console/what-if?{asked}").text
    )
    broken = shown(person.get("/console/hosts/cmp-4").text)
    reconnect = ["holdfast", "sim", "reconnect", "cmp-4", "--network", "storage"]
    at = broken.index(reconnect)
    assert broken[at + 1] == ["holdfast", "sim", "recover-host", "cmp-4"]
    assert ["holdfast", "sim", "fail-host", "cmp-4"] not in broken  # it has no power
    cuts = [words[-1] for words in broken if words[2] == "cut"]
    assert cuts == [network for network in site.conf.hostmonitor.networks if network != "storage"]
