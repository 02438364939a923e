# SPDX-License-Identifier: Apache-2.0
"""`HA_Enabled` on a server, its image, its flavor or an aggregate: what it says is honoured."""

import pytest

from holdfast.ports.cloud import Flavor, Pool, Server
from holdfast.recovery.guards import HaSettings
from tests.recovery.house import HealHouse

LEVELS = ("server", "image", "flavor", "aggregate")
KEY = "HA_Enabled"


def boot(house: HealHouse, said: dict[str, str], name: str = "web", host: str = "cmp-1") -> str:
    """A server of which each level says that."""
    specs = {KEY: said["flavor"]} if "flavor" in said else {}
    house.m.cloud.flavors.create(Flavor(f"f-{name}", f"f-{name}", 1, 512, 1, extra_specs=specs))
    own = {KEY: said["server"]} if "server" in said else {}
    made = house.sim.boot(name, "alpha", host, 1, 512, 1, flavor=f"f-{name}", metadata=own)
    if "image" in said:
        house.sim.set_image(made.id, {KEY: said["image"]})
    if "aggregate" in said:
        pool = house.m.cloud.pools.create(f"pool-{name}", {KEY: said["aggregate"]})
        house.m.cloud.pools.add_host(pool.id, host)
    return made.id


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("word", ["False", "true"])
@pytest.mark.parametrize("restart_all", [True, False])
def test_a_guest_is_restarted_or_left_as_the_level_says_that_speaks(
    house: HealHouse, level: str, word: str, restart_all: bool
) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.restart_all = restart_all
    server = boot(house, {level: word})
    house.sim.crash_server(server)
    report = house.report_guest("cmp-1", server)
    house.run(seconds=20)
    incident = house.incident(report)
    assert incident.status == ("recovered" if word == "true" else "ignored")
    assert bool(house.effects("servers.start")) == (word == "true")
    if word == "False":
        where = {"server": "metadata", "aggregate": "aggregate pool-web"}.get(level, level)
        assert incident.sentence.endswith(f"HA_Enabled is False on its {where}")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("evacuate_all", [True, False])
def test_of_a_dead_host_servers_go_or_stay_as_the_level_says_that_speaks(
    house: HealHouse, level: str, evacuate_all: bool
) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    house.recovery.evacuate_all = evacuate_all
    if level == "aggregate":
        kept = boot(house, {"server": "yes"}, "kept")  # before what its host's aggregate says
    else:
        kept = boot(house, {level: "yes"}, "kept")
    left = boot(house, {level: "no"}, "left")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=3)
    assert house.incident(report).status == "recovered", house.incident(report)
    moved = {move.server_id: move.status for move in house.moves(report)}
    assert moved == {kept: "succeeded", left: "ignored"}
    assert house.server(left)["host"] == "cmp-1"


def test_the_narrower_level_counts_before_the_wider_one() -> None:
    def says(**said: str) -> tuple[bool | None, str]:
        words = {level: {KEY: word} for level, word in said.items()}
        pools = [
            Pool(str(number), f"a{number}", ("cmp-1.example.org",), {KEY: word})
            for number, word in enumerate(said.get("aggregate", "").split())
        ]
        server = Server(
            *("s", "web", "p", "cmp-1", "ACTIVE"),
            metadata=words.get("server", {}),
            extra_specs=words.get("flavor", {}),
            image_id="i",
        )
        found = HaSettings(KEY, {"i": words.get("image", {})}, pools).of(server)
        return found.enabled, found.source

    assert says() == (None, "")
    assert says(aggregate="False") == (False, "aggregate a0")
    assert says(aggregate="False True") == (True, "aggregate a1")  # in doubt it is kept running
    assert says(aggregate="False", flavor="True") == (True, "flavor")
    assert says(flavor="True", image="False") == (False, "image")
    assert says(image="False", server="True") == (True, "metadata")
    assert says(flavor="False", image="perhaps", server="") == (False, "flavor")


def test_an_image_that_cannot_be_read_leaves_no_server_dead(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.restart_all = True
    server = boot(house, {"image": "False"})
    house.sim.change(only_calls=["servers.image_properties"], failure_rate=1.0)
    house.sim.crash_server(server)
    report = house.report_guest("cmp-1", server)
    house.run(seconds=20)
    assert house.incident(report).status == "recovered"
