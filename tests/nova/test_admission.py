# SPDX-License-Identifier: Apache-2.0
"""Who may use which host: the rules by example, and what holds for every request and every host."""

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast.nova
from holdfast.nova import names
from holdfast.nova.admission import Kind, Options, Pool, Request, kind, read_request, refusal
from tests.processes import PATIENCE_S

FREE = Pool("freepool", {})
RED = Pool("r1", {names.OWNER: "red"})
RACK = Pool("rack-7", {"rack": "7"})
SLOTS = Pool("c1", {names.OWNER: "red", names.SLOTS: "c1", "filter_tenant_id": "red"})
OLD = Pool("b1", {names.OWNER: "red", names.ZONE: "blazar_b1"})
LEASED = Pool("s1", {names.OWNER: "red", names.SERVER: "web"})


def closed(pool: Pool) -> Pool:
    return dataclasses.replace(pool, metadata={**pool.metadata, names.OPEN: names.CLOSED})


def may(
    *pools: Pool,
    project: str | None = "red",
    hint: Any = None,
    specs: dict[str, str] | None = None,
    options: Options | None = None,
    server: str | None = None,
) -> bool:
    hints = {} if hint is None else {"reservation": hint}
    options = options or Options()
    return refusal(read_request(project, hints, specs, options, server), pools, options) is None


def test_the_owner_with_the_hint_may_use_the_reserved_host() -> None:
    assert may(RED, hint=["r1"])
    assert may(RED, RACK, hint=["r1"])


@pytest.mark.parametrize(
    ("project", "hint"), [("red", None), ("blue", ["r1"]), ("blue", None), (None, ["r1"])]
)
def test_a_reserved_host_admits_no_other_project(project: str | None, hint: Any) -> None:
    assert not may(RED, project=project, hint=hint)
    assert not may(RED, FREE, project=project, hint=hint)
    assert not may(OLD, project=project, hint=hint)


def test_a_host_in_both_pools_belongs_to_the_owner_of_the_reservation() -> None:
    assert may(RED, FREE, hint=["r1"])
    assert may(FREE, RED, hint=["r1"])


def test_a_free_pool_host_takes_no_servers() -> None:
    assert not may(FREE)
    assert not may(FREE, RACK)
    assert not may(FREE, hint=["r1"])
    assert not may(FREE, hint=["freepool"])
    assert not may(Pool("freepool", {names.OWNER: "red"}), hint=["freepool"])


def test_a_host_outside_holdfast_pools_admits_any_request_without_a_hint() -> None:
    assert may()
    assert may(RACK, project="blue")
    assert may(RACK, project=None)


def test_a_hint_opens_no_ordinary_host() -> None:
    assert not may(hint=["r1"])
    assert not may(RACK, hint=["r1"])
    assert not may(RACK, hint=["rack-7"])


def test_a_closed_pool_admits_no_server() -> None:
    assert not may(closed(RED), hint=["r1"])
    assert not may(closed(RED), FREE, hint=["r1"])
    assert not may(closed(RED))
    assert not may(closed(OLD), hint=["b1"])
    assert may(Pool("r1", {**RED.metadata, names.OPEN: names.OPENED}), hint=["r1"])
    assert not may(Pool("r1", {**RED.metadata, names.OPEN: "nonsense"}), hint=["r1"])


@pytest.mark.parametrize("hint", ["r1", ["r1"], ("r1",), [" r1 "], ["r2", "r1"], [7, None, "r1"]])
def test_a_hint_may_be_a_text_or_a_list(hint: Any) -> None:
    assert may(RED, hint=hint)


@pytest.mark.parametrize(
    "hint",
    ["", [], [""], [None], {"r1": "r1"}, 7, ["R1"], ["r1-x"], ["r"], ["r1\n", "r"], ["r1,r2"]],
)
def test_a_hint_with_another_id_admits_to_no_pool(hint: Any) -> None:
    assert not may(RED, hint=hint)
    assert not may(hint=hint)


