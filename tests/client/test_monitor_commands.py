# SPDX-License-Identifier: Apache-2.0
"""`holdfast matrix …`, `host health` and `monitor list`, against a real API that three monitors
told what they see; what takes time to come about is drawn from what the API would say of it."""

import doctest
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_client_fake import Fake, Run, clean_environment
from tests.api.house import House, copy, template
from tests.api.views import BLIND, NETWORKS, NO_STORAGE, UP, registered, stamp, view_body
from tests.processes import free_port

from holdfast.app import service
from holdfast.cli import host, monitor
from holdfast.cli.host import Dots, Sights, State, consequence, explained
from holdfast.client.client import Client
from holdfast.client.errors import NotFound
from holdfast.hostmonitor import matrix

WELL = [f"cmp-{number:02}" for number in range(1, 8)]
ODD = matrix.parse("rules: []\notherwise: alert", NETWORKS, "/etc/odd.yaml").to_plain()
TWO_DARK = ("down", "unknown", "unknown")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an API to which three monitors spoke; ctl-3 sees nothing of storage."""
    number = free_port()
    furnished = template(tmp_path_factory.mktemp("template"))
    with House(copy(furnished, tmp_path_factory.mktemp("site"))) as house:
        server = service.http_server(house.conf, house.app, number)
        server.start()
        try:
            _speak(house)
            yield f"http://127.0.0.1:{number}"
        finally:
            server.stop()


def _speak(house: House) -> None:
    whole = (
        (UP, "none", WELL),
        (NO_STORAGE, "recovery", ["cmp-08"]),
        (TWO_DARK, "undecided", ["cmp-09"]),
        (("unknown", "up", "down"), "recovery", ["cmp-10"]),
    )
    dark = (BLIND, "undecided", [*WELL, "cmp-08"]), (TWO_DARK, "undecided", ["cmp-09"])
    blind = {"sighted": False, "leader": "", "since": stamp(-5), "why": "no leader"}
    third = view_body(*dark, heartbeat_s=300, ha_matrix=ODD)
    third["networks"]["storage"] = blind
    for name, sent in (
        ("ctl-1", view_body(*whole, heartbeat_s=300)),
        ("ctl-2", view_body(*whole, heartbeat_s=300)),
        ("ctl-3", third),
    ):
        mine = registered(house, name)
        answer = house.call("PUT", f"/holdfast/v1/monitors/{name}", json=sent, headers=mine)
        assert answer.status_code == 204, answer.text


@pytest.fixture
def real(site: str, holdfast: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`holdfast …` asking that API."""
    monkeypatch.setenv("HOLDFAST_URL", site)
    return holdfast


