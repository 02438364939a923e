# SPDX-License-Identifier: Apache-2.0
"""Files that name the services of a host: what they mean, and what is wrong with them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.processes import KEYS, MASAKARI, BadServices, Service, parse

OURS = """\
services:
  - name: nova-compute
    restart: [systemctl, restart, nova-compute]
  - name: libvirtd
    unit: libvirtd.service
    socket: /run/libvirt/libvirt-sock
  - name: vswitch
    pidfile: /run/openvswitch/ovs-vswitchd.pid
    check: [ovs-vsctl, --timeout=3, show]
    within: 4s
    restart: [systemctl, restart, "openvswitch switch"]
    restart_within: 2m
    tries: 2
    patience: 15s
    stable: 5m
    if_seen: yes
  - {name: l3, matching: 'python3? .*l3-agent'}
"""
#: As masakari-monitors ships its sample: keys without a value, several words, an id.
THEIRS = """\
# Define the monitoring processes as follows
-
    # libvirt-bin
    process_name: /usr/sbin/libvirtd
    start_command: systemctl start libvirt-bin
    pre_start_command:
    post_start_command:
    restart_command: systemctl restart 'libvirt bin'
    pre_restart_command: /usr/bin/logger "going down"
    post_restart_command:
    run_as_root: True
-
    id: 2
    process_name: /usr/bin/python /usr/local/bin/masakari-instancemonitor
    start_command: systemctl start masakari-instancemonitor
    post_start_command: /bin/true
    run_as_root: False
"""


def test_a_services_file_is_read_as_written() -> None:
    assert parse(OURS, "s.yaml") == (
        Service("nova-compute", restart=("systemctl", "restart", "nova-compute")),
        Service(
            "libvirtd",
            unit="libvirtd.service",
            socket="/run/libvirt/libvirt-sock",
            restart=("systemctl", "restart", "libvirtd.service"),
        ),
        Service(
            "vswitch",
            pidfile="/run/openvswitch/ovs-vswitchd.pid",
            probe=("ovs-vsctl", "--timeout=3", "show"),
            probe_s=4.0,
            restart=("systemctl", "restart", "openvswitch switch"),
            restart_s=120.0,
            tries=2,
            patience_s=15.0,
            stable_s=300.0,
            if_seen=True,
        ),
        Service("l3", matching="python3? .*l3-agent"),
    )
    assert [one.line for one in parse(OURS, "s.yaml")] == [2, 4, 7, 17]


def test_a_file_of_masakari_monitors_is_taken_as_it_is() -> None:
    first, second = parse(THEIRS, "process_list.yaml")
    assert first == Service(
        "libvirtd",
        process="/usr/sbin/libvirtd",
        before=("/usr/bin/logger", "going down"),
        restart=("systemctl", "restart", "libvirt bin"),
        as_root=True,
        patience_s=5.0,
    )
    assert (second.name, second.as_root) == ("masakari-instancemonitor", False)
    assert second.restart == ("systemctl", "start", "masakari-instancemonitor")
    assert (second.before, second.after) == ((), ("/bin/true",))
    assert second.matching == r"/usr/bin/python\ /usr/local/bin/masakari\-instancemonitor"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 0, "it is empty"),
        ("libvirtd", 1, "begins with `services:`"),
        ("services: []\nmore: 1", 2, "key 'more' is unknown"),
        ("services: libvirtd", 1, "should be a list"),
        ("services:\n- {unit: x}", 2, "`name` is missing"),
        ("services:\n- {name: 'a b'}", 2, "'a b' is no name"),
        ("services:\n- {name: a, nmae: b}", 2, "key 'nmae' is unknown"),
        ("services:\n- {name: a}\n- {name: a}", 3, "a is there already, in line 2"),
        ("services:\n- {name: a, unit: b,\n   process: c}", 2, "`unit` besides `process`"),
        ("services:\n- {name: a, matching: '('}", 2, "no regular expression"),
        ("services:\n- {name: a, pidfile: run/a}", 2, "write a whole path"),
        ("services:\n- {name: a, restart: systemctl restart a}", 2, "write its words as a list"),
        ("services:\n- {name: a, check: []}", 2, "`check` is an empty list"),
        ("services:\n- {name: a, tries: many}", 2, "write a number from 0 to 20"),
        ("services:\n- {name: a, tries: 21}", 2, "write a number from 0 to 20"),
        ("services:\n- {name: a, within: 0}", 2, "leaves no time at all"),
        ("services:\n- {name: a, patience: soon}", 2, "no length of time"),
        ("services:\n- {name: a, if_seen: maybe}", 2, "write yes or no"),
        ("- {start_command: a}", 1, "`process_name` is missing"),
        ("-\n  process_name:\n", 2, "`process_name` is empty"),
        ("- {process_name: a, run_as_root: x}", 1, "write yes or no"),
        ('- {process_name: a,\n   restart_command: "b \'c"}', 2, "cannot be split into words"),
        ("- {process_name: a, name: a}", 1, "key 'name' is unknown"),
    ],
)
def test_a_problem_is_named_with_the_line(text: str, line: int, said: str) -> None:
    with pytest.raises(BadServices) as caught:
        parse(text, "s.yaml")
    assert [(problem.line, said in problem.text) for problem in caught.value.problems] == [
        (line, True)
    ]


def test_all_problems_of_a_services_file_are_named_together() -> None:
    with pytest.raises(BadServices, match="3 problems"):
        parse("services:\n- {name: a, tries: x}\n- {unit: b}\n- {name: '-'}", "s.yaml")


WORDS = st.one_of(
    st.sampled_from([*KEYS, *MASAKARI, "services", "yes", "3s", "[a, b]", "{}", "(", "/x", "~"]),
    st.text(max_size=8),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["- ", "  ", "services:\n"]), WORDS, WORDS), max_size=6))
def test_any_services_file_is_read_or_refused_with_problems(
    lines: list[tuple[str, str, str]],
) -> None:
    text = "\n".join(f"{head}{key}: {value}" for head, key, value in lines)
    try:
        found = parse(text, "s.yaml")
    except BadServices as error:
        assert error.problems
    else:
        assert all(one.name for one in found)