def test_a_null_hint_admits_to_no_pool() -> None:
    assert refusal(read_request("red", {"reservation": None}, {}), [RED])
    assert refusal(read_request("red", {"reservation": None}, {}), [])


def test_a_host_two_reservations_claim_is_nobodys_unless_both_are_the_requests() -> None:
    other = Pool("r2", {names.OWNER: "blue"})
    own = Pool("r3", {names.OWNER: "red"})
    assert not may(RED, other, hint=["r1"])
    assert not may(RED, other, hint=["r1", "r2"])
    assert not may(RED, own, hint=["r1"])
    assert may(RED, own, hint=["r1", "r3"])
    assert not may(RED, closed(own), hint=["r1", "r3"])


def test_a_pool_may_name_more_projects_as_keys() -> None:
    shared = Pool("r1", {**RED.metadata, "blue": "blazar:tenant"})
    assert may(shared, project="blue", hint=["r1"])
    assert not may(shared, project="blue")
    assert not may(shared, project="green", hint=["r1"])
    assert not may(Pool("r1", {**RED.metadata, "blue": ""}), project="blue", hint=["r1"])
    assert not may(Pool("r1", {names.OWNER: ""}), project="", hint=["r1"])


def test_pools_of_blazar_are_known_by_their_zone() -> None:
    assert may(OLD, hint=["b1"])
    assert not may(Pool("b1", {names.ZONE: "blazar_b1"}), hint=["b1"])
    assert not may(Pool("b1", {names.ZONE: "blazar:b1"}))
    assert may(Pool("b1", {names.ZONE: "nova"}))


def test_a_pool_with_the_kept_mark_is_kept_for_reservations() -> None:
    kept = Pool("holdfast", {names.KEPT: "yes"})
    assert not may(kept)
    assert not may(kept, hint=["holdfast"])
    assert may(kept, RED, hint=["r1"])


def flavor_of(reservation: str) -> dict[str, str]:
    return {names.SLOTS_SPEC: reservation}


def test_the_flavor_of_a_capacity_reservation_gets_the_hosts_of_the_pool() -> None:
    assert may(FREE, SLOTS, specs=flavor_of("c1"))
    assert may(SLOTS, FREE, specs=flavor_of("c1"), hint=["c1"])


def test_the_flavor_of_a_capacity_reservation_gets_no_other_host() -> None:
    specs = flavor_of("c1")
    assert not may(specs=specs)
    assert not may(FREE, specs=specs)
    assert not may(FREE, SLOTS, specs=specs, project="blue")
    assert not may(FREE, SLOTS, specs=flavor_of("c2"))
    assert not may(FREE, closed(SLOTS), specs=specs)
    assert not may(RED, SLOTS, specs=specs)
    assert not may(RED, specs=flavor_of("r1"))
    assert not may(RED, specs=specs, hint=["r1"])
    assert not may(FREE, SLOTS, specs=specs, hint=["r1"])
    assert not may(Pool("c1", {"red": "blazar:tenant"}), specs=specs)


def test_slots_are_not_to_be_had_by_a_hint() -> None:
    assert not may(FREE, SLOTS, hint=["c1"])
    assert not may(FREE, SLOTS)
    assert not may(SLOTS)


PREEMPTIBLE = {names.PREEMPTIBLE_SPEC: "true"}
ALLOWED = Options(allow_preemptibles=True)


def test_preemptible_servers_are_ordinary_servers_unless_allowed() -> None:
    assert not may(FREE, specs=PREEMPTIBLE)
    assert may(RACK, specs=PREEMPTIBLE)