def cells(text: str) -> list[list[str]]:
    """What a table has, head first."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_examples_in_docstrings_of_host_commands_hold() -> None:
    assert doctest.testmod(host).failed == 0


# against a real API


def test_matrix_show_draws_every_row_with_the_hosts_in_the_row(real: Run) -> None:
    ran = real("matrix", "show")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("ha_matrix: default\n")
    head, *table = cells(ran.out)
    assert head == ["manage", "tenant", "storage", "action", "for_s", "hosts", "rule"]
    assert len(table) == 8 + 2
    assert table[0][3:] == [
        "none",
        "",
        "7: cmp-01, cmp-02, cmp-03, cmp-04 and 3 more",
        "up on every network -> none",
    ]
    assert table[1] == [
        *["● up", "● up", "○ down", "recovery", "after 3 s", "1: cmp-08"],
        "storage down -> recovery after 3 s",
    ]
    assert [row[5] for row in table[2:8]] == ["0"] * 6
    unknown = {row[5]: row for row in table[8:]}
    assert unknown["1: cmp-09"][:4] == ["○ down", "◌ unknown", "◌ unknown", "undecided"]
    assert unknown["1: cmp-10"][:5] == ["◌ unknown", "● up", "○ down", "recovery", "after 3 s"]
    assert ran.err == "ctl-3 goes by another HA matrix, /etc/odd.yaml: make the files alike\n"


def test_json_has_the_words_and_all_names(real: Run) -> None:
    rows = json.loads(real("matrix", "show", "-f", "json", "--quiet").out)
    assert rows[0]["hosts"] == WELL
    assert (rows[1]["storage"], rows[1]["for_s"], rows[0]["for_s"]) == ("down", 3.0, None)


def test_host_health_is_a_dot_for_each_network_and_the_words(real: Run) -> None:
    ran = real("host", "health")
    assert ran.code == 0, ran.err
    head, *table = cells(ran.out)
    assert head == ["host", "health", "action", "since", "monitors"]
    shown = {row[0]: row for row in table}
    assert shown["cmp-01"] == ["cmp-01", "●●● up", "none", "", "3"]
    assert shown["cmp-08"][1:3] == ["●●○ storage down", "recovery"]
    assert shown["cmp-09"][1] == "○◌◌ manage down, tenant unknown, storage unknown"
    bad = [row[0] for row in cells(real("host", "health", "--bad").out)[1:]]
    assert bad == ["cmp-08", "cmp-09", "cmp-10"]
    (one,) = [
        each
        for each in json.loads(real("host", "health", "-f", "json").out)
        if each["host"] == "cmp-08"
    ]
    assert one["health"] == {"manage": "up", "tenant": "up", "storage": "down"}


def test_the_health_of_a_host_lists_each_network_with_its_monitors(real: Run) -> None:
    ran = real("host", "health", "CMP-08.example.org")
    assert ran.code == 0, ran.err
    first = ran.out.splitlines()[0]
    assert first.lower().startswith("host cmp-08")
    assert first.endswith(": storage down -> recovery after 3 s")
    table = cells(ran.out)
    assert table[0] == ["network", "state", "since", "seen_by"]
    assert table[1][:2] == ["manage", "● up"]
    at = [row[0] for row in table].index("storage")
    assert table[at][1] == "○ down"
    assert [row[3] for row in table[at : at + 3]] == [
        "ctl-1: down",
        "ctl-2: down",
        "ctl-3: unknown",
    ]


def test_matrix_explain_prints_the_whole_explanation_of_a_host(real: Run) -> None:
    ran = real("matrix", "explain", "cmp-08")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "host cmp-08: ●●○ storage down"
    assert lines[3] == "  storage  ○ down, say ctl-1 and ctl-2; unknown, says ctl-3"
    assert lines[4] == "row: [up, up, down]: storage down -> recovery after 3 s"
    assert lines[5].startswith("votes: 3 without an opinion (ctl-1, ctl-2, ctl-3); it takes 2")
    assert lines[-1] == "so: it is recovered if this lasts: after 3 s monitors vote for it"


def test_a_host_unknown_to_all_monitors_is_an_error(real: Run, site: str) -> None:
    for command in ("matrix explain nowhere", "host health nowhere"):
        ran = real(*command.split())
        assert (ran.code, ran.out) == (1, "")
        assert "no registered monitor reports a host 'nowhere'" in ran.err
    client = Client(site)
    with pytest.raises(NotFound):
        client.monitors.host("a/b?c")
    client.close()


def test_monitor_list_shows_the_last_report_and_blind_networks(real: Run) -> None:
    ran = real("monitor", "list")
    assert (ran.code, ran.err) == (0, "")
    head, *table = cells(ran.out)
    assert head[:5] == ["observer", "registered", "kind", "fresh", "seen_at"]
    assert head[5:] == ["networks", "hosts", "matrix", "trouble"]
    shown = {row[0]: row for row in table}
    assert shown["ctl-1"][1:4] == ["True", "host", "True"]
    assert shown["ctl-1"][5:] == ["●●● sees all", "10", "default", ""]
    assert shown["ctl-3"][5].startswith("●●○ storage blind since 20")
    assert shown["ctl-3"][5].endswith(": no leader")
    assert shown["ctl-3"][7] == "/etc/odd.yaml"


def test_monitor_list_names_the_problems_of_each_monitor() -> None:
    said = {"networks": {}, "problem": "matrix.yaml has a problem", "waiting": 2, "parked": 0}
    assert [*monitor.troubles(said)] == [
        "matrix.yaml has a problem",
        "2 reports wait to be delivered",
    ]


def test_monitor_list_names_a_cluster_with_too_few_servers() -> None:
    sight = {"sighted": True, "leader": "", "since": stamp(), "why": ""}
    networks = {"manage": sight, "storage": {**sight, "warning": "the cluster has 1 server"}}
    assert [*monitor.troubles({"networks": networks})] == ["storage: the cluster has 1 server"]


# what a scripted one says


def test_monitor_register_prints_only_the_token(fake: Fake, holdfast: Run) -> None:
    made = {"observer": "ctl-1", "token": "monitor@ctl-1:abc"}
    fake.says("POST /holdfast/v1/monitors", (201, {"monitor": made}))
    ran = holdfast("monitor", "register", "ctl-1")
    assert (ran.code, ran.out) == (0, "monitor@ctl-1:abc\n")
    assert fake.asked[0]["body"] == {"observer": "ctl-1"}


def test_monitors_are_unregistered_by_name(fake: Fake, holdfast: Run) -> None:
    fake.says("DELETE /holdfast/v1/monitors/ctl-1", (204, None))
    fake.says("DELETE /holdfast/v1/monitors/ctl-2", (404, {}))
    ran = holdfast("monitor", "unregister", "ctl-1", "ctl-2")
    assert (ran.code, "monitor ctl-1 unregistered" in ran.err) == (1, True)


def test_monitor_list_shows_the_hint_for_an_unregistered_monitor(fake: Fake, holdfast: Run) -> None:
    said = {"observer": "ctl-1", "networks": {}, "matrix_source": "", "hint": "not registered"}
    fake.says("GET /holdfast/v1/monitors", (200, {"monitors": [said]}))
    (row,) = json.loads(holdfast("monitor", "list", "-f", "json").out)
    assert (row["networks"], row["trouble"]) == ("", "not registered")


def test_matrix_show_says_when_no_monitor_reported_lately(fake: Fake, holdfast: Run) -> None:
    nothing = {"networks": [], "source": None, "ha_matrix": None}
    empty = {**nothing, "rows": [], "undecided": [], "differing": []}
    fake.says("GET /holdfast/v1/matrix", (200, {"matrix": empty}))
    ran = holdfast("matrix", "show")
    assert ran.code == 0
    assert ran.err == "no monitor reported lately: see `holdfast monitor list`\n"


@pytest.mark.parametrize(
    "argv",
    ["matrix check", "matrix explain", "matrix check f --networks a,,b", "host health cmp-1 --bad"],
)
def test_a_wrong_option_ends_with_2_and_sends_nothing(fake: Fake, holdfast: Run, argv: str) -> None:
    assert holdfast(*argv.split()).code == 2
    assert fake.asked == []


# check, which asks nobody


@pytest.fixture
def check(
    holdfast: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    clean_environment(monkeypatch)
    monkeypatch.setenv("HOLDFAST_URL", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)

    def run(text: str | bytes, *more: str) -> Any:
        data = text.encode() if isinstance(text, str) else text
        Path("matrix.yaml").write_bytes(data)
        return holdfast("matrix", "check", "matrix.yaml", *more)

    return run


def test_matrix_check_draws_the_matrix_of_a_file(check: Callable[..., Any]) -> None:
    text = "for: 0\nrules:\n- {when: {b: down}, do: alert}\notherwise: recovery\n"
    ran = check(text, "--networks", "a, b")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("matrix.yaml is an HA matrix for a, b\n")
    head, *table = cells(ran.out)
    assert head == ["a", "b", "action", "for_s", "rule"]
    assert [row[2:] for row in table] == [
        ["none", "", "up on every network -> none"],
        ["alert", "at once", "line 3: b down -> alert at once"],
        ["recovery", "at once", "line 4: anything else -> recovery at once"],
        ["alert", "at once", "line 3: b down -> alert at once"],
    ]


def test_check_lists_every_problem_with_its_line_and_ends_with_1(check: Callable[..., Any]) -> None:
    text = "rules:\n- {when: {storage: dwon}, do: recovery}\n- {when: {disk: up}, do: x}\n"
    ran = check(text, "-f", "json")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines() == [
        "matrix.yaml:2: 'dwon' is no state: write up, down or any",
        "matrix.yaml:3: 'x' is no action: write recovery, alert or none",
        "matrix.yaml:3: network 'disk' is unknown: there are manage, tenant, storage",
    ]
    assert check("").err == (
        "matrix.yaml: it is empty: write rules, or do without a file to get the default\n"
    )
    assert "larger than" in check("#" * 100_000).err
    assert "not UTF-8" in check(b"\xff").err


def test_check_names_the_rows_that_a_file_leaves_out_and_ends_with_0(
    check: Callable[..., Any],
) -> None:
    text = "sequence: [a, b]\nmatrix: [{health: [up, down], action: [recovery]}]\n"
    ran = check(text, "--networks", "a,b")
    assert ran.code == 0
    assert ran.err == (
        "matrix.yaml: 2 rows are left out and count as none, in the order a, b:"
        " [down, up], [down, down]\n"
    )
    assert [row[2] for row in cells(ran.out)[1:]] == ["none", "recovery", "none", "none"]


def test_matrix_check_names_an_unreadable_file(check: Callable[..., Any], holdfast: Run) -> None:
    assert holdfast("matrix", "check", "nowhere.yaml").err == (
        "cannot read nowhere.yaml: No such file or directory\n"
    )


def test_a_network_may_be_called_like_a_column(check: Callable[..., Any]) -> None:
    ran = check("rules: []\notherwise: none", "--networks", "action,rule")
    assert ran.code == 0, ran.err
    assert cells(ran.out)[0] == ["network action", "network rule", "action", "for_s", "rule"]


BROKEN = """rules:
  - {when: {manage: down, tenant: down}, do: alert}
  - {when: {stroage: down}, do: recovery}
  - {when: {storage: down}, do: recovery}
  - {when: {storage: down, manage: up}, do: alert}
  - {when: {storage: down}, do: alert}
