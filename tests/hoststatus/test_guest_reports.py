# SPDX-License-Identifier: Apache-2.0
"""What Nova says about servers: what nobody asked for is told, everything else is not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import conf as configuration
from holdfast.hoststatus.plugins.guests import GuestMonitor, GuestReportWriter, classify
from holdfast.hoststatus.poll import Watch
from holdfast.hoststatus.push import Dispatcher, Monitors
from holdfast.model.errors import Unavailable
from holdfast.model.nova_notification import ServerNotice
from tests.hoststatus import recorded
from tests.hoststatus.recorded import CRASHED, FAILED, OFF, notice
from tests.hoststatus.site import Gate, Hurry, Own, Site

RESUMED = "nova-compute starts and goes on with a stop"


def monitor(errors: str = "recover", power_offs: str = "report") -> GuestMonitor:
    options = SimpleNamespace(guest_errors=errors, guest_power_offs=power_offs)
    return GuestMonitor(SimpleNamespace(monitors=options))


def said(heard: ServerNotice, **options: str) -> tuple[str, str] | None:
    words = monitor(**options).heard(heard)
    return (words[0].evidence["event"], words[0].state) if words else None


@pytest.mark.parametrize("what", recorded.names())
def test_of_recorded_nova_messages_only_unrequested_failures_are_reported(what: str) -> None:
    told = {
        FAILED: ("error", "failed"),
        OFF: ("powered_off", "noted"),
        CRASHED: ("crashed", "failed"),
    }
    assert said(notice(what)) == told.get(what)


BY = {"action_initiator_user": "u-1"}


@pytest.mark.parametrize(
    ("what", "changes", "expected"),
    [
        # into error
        (FAILED, {"old_state": "resized"}, ("error", "failed")),
        (FAILED, {"old_task_state": "powering-off"}, ("error", "failed")),
        (FAILED, {"old_state": "stopped"}, ("error", "noted")),
        (FAILED, {"old_state": "paused"}, ("error", "noted")),
        (FAILED, {"old_state": "shelved"}, ("error", "noted")),
        (FAILED, {"old_task_state": "rebuild_spawning"}, ("error", "noted")),
        (FAILED, {"old_task_state": "deleting"}, None),
        (FAILED, {"new_task_state": "deleting"}, None),
        (FAILED, {"old_state": "building"}, None),
        (FAILED, {"old_state": "deleted"}, None),
        (FAILED, {"old_state": "shelved_offloaded"}, None),
        (FAILED, {"old_state": "error"}, None),
        (FAILED, {"host": None}, None),
        (FAILED, {**BY, "old_task_state": "rebooting_hard"}, ("error", "noted")),
        (FAILED, {**BY, "old_task_state": "migrating"}, ("error", "noted")),
        (FAILED, {**BY, "old_task_state": "deleting"}, None),
        (FAILED, BY, None),  # `openstack server set --state error`
        # off
        (OFF, BY, None),
        (OFF, {"power_state": "running"}, None),
        (OFF, {"power_state": "paused"}, None),
        (OFF, {"state": "stopped"}, None),
        (OFF, {"state": "paused"}, ("powered_off", "noted")),
        (CRASHED, BY, None),
        (CRASHED, {"state": "paused"}, ("crashed", "noted")),
        (CRASHED, {"event_type": "instance.power_off.end"}, None),
    ],
)
def test_the_requester_and_the_earlier_state_decide(
    what: str, changes: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    assert said(notice(what, **changes)) == expected


def test_a_nova_without_the_requester_is_not_trusted() -> None:
    old = recorded.message(FAILED)
    del old["payload"]["nova_object.data"]["action_initiator_user"]
    found = recorded.parse(old)
    assert isinstance(found, ServerNotice)
    assert classify(found) is None


@pytest.mark.parametrize(
    ("options", "off", "error"),
    [
        ({"power_offs": "recover", "errors": "report"}, "failed", "noted"),
        ({"power_offs": "ignore", "errors": "ignore"}, None, None),
        ({}, "noted", "failed"),
    ],
)
def test_the_options_decide_the_action(
    options: dict[str, str], off: str | None, error: str | None
) -> None:
    assert (said(notice(OFF), **options) or ("", None))[1] == off
    for what in (FAILED, CRASHED):
        assert (said(notice(what), **options) or ("", None))[1] == error
    # what a new start could harm is not started, whatever is wished
    paused = said(notice(OFF, state="paused"), **options)
    assert paused is None or paused[1] == "noted"


def test_the_guest_monitor_is_off_and_careful_by_default() -> None:
    options = configuration.load([], []).monitors
    assert options.enabled == ["compute"]
    assert (options.guest_errors, options.guest_power_offs) == ("recover", "report")


# and then


class Context:
    """A site with the monitor in it, and what it wrote."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.looks = 0
        site.settings.enabled = ["compute", "guests"]
        self.ids = iter(f"00000000-0000-4000-8000-{number:012}" for number in range(1, 100))
        self.news = GuestReportWriter(site.store.observations, lambda: next(self.ids), site._wake)
        watch = site.watch
        self.watch = Watch(
            watch.hosts, watch.monitors, watch.tally, watch.clock, guests=self.news.write
        )
        self.dispatcher = Dispatcher(self.watch, site.store.host_status, site.settings, self._look)

    def _look(self) -> None:
        self.looks += 1

    def rows(self) -> list[tuple[str, str]]:
        return [(row["key"], row["state"]) for row in self.site.store.observations.list_all()]

    def work(self) -> int:
        subjects = [one.subject for one in self.site.store.operations.list_all()]
        return sum(subject.startswith("observation:") for subject in subjects)