def test_preemptible_servers_use_free_hosts_where_allowed_and_no_others() -> None:
    assert may(FREE, specs=PREEMPTIBLE, options=ALLOWED)
    assert may(FREE, RACK, specs=PREEMPTIBLE, options=ALLOWED)
    assert not may(RACK, specs=PREEMPTIBLE, options=ALLOWED)
    assert not may(FREE, RED, specs=PREEMPTIBLE, options=ALLOWED)
    assert not may(FREE, SLOTS, specs=PREEMPTIBLE, options=ALLOWED)
    assert not may(FREE, closed(RED), specs=PREEMPTIBLE, options=ALLOWED)
    assert not may(FREE, specs={names.PREEMPTIBLE_SPEC: "false"}, options=ALLOWED)
    assert may(RED, specs=PREEMPTIBLE, options=ALLOWED, hint=["r1"])


def test_a_separate_preemptible_pool_admits_only_preemptible_servers() -> None:
    options = Options(allow_preemptibles=True, preemptible_pool="spot", preemptible_spec="x:spot")
    spot = Pool("spot", {})
    assert may(spot, specs={"x:spot": "True"}, options=options)
    assert may(spot, FREE, specs={"x:spot": "1"}, options=options)
    assert not may(FREE, specs={"x:spot": "true"}, options=options)
    assert not may(spot, options=options)


def test_a_leased_server_may_use_the_host_with_the_room_kept() -> None:
    assert may(LEASED, server="web")
    assert may(FREE, LEASED, RACK, server="web")
    assert may(LEASED, SLOTS, server="web")
    assert may(Pool("s2", {names.OWNER: "red", names.SERVER: "db"}), LEASED, server="web")
    kept = Pool("holdfast", {names.KEPT: "yes"})
    assert may(kept, FREE, LEASED, server="web", hint=["r1"])  # it may have been made with a hint
    assert may(LEASED, server="web", specs=PREEMPTIBLE, options=ALLOWED)


def test_a_host_that_keeps_room_for_a_server_admits_no_other_server() -> None:
    assert not may(LEASED)
    assert not may(FREE, LEASED)
    assert not may(FREE, LEASED, server="db")
    assert not may(LEASED, server="")
    assert not may(Pool("s1", {names.OWNER: "red", names.SERVER: ""}), server="")
    assert not may(LEASED, server="web", project="blue")
    assert not may(LEASED, server="web", project=None)
    assert not may(LEASED, hint=["s1"])
    assert not may(LEASED, specs=flavor_of("s1"))
    assert not may(FREE, LEASED, specs=PREEMPTIBLE, options=ALLOWED)


def test_a_leased_server_that_has_grown_does_not_fit_the_room_kept() -> None:
    kept = Pool("s1", {**LEASED.metadata, names.SIZE: "4,4096,40"})
    leased = {"project": "red", "hints": {}, "extra_specs": {}, "server": "web"}
    for size in ((), (4, 4096, 40), (2, 512, 0)):
        assert refusal(read_request(**leased, size=size), [FREE, kept]) is None
    for size in ((5, 4096, 40), (4, 4097, 40), (4, 4096, 41)):
        assert refusal(read_request(**leased, size=size), [FREE, kept])
        assert (
            refusal(read_request(**leased, size=size), [FREE, LEASED]) is None
        )  # of before sizes were said
        assert refusal(read_request(**leased, size=size), [RACK]) is None
    for odd in ("4,4096", "4,x,40", "4,,40", "-4,1,1"):
        strange = Pool("s1", {**LEASED.metadata, names.SIZE: odd})
        assert refusal(read_request(**leased, size=(1, 1, 1)), [strange])


def test_room_for_a_server_ends_with_the_lease_or_a_reservation_of_the_host() -> None:
    assert not may(closed(LEASED), server="web")
    assert not may(FREE, closed(LEASED), server="web")
    assert not may(LEASED, Pool("r2", {names.OWNER: "blue"}), server="web")
    assert not may(LEASED, RED, server="web")  # its end would delete the server
    assert not may(LEASED, OLD, server="web")