otherwise: none
"""


def test_the_documentation_shows_the_output_of_matrix_check(check: Callable[..., Any]) -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/matrix.md").read_text()
    blocks = re.findall(
        r"(?:<!-- networks: (.*) -->\n)?```yaml matrix.yaml\n(.*?)```", page, re.DOTALL
    )
    assert len(blocks) == 5
    for names, text in blocks:
        more = ("--networks", names) if names else ()
        assert check(text, *more).code == 0, text
    assert check(blocks[0][1]).out in page
    assert check(BROKEN).err.replace("matrix.yaml:", "broken.yaml:") in page


# drawing


def health(action: str, **more: Any) -> dict[str, Any]:
    seen = [{"observer": "ctl-1", "state": "down", "at": stamp()}]
    since = "2027-01-31T12:00:03+00:00"
    votes = {"for": ["ctl-1"], "against": [], "abstain": [], "needed": 1}
    return {
        "host": "cmp-7",
        "networks": {"storage": {"state": "down", "since": since, "seen_by": seen}},
        "action": action,
        "for_s": 3.0,
        "sentence": "storage down -> recovery after 3 s",
        "votes": votes | more.pop("votes", {}),
        "status": None,
        "incident_id": None,
        **more,
    }


def test_explain_prints_networks_row_votes_and_status_of_a_failed_host() -> None:
    status = {
        "state": "down",
        "since": "2027-01-31T12:00:06+00:00",
        "why": "hostmonitor says down",
        "segment": "north",
    }
    found = health("recovery", status=status, incident_id="4f2c")
    assert list(explained(found)) == [
        "host cmp-7: ○ storage down",
        "  storage  ○ down since 2027-01-31 12:00:03 UTC, says ctl-1",
        "row: [down]: storage down -> recovery after 3 s",
        "votes: 1 that it failed (ctl-1); it takes 1, and more than are against",
        "status: down since 2027-01-31 12:00:06 UTC: hostmonitor says down",
        "so: it is being recovered; `holdfast incident explain 4f2c` tells how",
    ]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (health("none"), "nothing is done"),
        (health("undecided"), "no action: too many networks are unknown"),
        (health("alert"), "an alert is published after 3 s; nothing is moved"),
        (health("alert", for_s=0.0), "an alert is published at once; nothing is moved"),
        (health("recovery"), "enough monitors say that it failed: an incident is opened, once"),
        (health("recovery", votes={"for": []}), "it is recovered if this lasts: after 3 s"),
        (health("recovery", votes={"needed": 2}), "nothing is done yet: 1 of the 2 votes"),
        (health("recovery", votes={"against": ["ctl-2"]}), "nothing is done: 1 against 1"),
    ],
)
def test_explain_names_the_consequence_and_its_reason(found: dict[str, Any], said: str) -> None:
    assert consequence(found).startswith(said)


def test_health_says_when_no_monitor_votes_and_no_monitor_sees_the_host() -> None:
    seen: dict[str, Any] = {"state": "unknown", "since": None, "seen_by": []}
    found = health("undecided", votes={"for": []}, networks={"storage": seen})
    lines = list(explained(found))
    assert lines[1] == "  storage  ◌ unknown, no monitor says more"
    assert lines[3].startswith("votes: no monitor; it takes 1")


def test_a_terminal_without_dots_gets_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Latin:
        encoding = "latin-1"

    monkeypatch.setattr("sys.stdout", Latin())
    assert Dots({"a": "up", "b": "down", "c": "unknown"}).human_readable() == (
        "+-? b down, c unknown"
    )
    assert State("down").human_readable() == "- down"
    sight = {"sighted": True, "leader": "", "since": stamp(), "why": ""}
    assert Sights({"a": sight}).human_readable() == "+ sees all"
