# SPDX-License-Identifier: Apache-2.0
"""What Nova says about servers: what nobody asked for is told, everything else is not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import conf as configuration
from holdfast.hoststatus.plugins.guests import GuestMonitor, GuestNews, classify
from holdfast.hoststatus.poll import Watch
from holdfast.hoststatus.push import Hearer, Monitors
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
def test_of_what_a_real_nova_said_only_what_nobody_asked_for_is_told(what: str) -> None:
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
def test_who_asked_and_how_it_was_before_decide(
    what: str, changes: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    assert said(notice(what, **changes)) == expected


def test_a_nova_that_does_not_say_who_asked_is_not_believed() -> None:
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
def test_the_configuration_says_what_is_done(
    options: dict[str, str], off: str | None, error: str | None
) -> None:
    assert (said(notice(OFF), **options) or ("", None))[1] == off
    for what in (FAILED, CRASHED):
        assert (said(notice(what), **options) or ("", None))[1] == error
    # what a new start could harm is not started, whatever is wished
    paused = said(notice(OFF, state="paused"), **options)
    assert paused is None or paused[1] == "noted"


def test_it_is_off_and_careful_unless_somebody_says_otherwise() -> None:
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
        self.news = GuestNews(site.store.observations, lambda: next(self.ids), site._wake)
        watch = site.watch
        self.watch = Watch(
            watch.hosts, watch.monitors, watch.tally, watch.clock, guests=self.news.write
        )
        self.hearer = Hearer(self.watch, site.store.standings, site.settings, self._look)

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


def test_a_failure_is_written_once_however_often_and_late_it_is_heard(context: Context) -> None:
    heard = notice(FAILED)  # recorded long ago by the clock of the site
    for _ in range(3):
        context.hearer.hear(heard)
    assert context.rows() == [(f"instance.update/{heard.message_id}", "failed")]
    (row,) = context.site.store.observations.list_all()
    assert (row["observer"], row["subject"]) == ("nova", f"server:{heard.server_id}")
    assert row["since"] == heard.at
    assert row["evidence"]["host"] == heard.host
    assert (context.work(), context.looks) == (1, 0)
    assert context.site.rung


def test_what_is_only_noted_is_kept_and_makes_no_work(context: Context) -> None:
    context.hearer.hear(notice(OFF))
    assert [state for _key, state in context.rows()] == ["noted"]
    assert (context.work(), context.site.rung) == (0, 0)


def test_what_somebody_asked_for_writes_nothing(context: Context) -> None:
    for what in set(recorded.names()) - {FAILED, OFF, CRASHED}:
        context.hearer.hear(notice(what))
    assert context.rows() == []


def test_switched_off_it_hears_nothing(context: Context) -> None:
    context.site.settings.enabled = ["compute"]
    context.hearer.hear(notice(FAILED))
    assert context.rows() == []


def test_it_is_told_and_never_asked(context: Context) -> None:
    context.site.enrol("cmp-1")
    context.site.run(40)
    assert context.site.said() == "compute: 1 hosts seen"
    assert "guests" not in context.site.count.looks


def test_what_a_monitor_misses_that_is_never_asked_is_kept_for_people(
    build: Callable[..., Site],
) -> None:
    gate = Gate()
    own = Own(heard=gate, event_types=("instance.update",))
    own.only_hears = True  # type: ignore[attr-defined]
    context = Context(build(own, waits=Hurry()))
    context.site.settings.enabled = ["own"]
    for number in range(2):  # it hangs over the first, and is stuck when the second comes
        context.hearer.hear(notice(FAILED, message_id=f"m-{number}"))
    gate.open.set()
    kept = context.site.store.standings.all_set_aside(10)
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
            context.hearer.hear(notice(FAILED))
    context.hearer.hear(notice(FAILED))
    assert len(context.rows()) == 1


@pytest.mark.parametrize("push", [True, False])
def test_where_nobody_can_listen_that_is_an_error_said_once(
    context: Context, caplog: pytest.LogCaptureFixture, push: bool
) -> None:
    site = context.site
    site.settings.push = push
    part = Monitors(context.watch, site.store.standings, site.settings, None, lambda: None)
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