def test_a_pool_of_a_server_needs_an_owner_project() -> None:
    assert kind(Pool("s1", {names.SERVER: "web"})) is Kind.OTHER
    assert not may(FREE, Pool("s1", {names.SERVER: "web"}), server="web")
    assert kind(Pool("freepool", LEASED.metadata)) is Kind.SHARED
    assert kind(Pool("s1", {**LEASED.metadata, names.ZONE: "blazar_s1"})) is Kind.HOST


def test_room_for_a_server_is_in_nobodys_way() -> None:
    assert may(LEASED, SLOTS, FREE, specs=flavor_of("c1"))
    assert may(LEASED, RED, hint=["r1"])
    assert may(LEASED, RED, hint=["r1"], server="web")


def test_a_leased_server_may_use_every_host_open_without_a_lease() -> None:
    assert may(server="web")
    assert may(RACK, server="web")
    assert may(RED, server="web", hint=["r1"])
    assert may(FREE, SLOTS, server="web", specs=flavor_of("c1"))
    assert not may(FREE, server="web")
    assert not may(RED, server="web")


# whatever comes

IDS = st.sampled_from(["r1", "r2", "freepool", "rack", "spot"])
PROJECTS = st.sampled_from(["red", "blue"])
VALUES = {
    names.OWNER: PROJECTS,
    names.OPEN: st.sampled_from(["yes", "no", ""]),
    names.ZONE: st.sampled_from(["blazar_r1", "nova", ""]),
    names.SLOTS: IDS,
    names.KEPT: st.just("yes"),
    names.SERVER: st.sampled_from(["web", "db", ""]),
    "red": st.sampled_from(["blazar:tenant", ""]),
}
POOLS = st.lists(
    st.builds(Pool, IDS, st.fixed_dictionaries({}, optional=VALUES)),
    max_size=4,
    unique_by=lambda pool: pool.name,
)
REQUESTS = st.builds(
    Request,
    project=st.none() | PROJECTS,
    hinted=st.none() | st.frozensets(IDS, max_size=2),
    slots_of=st.none() | IDS,
    preemptible=st.booleans(),
    server=st.sampled_from([None, "", "web", "db"]),
)
OPTIONS = st.builds(
    Options,
    allow_preemptibles=st.booleans(),
    preemptible_pool=st.sampled_from(["freepool", "spot"]),
)


def lets_in(pool: Pool, project: str | None) -> bool:
    named = pool.metadata.get(names.OWNER) == project or pool.metadata.get(project or "") or ""
    return bool(project and named) and pool.metadata.get(names.OPEN, "yes") == "yes"


@given(REQUESTS, POOLS, OPTIONS)
def test_only_the_owner_with_the_hint_ever_gets_onto_a_reserved_host(
    request: Request, pools: list[Pool], options: Options
) -> None:
    reserved = [pool for pool in pools if kind(pool, options) is Kind.HOST]
    if reserved and refusal(request, pools, options) is None:
        assert request.hinted is not None and {pool.name for pool in reserved} <= request.hinted
        assert all(lets_in(pool, request.project) for pool in reserved)


def room_for(request: Request, pools: list[Pool], options: Options) -> bool:
    """Whether the host keeps room for the server that asks, and is nobody's as a whole."""
    kinds = {pool.name: kind(pool, options) for pool in pools}
    return Kind.HOST not in kinds.values() and any(
        kinds[pool.name] is Kind.SERVER
        and request.server
        and pool.metadata[names.SERVER] == request.server
        and lets_in(pool, request.project)
        for pool in pools
    )


@given(REQUESTS, POOLS, OPTIONS)
def test_room_for_a_server_only_adds_the_host_for_the_leased_server(
    request: Request, pools: list[Pool], options: Options
) -> None:
    unleased = dataclasses.replace(request, server=None)
    expected = room_for(request, pools, options) or refusal(unleased, pools, options) is None
    assert (refusal(request, pools, options) is None) == expected