@pytest.fixture
def context(build: Callable[..., Site]) -> Context:
    return Context(build(monitor()))


def test_a_failure_is_written_once_for_repeated_and_late_messages(context: Context) -> None:
    heard = notice(FAILED)  # recorded long ago by the clock of the site
    for _ in range(3):
        context.dispatcher.dispatch(heard)
    assert context.rows() == [(f"instance.update/{heard.message_id}", "failed")]
    (row,) = context.site.store.observations.list_all()
    assert (row["observer"], row["subject"]) == ("nova", f"server:{heard.server_id}")
    assert row["since"] == heard.at
    assert row["evidence"]["host"] == heard.host
    assert (context.work(), context.looks) == (1, 0)
    assert context.site.rung


def test_a_noted_report_is_kept_and_makes_no_work(context: Context) -> None:
    context.dispatcher.dispatch(notice(OFF))
    assert [state for _key, state in context.rows()] == ["noted"]
    assert (context.work(), context.site.rung) == (0, 0)


def test_a_requested_change_writes_nothing(context: Context) -> None:
    for what in set(recorded.names()) - {FAILED, OFF, CRASHED}:
        context.dispatcher.dispatch(notice(what))
    assert context.rows() == []


def test_a_disabled_guest_monitor_receives_nothing(context: Context) -> None:
    context.site.settings.enabled = ["compute"]
    context.dispatcher.dispatch(notice(FAILED))
    assert context.rows() == []


def test_the_guest_monitor_is_push_only(context: Context) -> None:
    context.site.enrol("cmp-1")
    context.site.run(40)
    assert context.site.said() == "compute: 1 hosts seen"
    assert "guests" not in context.site.count.looks


def test_a_message_missed_by_a_push_only_monitor_is_parked(
    build: Callable[..., Site],
) -> None:
    gate = Gate()
    own = Own(heard=gate, event_types=("instance.update",))
    own.push_only = True
    context = Context(build(own, waits=Hurry()))
    context.site.settings.enabled = ["own"]
    for number in range(2):  # it hangs over the first, and is stuck when the second comes
        context.dispatcher.dispatch(notice(FAILED, message_id=f"m-{number}"))
    gate.open.set()
    kept = context.site.store.host_status.parked(10)
    assert {(one.monitor, one.message_id) for one in kept} == {("own", "m-0"), ("own", "m-1")}
    assert context.looks == 0


def test_while_the_database_is_away_the_message_waits(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(context.site.store.observations, "add", away)
        with pytest.raises(Unavailable):
            context.dispatcher.dispatch(notice(FAILED))
    context.dispatcher.dispatch(notice(FAILED))
    assert len(context.rows()) == 1


@pytest.mark.parametrize("push", [True, False])
def test_a_guest_monitor_without_a_broker_is_an_error_logged_once(
    context: Context, caplog: pytest.LogCaptureFixture, push: bool
) -> None:
    site = context.site
    site.settings.push = push
    part = Monitors(context.watch, site.store.host_status, site.settings, None, lambda: None)
    with caplog.at_level(logging.ERROR, "holdfast.hoststatus"):
        for _ in range(3):
            part.turn()
    (line,) = [
        record.getMessage()
        for record in caplog.records
        if record.name == "holdfast.hoststatus.push"
    ]
    assert "names guests" in line
    assert "[notifications] transport_url" in line
    caplog.clear()
    site.settings.enabled = ["compute"]
    part.turn()
    assert not [record for record in caplog.records if record.name == "holdfast.hoststatus.push"]
