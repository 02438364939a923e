# SPDX-License-Identifier: Apache-2.0
"""The lab is what it says: a cloud that works, whose parts can be killed and come back."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import amqp
import pytest
from lab.bootstrap import PEOPLE
from lab.cloud import Lab
from lab.part import Part, PartFailed, Recipe
from lab.place import Place
from lab.steps import Progress, Stamps, Step, do_all

from tests.lab.site import delete_server
from tests.processes import PATIENCE_S, eventually


@contextlib.contextmanager
def server_on(lab: Lab, host: str) -> Iterator[Any]:
    """A server on that host, until the end of the block."""
    compute = lab.connect().compute
    server = compute.create_server(
        name=f"lab-{uuid.uuid4().hex[:8]}",
        flavor_id=lab.flavor,
        image_id=lab.image,
        networks="none",
        host=host,
    )
    try:
        yield compute.wait_for_server(server, interval=0.2, wait=PATIENCE_S)
    finally:
        delete_server(compute, server)
        compute.wait_for_delete(server, interval=0.2, wait=PATIENCE_S)


@contextlib.contextmanager
def notices(lab: Lab) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What Nova has told the broker since; nothing is taken from other listeners."""
    port = lab.part("rabbitmq").recipe.port
    heard: list[dict[str, Any]] = []

    def hear(message: amqp.Message) -> None:
        heard.append(json.loads(json.loads(message.body)["oslo.message"]))

    with amqp.Connection(f"127.0.0.1:{port}", "guest", "guest") as connection:
        channel = connection.channel()
        queue = channel.queue_declare(exclusive=True).queue
        channel.queue_bind(queue, "nova", "versioned_notifications.info")
        channel.basic_consume(queue, no_ack=True, callback=hear)

        def listen() -> list[dict[str, Any]]:
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
            return heard

        yield listen


def test_every_service_answers_an_authenticated_user(lab: Lab) -> None:
    cloud = lab.connect("holdfast", "service")
    projects = {project.name: project.id for project in cloud.identity.projects()}
    for project, user, _ in PEOPLE:
        assert lab.connect(user, project).current_project_id == projects[project]
    assert {host.name for host in cloud.compute.hypervisors()} >= set(lab.computes)
    assert {provider.name for provider in cloud.placement.resource_providers()} >= set(lab.computes)
    assert cloud.image.get_image(lab.image).status == "active"
    assert cloud.network.get_network(lab.external_network).is_router_external


def test_a_reader_may_not_write(lab: Lab) -> None:
    body = {"server_group": {"name": "lab", "policies": ["affinity"]}}
    for user, status in (("red-reader", 403), ("red-member", 200)):
        compute = lab.connect(user, "red").compute
        response = compute.post("/os-server-groups", json=body)
        assert response.status_code == status
    compute.delete(f"/os-server-groups/{response.json()['server_group']['id']}")


def test_a_server_boots_on_the_named_host_and_nova_sends_a_notification(lab: Lab) -> None:
    host = lab.computes[-1]
    with lab.alone(host), notices(lab) as heard, server_on(lab, host) as server:
        assert (server.status, server.compute_host) == ("ACTIVE", host)

        def told() -> bool:
            return any(
                notice["event_type"] == "instance.create.end"
                and notice["payload"]["nova_object.data"]["uuid"] == server.id
                for notice in heard()
            )

        eventually(told)


def test_a_floating_address_can_be_had(lab: Lab) -> None:
    network = lab.connect("red-member", "red").network
    address = network.create_ip(floating_network_id=lab.external_network)
    try:
        assert address.floating_ip_address.startswith("203.0.113.")
    finally:
        network.delete_ip(address)


@pytest.mark.slow("Nova waits fifteen seconds until it calls a silent compute down")
def test_a_killed_compute_is_down_and_comes_back(lab: Lab) -> None:
    host = lab.computes[-1]
    with lab.alone(host):
        part = lab.compute(host)
        began = time.monotonic()
        part.kill()
        try:
            assert not part.running
            lab.wait_compute(host, up=False)
            assert time.monotonic() - began > 5, "Nova cannot know that soon: was it down before?"
        finally:
            part.start()
        lab.wait_compute(host, up=True)


def test_a_database_of_the_lab_is_made_and_dropped(lab: Lab) -> None:
    name = f"lab_{uuid.uuid4().hex[:8]}"
    url = lab.new_database(name)
    assert f"/{name}" in url
    lab.drop_database(url)
    assert lab.new_database(name) == url
    lab.drop_database(url)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Part]:
    """A part of a lab of its own: a shell that forks."""
    place = Place(tmp_path)
    place.make()
    command = ("sh", "-c", "sleep 300 & echo ready; wait")
    log = place.logs / "sleeper.log"
    part = Part(
        place,
        Recipe(
            name="sleeper",
            command=command,
            env={"PATH": "/usr/bin:/bin"},
            ready=lambda: "ready" in log.read_text(),
            grace_s=2,
        ),
    )
    yield part
    part.stop()


def test_a_service_is_started_once_frozen_and_killed_with_all_children(sleeper: Part) -> None:
    assert sleeper.state == "stopped"
    sleeper.start()
    pid = sleeper.pid
    sleeper.start()
    assert (sleeper.pid, sleeper.state) == (pid, "running")
    sleeper.pause()
    eventually(lambda: sleeper.state == "frozen")
    sleeper.start()
    eventually(lambda: sleeper.state == "running")
    sleeper.kill()
    assert sleeper.state == "dead"
    with pytest.raises(PartFailed, match="sleeper does not run"):
        sleeper.pause()
    sleeper.start()
    assert sleeper.pid != pid
    sleeper.stop()
    assert sleeper.state == "stopped"


def test_finished_steps_are_skipped_and_failed_steps_repeated(tmp_path: Path) -> None:
    done: list[str] = []
    broken = True

    def build() -> None:
        if broken:
            raise PartFailed("no")
        done.append("build")

    def go(version: str) -> None:
        steps = [
            Step("use", lambda: done.append("use"), ["build"]),
            Step("build", build, ["fetch"], stamp=version),
            Step("fetch", lambda: done.append("fetch"), stamp=version),
        ]
        do_all(steps, Stamps(tmp_path), Progress(tmp_path / "log"))

    with pytest.raises(PartFailed):
        go("1")
    assert done == ["fetch"]
    broken = False
    go("1")
    assert done == ["fetch", "build", "use"]
    go("1")
    assert done == ["fetch", "build", "use", "use"]
    go("2")
    assert done[4:] == ["fetch", "build", "use"]