@given(REQUESTS, POOLS, OPTIONS)
def test_a_request_for_a_reservation_gets_only_hosts_of_the_reservation(
    request: Request, pools: list[Pool], options: Options
) -> None:
    wanted = request.slots_of or request.hinted
    if room_for(request, pools, options):
        return
    if wanted and refusal(request, pools, options) is None:
        named = {request.slots_of} if request.slots_of else request.hinted or frozenset()
        kinds = Kind.SLOTS if request.slots_of else Kind.HOST
        assert any(pool.name in named and kind(pool, options) is kinds for pool in pools)


@given(REQUESTS, POOLS, OPTIONS)
def test_only_reservations_and_preemptible_servers_get_onto_kept_hosts(
    request: Request, pools: list[Pool], options: Options
) -> None:
    kept = any(kind(pool, options) is not Kind.OTHER for pool in pools)
    if kept and refusal(request, pools, options) is None:
        named = request.hinted is not None or request.slots_of is not None
        preemptible = request.preemptible and options.allow_preemptibles
        assert named or preemptible or room_for(request, pools, options)


@given(REQUESTS, POOLS, OPTIONS, st.randoms(use_true_random=False))
def test_the_order_of_pools_does_not_matter(
    request: Request, pools: list[Pool], options: Options, random: Any
) -> None:
    shuffled = list(pools)
    random.shuffle(shuffled)
    first, second = refusal(request, pools, options), refusal(request, shuffled, options)
    assert (first is None) == (second is None)


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(ANYTHING, POOLS)
def test_any_hint_gets_a_printable_reason(hint: Any, pools: list[Pool]) -> None:
    request = read_request("red", {"reservation": hint}, None)
    why = refusal(request, pools)
    assert why is None or (why.isprintable() and len(why) < 1200)
    assert str(request).isprintable()


def test_a_hint_as_long_as_a_book_does_not_fill_the_log() -> None:
    for hint in ("x" * 100_000, [f"{n:036}" for n in range(10_000)]):
        request = read_request("red", {"reservation": hint}, None)
        assert len(str(refusal(request, [RED]))) < 1000


@pytest.mark.parametrize(
    ("request_", "pools", "sentence"),
    [
        (Request("red"), [FREE], "in pool freepool, and the request names no reservation"),
        (
            read_request("red", {"reservation": "r2"}, {}),
            [RED],
            "not in the pool of reservation r2",
        ),
        (
            read_request("red", {"reservation": " "}, {}),
            [RED],
            "not in the pool of reservation (none)",
        ),
        (read_request("blue", {"reservation": "r1"}, {}), [RED], "pool r1 is not of project blue"),
        (
            read_request("red", {"reservation": "r1"}, {}),
            [closed(RED)],
            "pool r1 is closed, its lease is ending",
        ),
        (
            read_request("red", {"reservation": "r1"}, {}),
            [RED, OLD],
            "also reserved by another: pool b1",
        ),
    ],
)
def test_the_refusal_names_the_blocking_pool(
    request_: Request, pools: list[Pool], sentence: str
) -> None:
    assert refusal(request_, pools) == sentence


# where it runs


def test_nothing_heavy_is_loaded_into_nova() -> None:
    look = "import sys, holdfast.nova.options; print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", look], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    ).stdout.split()
    ours = {name for name in said if name.startswith("holdfast")}
    assert ours == {
        "holdfast", "holdfast.nova", "holdfast.nova.names", "holdfast.nova.admission",
        "holdfast.nova.options",
    }  # fmt: skip
    assert not {"falcon", "sqlalchemy", "openstack", "waitress", "jsonschema"} & set(said)


@pytest.mark.parametrize(
    "name", ["../__init__", "__init__", "names", "admission", "options", "scheduler_filter"]
)
def test_modules_loaded_by_nova_compile_on_older_pythons(name: str) -> None:
    source = (Path(holdfast.nova.__file__).parent / f"{name}.py").read_text()
    ast.parse(source, feature_version=(3, 9))
    if "|" in source:
        assert "from __future__ import annotations" in source
