# SPDX-License-Identifier: Apache-2.0
"""Manager commands through a real broker; the manager refuses forged and malformed messages."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from holdfast.drivers.rabbit import rpc
from holdfast.model.errors import InvalidInput, NotFound, Unavailable
from holdfast.model.lease import NewLease, NewReservation
from holdfast.ports.manager import Caller, Manager
from tests.api.house import ADMIN, House, copy, template
from tests.servers.rabbitmq import RabbitMQ

import holdfast.drivers.rabbit  # isort: skip  # noqa: F401  threads, before oslo.messaging chooses otherwise
import oslo_messaging  # isort: skip

# Holdfast names the executor, because older releases of oslo.messaging choose another by default.
pytestmark = pytest.mark.filterwarnings("ignore:Using the 'executor' argument:DeprecationWarning")

CALLER = {"user_id": "admin", "project_id": "demo", "is_admin": True}
HOSTS = {"resource_type": "physical:host", "spec": {"min": 1, "max": 1}}


class Deployment:
    """A manager that reads commands from the broker, its database, and a client."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.now = house.core.store.database.now
        self.remote = rpc.RemoteManager(house.conf, self.now)
        target = oslo_messaging.Target(topic=rpc.TOPIC, version="1.0")
        self._client = oslo_messaging.get_rpc_client(self.remote._transport, target, retry=0)

    def send(self, **arguments: Any) -> Any:
        """Send what a client of oslo.messaging can send; return the raw answer."""
        return self._client.prepare(timeout=60).call({}, rpc.METHOD, **arguments)

    def message(self, name: Any = "create_lease", **changes: Any) -> dict[str, Any]:
        """A message that books a lease of a host, with changes."""
        now = self.now()
        lease = {
            "id": uuid.uuid4().hex,
            "name": "forged",
            "start": (now + timedelta(hours=1)).isoformat(),
            "end": (now + timedelta(hours=2)).isoformat(),
            "reservations": [HOSTS],
        }
        message = {
            "v": rpc.VERSION,
            "name": name,
            "deadline": now.timestamp() + 60,
            "args": {"caller": dict(CALLER), "lease": lease},
        }
        return message | changes


@pytest.fixture(scope="module")
def deployment(
    rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    state = copy(template(tmp_path_factory.mktemp("template")), tmp_path_factory.mktemp("commands"))
    with pytest.MonkeyPatch.context() as patch, House(state) as house:
        patch.setattr(rpc, "TOPIC", f"holdfast.manager-{uuid.uuid4().hex[:8]}")
        house.conf.set_override("transport_url", rabbitmq.start().url)
        house.conf.set_override("rpc_timeout", 60)
        server = rpc.Server(house.conf, house.manager.commands, house.core.clock.now, "m1")
        made = Deployment(house)
        server.start()
        yield made
        made.remote.close()
        server.stop()


def works(deployment: Deployment) -> bool:
    return deployment.send(message=deployment.message("ping", args={})) == {
        "ok": deployment.house.manager.name
    }


def refusal(deployment: Deployment, message: Any) -> dict[str, Any]:
    """Send a message that the manager refuses without a change; return the error."""
    before = deployment.house.dump()
    answer = deployment.send(message=message)
    assert set(answer) == {"error"}, answer
    assert deployment.house.dump() == before
    assert works(deployment)
    error: dict[str, Any] = answer["error"]
    return error


def test_the_table_of_commands_has_every_method_of_the_manager_and_no_other() -> None:
    methods = {name for name, _ in inspect.getmembers(Manager, inspect.isfunction)}
    remote = {name for name in vars(rpc.RemoteManager) if not name.startswith("_")} - {"close"}
    table = rpc.served(rpc.RemoteManager.__new__(rpc.RemoteManager))
    assert set(table) == remote == {name for name in methods if not name.startswith("_")}
    assert all(row.declared.__name__ == row.run.__name__ == name for name, row in table.items())


def test_the_client_calls_the_manager_through_the_broker(deployment: Deployment) -> None:
    remote, now = deployment.remote, deployment.now()
    assert remote.ping() == deployment.house.manager.name
    window = now + timedelta(hours=5), now + timedelta(hours=6)
    lease = NewLease(uuid.uuid4().hex, "real", *window, reservations=(NewReservation(**HOSTS),))
    assert remote.create_lease(ADMIN, lease) is None
    leases = deployment.house.core.store.ledger.with_events(lease_id=lease.id)
    assert len(leases) == 1
    assert remote.plan_repair(ADMIN).usable == remote.plan_repair(ADMIN, racks=()).usable == 4
    with pytest.raises(NotFound):
        remote.plan_repair(ADMIN, hosts=["no-such-host"])
    with pytest.raises(InvalidInput):
        remote.know_host(ADMIN, name="no-such-host")
    assert remote.delete_lease(ADMIN, lease.id) is None


def test_a_well_formed_message_books_the_lease(deployment: Deployment) -> None:
    """The refusals below differ from this message in a single point each."""
    message = deployment.message()
    assert deployment.send(message=message) == {"ok": None}
    deployment.remote.delete_lease(ADMIN, message["args"]["lease"]["id"])


@pytest.mark.parametrize(
    "name",
    [
        "drop_all_leases", "__init__", "_wait", "_leases.create", "close", "", "x" * 10_000,
        None, 7, ["create_lease"], {"create_lease": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_an_unknown_command_name_is_refused(deployment: Deployment, name: Any) -> None:
    error = refusal(deployment, deployment.message(name))
    assert error["code"] == Unavailable.code
    assert error["message"].startswith("the manager has no command ")
    assert len(error["message"]) < 200


@pytest.mark.parametrize("message", [None, "create_lease", 5, [], ["create_lease", {}], True])
def test_a_message_that_is_no_json_object_is_refused(deployment: Deployment, message: Any) -> None:
    assert "a command is a JSON object" in refusal(deployment, message)["message"]


@pytest.mark.parametrize("version", [0, 2, "1", None, [1], 1.5])
def test_a_message_of_another_version_is_refused(deployment: Deployment, version: Any) -> None:
    error = refusal(deployment, deployment.message(v=version))
    assert error["code"] == Unavailable.code
    assert "reads commands of version 1" in error["message"]


def test_a_message_without_a_version_is_refused(deployment: Deployment) -> None:
    message = deployment.message()
    del message["v"]
    assert "reads commands of version 1" in refusal(deployment, message)["message"]


@pytest.mark.parametrize("changes", [{"deadline": "soon"}, {"deadline": None}, {"args": []},
                                     {"args": None}, {"args": "caller"}])  # fmt: skip
def test_a_message_with_malformed_parts_is_refused(
    deployment: Deployment, changes: dict[str, Any]
) -> None:
    error = refusal(deployment, deployment.message(**changes))
    assert "deadline must be a number, args a JSON object" in error["message"]


@pytest.mark.parametrize("deadline", [0, -1, float("nan")])
def test_a_command_past_its_deadline_is_dropped(deployment: Deployment, deadline: float) -> None:
    error = refusal(deployment, deployment.message(deadline=deadline))
    assert error["code"] == Unavailable.code


@pytest.mark.parametrize("wrong", ["self", "leases", "dry_run", "__class__"])
def test_an_unknown_argument_is_refused_by_its_name(deployment: Deployment, wrong: str) -> None:
    message = deployment.message()
    message["args"][wrong] = True
    error = refusal(deployment, message)
    assert error["message"].startswith("wrong arguments: ")
    assert f"'{wrong}'" in error["message"]


@pytest.mark.parametrize("missing", ["caller", "lease"])
def test_a_missing_argument_is_refused_by_its_name(deployment: Deployment, missing: str) -> None:
    message = deployment.message()
    del message["args"][missing]
    assert f"'{missing}'" in refusal(deployment, message)["message"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("caller", None),
        ("caller", "admin"),
        ("caller.user_id", 7),
        ("caller.is_admin", "yes"),
        ("caller.is_admin", 1),
        ("caller.roles", "admin"),
        ("lease", []),
        ("lease.name", {"a": "b"}),
        ("lease.start", 5),
        ("lease.start", "soon"),
        ("lease.dry_run", "no"),
        ("lease.reservations", HOSTS),
        ("lease.reservations", "all"),
        ("lease.reservations", [[]]),
        ("lease.reservations", [7] * 10_000),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_by_its_place(
    deployment: Deployment, path: str, value: Any
) -> None:
    message = deployment.message()
    *parents, last = path.split(".")
    holder = message["args"]
    for name in parents:
        holder = holder[name]
    holder[last] = value
    error = refusal(deployment, message)
    assert error["message"].startswith("wrong argument: "), error
    assert path in error["message"] and len(error["message"]) < 600, error


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("plan_repair", {"hosts": "cmp-1"}),
        ("plan_repair", {"hosts": [1]}),
        ("plan_repair", {"hosts": {"cmp-1": 1}}),
        ("run_repair", {"approve": "no", "reason": "r"}),
        ("withdraw_host", {"host_id": "1"}),
        ("withdraw_host", {"host_id": True}),
        ("describe_host", {"host_id": 1, "capabilities": ["gpu"]}),
        ("describe_host", {"host_id": 1, "capabilities": {"gpu": 4}}),
        ("set_property", {"name": "gpu", "private": 0}),
    ],
)
def test_no_argument_is_converted_to_its_type(
    deployment: Deployment, name: str, args: dict[str, Any]
) -> None:
    error = refusal(deployment, deployment.message(name, args={"caller": CALLER, **args}))
    assert error["message"].startswith("wrong argument: "), error


@pytest.mark.parametrize("arguments", [{}, {"command": "ping"}, {"message": {}, "other": 1}])
def test_a_call_with_other_parameters_fails_and_the_server_goes_on(
    deployment: Deployment, arguments: dict[str, Any]
) -> None:
    before = deployment.house.dump()
    with pytest.raises(TypeError, match="argument"):
        deployment.send(**arguments)
    assert deployment.house.dump() == before
    assert works(deployment)


@pytest.mark.parametrize("method", ["_read", "_run", "__init__", "run"])
def test_no_other_method_of_the_endpoint_can_be_called(deployment: Deployment, method: str) -> None:
    client = deployment._client.prepare(timeout=60)
    with pytest.raises(oslo_messaging.RemoteError):
        client.call({}, method, name="ping", deadline=1e12, args={})
    assert works(deployment)


def test_unknown_keys_of_a_newer_release_are_ignored(deployment: Deployment) -> None:
    message = deployment.message(trace="abc")
    message["args"]["caller"] = {**CALLER, "domain": "default"}
    message["args"]["lease"]["colour"] = "red"
    assert deployment.send(message=message) == {"ok": None}
    deployment.remote.delete_lease(ADMIN, message["args"]["lease"]["id"])


def test_arguments_that_equal_their_default_are_not_sent() -> None:
    caller = Caller("u", "p")
    args = {"caller": caller, "approve": False, "reason": "so", "domain": ""}
    assert set(rpc.pack(Manager.run_repair, args)) == {"caller", "reason"}
